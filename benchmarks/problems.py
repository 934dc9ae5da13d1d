"""What is measured: an energy, a batch, a descent and a loss on every iterate, the same weights for every system."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import spen
from benchmarks.ceilings import Convolutions, Work
from spen.domains import Reals
from spen.energies import Scaled, Sum
from spen.gradients import Exact, GradientStrategy
from spen.objectives import EndToEnd, squared_error
from spen.protocols import Loss
from spen.rules import Momentum
from spen.tasks.denoising.energy import DataTerm, DeepPrior, Observation
from spen.tensors import select, tree_map


@dataclass
class Problem:
    """min over θ of Σ_t w_t ℓ(y_t, y*): a full training step is the gradient of it for every parameter."""

    name: str
    sizes: dict[str, int]  # batch, steps and whatever else describes it
    model: spen.SPEN  # in eval mode: dropout would make gradients incomparable
    loss: Loss
    x: Any
    target: Any
    squash: Callable[[Tensor], Tensor]  # y = squash(z), for those who write the loop by hand
    decay: float = 0.0
    work: Work | None = None
    parts: int = 1  # the reference is made of this many slices of the batch, where the whole would not fit
    portable: bool = False  # whether the JAX peer knows this energy
    objective: EndToEnd = field(init=False)

    def __post_init__(self) -> None:
        self.objective = EndToEnd(self.loss)

    @property
    def steps(self) -> int:
        return self.model.minimizer.rule.steps

    @property
    def device(self) -> torch.device:
        return self.parameters()[0].device

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """All that is trained, by name: energy, σ², rates, F."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def parameters(self) -> list[nn.Parameter]:
        return list(self.named_parameters().values())

    def with_strategy(self, strategy: GradientStrategy) -> spen.SPEN:
        """The same modules under another gradient strategy; the problem's own model is left alone."""
        m, own = self.model, self.model.minimizer
        minimizer = spen.Minimizer(own.domain, own.rule, strategy)
        return spen.SPEN(features=m.features, init=m.init, energy=m.energy, minimizer=minimizer)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """d loss / d parameters, in their order; zeros where a parameter has no part in it."""
        parameters = self.parameters()
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]

    def converted(self, dtype: torch.dtype) -> Problem:
        """The same problem in another precision, with weights of its own."""

        def cast(t: Tensor) -> Tensor:
            return t.to(dtype) if t.is_floating_point() else t

        model = copy.deepcopy(self.model).to(dtype)
        for part in model.modules():
            if hasattr(part, "fused"):  # attention: only the unfused one differentiates twice
                part.fused = False  # type: ignore[assignment]
        x, target = (tree_map(cast, part) for part in (self.x, self.target))
        return Problem(
            self.name, self.sizes, model, self.loss, x, target, self.squash, self.decay, self.work, self.parts
        )

    def sliced(self) -> list[Problem]:
        """The batch in ``parts`` equal slices; the loss is a mean, so the gradient is the mean of theirs."""
        size = self.sizes["batch"] // self.parts
        rows = [torch.arange(i * size, (i + 1) * size, device=self.device) for i in range(self.parts)]
        return [
            Problem(
                self.name,
                {**self.sizes, "batch": size},
                self.model,
                self.loss,
                select(self.x, r),
                select(self.target, r),
                self.squash,
                self.decay,
            )
            for r in rows
        ]


class FirstImage(nn.Module):
    """Init: y_0 is the noisy image."""

    def forward(self, features: Observation) -> Tensor:
        return features.image


def deep_prior(
    device: str, *, batch: int = 32, height: int = 96, width: int = 128, steps: int = 20, channels: int = 32
) -> Problem:
    """Sec. 6.1: ‖y − x‖² + 2σ² DNN(y), 7×7×32, 7×7×32, 1×1×1, softplus of temperature 25, momentum 0.25.

    σ² and one rate per step are learned. Images are smooth scenes with noise of 0.07, where the softplus bends.
    """
    torch.manual_seed(0)
    energy = Sum(local=DataTerm(), prior=Scaled(DeepPrior(channels), 1.0, learned=True))
    rule = Momentum(steps, 0.05 if steps > 5 else 0.2, decay=0.25, learn_rates=True)
    model = spen.SPEN(energy=energy, init=FirstImage(), minimizer=spen.Minimizer(Reals(), rule, Exact()))
    coarse = torch.rand(batch, 1, max(2, height // 12), max(2, width // 12))
    truth = nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    image = (truth + 0.07 * torch.randn_like(truth)).to(device)
    sizes = {"batch": batch, "height": height, "width": width, "steps": steps, "channels": channels}
    return Problem(
        "DeepPrior",
        sizes,
        model.to(device).eval(),
        squared_error,
        Observation(image, torch.ones_like(image)),
        truth.to(device),
        squash=_itself,
        decay=0.25,
        work=Convolutions(batch=batch, height=height, width=width, channels=channels, size=7, steps=steps),
        portable=True,
    )


def _itself(z: Tensor) -> Tensor:
    return z
