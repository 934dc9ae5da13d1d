"""L = (1/T) Σ_t w_t ℓ(y_t, y*), the loss of the descent (Eq. 9), and ℓ(y_0, y*), pretraining without one (Sec. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from spen.curvature import Stability, limit_rates
from spen.descent.trajectory import Trajectory
from spen.model import SPEN
from spen.objectives.checks import LossObjective
from spen.objectives.replay import Replay, start_at
from spen.objectives.vmapped_loss import VmappedLoss
from spen.protocols import Loss
from spen.tensors import flat

Weights = Literal["harmonic", "equal", "last"] | Sequence[float] | Tensor


class Feedforward(LossObjective):
    """ℓ(Init(F(x)), y*): pretrains the start of the descent (Sec. 5)."""

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        self.refuse_mismatch(model, target)
        return self.loss(model.feedforward(x), target).mean()

    def predict(self, model: SPEN, x: Any) -> Tensor:
        return model.feedforward(x)


class EndToEnd(LossObjective):
    """(1/T) Σ_t w_t ℓ(y_t, y*), back-propagated through the descent.

    ``weights="harmonic"`` is the paper's w_t = 1/(T − t + 1); ``"equal"`` is w_t = 1; ``"last"`` puts all on y_T,
    with no 1/T; a sequence gives w_1 … w_T. The penalties of Sec. 4.2's future work are off unless given:
    ``change_penalty`` · mean_t ‖y_t − y_{t−1}‖ and ``gradient_penalty`` · mean_t ‖g_t‖, g_t the gradient that the
    descent followed (dE/dy, or dE/dlogits over a ``through_logits`` domain; needs a Minimizer with
    keep_gradients=True).

    Four options make descents that stay stable past T, each off by default. ``draw_steps``: the number of steps of
    every batch is drawn from these. ``noise`` · N(0, 1) is added to what Init returned. ``rate_limit`` keeps the rates
    of the rule below this share of 2(1 + β)/λ_max (``spen.curvature``), measured on one batch in sixteen, drawn at
    random; ``stability`` is the latest measurement. ``replay``: each example of a batch is replaced with this
    probability by one of the last ``replay_size`` examples, whose descent goes on from the answer it had ended with.
    Prediction takes the steps of the rule from Init, without noise.
    """

    def __init__(
        self,
        loss: Loss,
        *,
        weights: Weights = "harmonic",
        change_penalty: float = 0.0,
        gradient_penalty: float = 0.0,
        draw_steps: Sequence[int] = (),
        noise: float = 0.0,
        rate_limit: float | None = None,
        replay: float = 0.0,
        replay_size: int = 1024,
    ) -> None:
        super().__init__(loss)
        if isinstance(weights, str) and weights not in ("harmonic", "equal", "last"):
            raise ValueError(f'weights must be "harmonic", "equal", "last" or one number per step, not {weights!r}')
        given = weights if isinstance(weights, str) else [float(w) for w in weights]
        if not any(given):
            raise ValueError("some iterate must have a weight, but all of them are 0")
        if change_penalty < 0 or gradient_penalty < 0:
            raise ValueError("a penalty must not be negative")
        if any(not isinstance(steps, int) or steps < 1 for steps in draw_steps) or noise < 0:
            raise ValueError(f"draw_steps are whole numbers from 1 on and noise ≥ 0, not {draw_steps} and {noise}")
        if rate_limit is not None and not 0 < rate_limit <= 1:
            raise ValueError(f"rate_limit is a share of the largest stable rate, in (0, 1], not {rate_limit}")
        if not 0 <= replay <= 1 or replay_size < 1:
            raise ValueError(f"replay is a share in [0, 1] and replay_size ≥ 1, not {replay} and {replay_size}")
        self.draw_steps, self.noise, self.rate_limit = tuple(draw_steps), noise, rate_limit
        self.replay, self.replay_size = replay, replay_size
        self._stored = Replay(replay_size)
        self.stability: Stability | None = None
        self.weights: Literal["harmonic", "equal", "last"] | list[float] = given  # type: ignore[assignment]
        self.change_penalty = change_penalty
        self.gradient_penalty = gradient_penalty
        self._losses = VmappedLoss()
        self._cached_weights: dict[Any, Tensor] = {}  # weights by device and type

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        self.refuse_mismatch(model, target)
        if (self.rate_limit is not None or self.replay) and _several_processes():
            reason = (
                "replay stores the answers of one process, and a run of several could not be resumed"
                if self.rate_limit is None
                else "rate_limit measures the batch of one process, and every process would get rates of its own"
            )
            raise ValueError(f"{reason}: train on one device, or leave it out")
        if self.rate_limit is not None and float(torch.rand(())) < 1 / 16:
            self.stability = limit_rates(model, x, share=self.rate_limit)
        options: dict[str, Any] = {"noise": self.noise} if self.noise else {}
        if self.draw_steps:
            options["steps"] = self.draw_steps[int(torch.randint(len(self.draw_steps), ()))]
        if not self.replay:
            return self.of(model(x, **options), target)
        x, target, start = self._stored.mix(x, target, self.replay)
        trajectory = model(x, start=start, **options)
        self._stored.add(x, target, start_at(model.minimizer.domain, trajectory.output.detach()))
        return self.of(trajectory, target)

    def training_state(self) -> dict[str, Any]:
        return {"stored": list(self._stored.rows)} if self.replay else {}

    def resume(self, state: dict[str, Any]) -> None:
        self._stored.rows = list(state.get("stored", []))

    def of(self, trajectory: Trajectory, target: Any) -> Tensor:
        """The loss of a given trajectory."""
        total = self._iterates(trajectory, target)
        if self.change_penalty:
            total = total + self.change_penalty * _change(trajectory)
        if self.gradient_penalty:
            norms = [_norm(g).mean() for g in trajectory.gradients]
            # Over T, not over the steps taken: those depend on the other examples of the batch.
            total = total + self.gradient_penalty * sum(norms) / len(trajectory.outputs)
        return total

    def iterate_weights(self, steps: int) -> list[float]:
        """w_t / T for t = 1 … T."""
        if self.weights == "last":
            return [0.0] * (steps - 1) + [1.0]
        if self.weights == "equal":
            return [1 / steps] * steps
        if self.weights == "harmonic":
            return [1 / (steps - t + 1) / steps for t in range(1, steps + 1)]
        if len(self.weights) != steps:
            raise ValueError(f"the objective has {len(self.weights)} weights for a descent of {steps} steps")
        return [w / steps for w in self.weights]  # type: ignore[operator]

    def _iterates(self, trajectory: Trajectory, target: Any) -> Tensor:
        weights = self.iterate_weights(len(trajectory.outputs))
        # After all examples have converged, one tensor is repeated for the remaining iterates: its weights add up.
        shared: dict[int, float] = {}
        for y, w in zip(trajectory.outputs, weights, strict=True):
            shared[id(y)] = shared.get(id(y), 0.0) + w
        unique = {id(y): y for y in trajectory.outputs if shared[id(y)]}
        # One mean and one weighted sum for all of them: on a GPU each small operation costs its launch.
        losses = self._losses(self.loss, list(unique.values()), target)
        return losses.reshape(len(unique), -1).mean(1) @ self._on(losses, [shared[key] for key in unique])

    def _on(self, like: Tensor, weights: list[float]) -> Tensor:
        """The weights as a tensor, cached: copying them to a GPU makes the host wait."""
        key = (like.device, like.dtype, *weights)
        found = self._cached_weights.get(key)
        if found is None:
            with torch.inference_mode(False):  # a cached tensor may be used in training later
                found = torch.tensor(weights, device=like.device, dtype=like.dtype)
            if type(found) is Tensor:  # not a fake tensor of a trace
                self._cached_weights[key] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached_weights": {}}


def _several_processes() -> bool:
    known = torch.distributed.is_available() and torch.distributed.is_initialized()
    return known and torch.distributed.get_world_size() > 1


def _change(trajectory: Trajectory) -> Tensor:
    iterates = [trajectory.start, *trajectory.outputs]
    steps = [_norm(b - a).mean() for a, b in pairwise(iterates) if b is not a]
    return sum(steps[1:], steps[0]) / len(trajectory.outputs)


def _norm(x: Tensor) -> Tensor:
    # √(‖x‖² + tiny): the norm's derivative at 0, where a converged example is, would be NaN.
    return (flat(x).square().sum(1) + 1e-24).sqrt()
