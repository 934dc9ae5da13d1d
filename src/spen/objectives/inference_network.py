"""min_E max_A [Δ(A(x), y*) − E(A(x)) + E(y*)]_+: a network learns to do the minimisation (Tu and Gimpel 2018)."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from spen.arguments import require_function
from spen.descent.potential import Potential, identity
from spen.model import SPEN
from spen.objectives.losses import per_example
from spen.objectives.mismatch import Once, refuse_mismatch
from spen.objectives.structured_hinge import LossAugmented
from spen.objectives.targets import point_of, require_truth
from spen.protocols import Loss, Objective
from spen.tensors import flat


class InferenceNetwork(Objective):
    """The structured hinge at A(x) = Init(F(x)) for the energy, and its opposite for the network A.

    The energy sees [Δ(A) − E(A) + E(y*)]_+ with A(x) held fixed. A sees ⟨∇_y[E − Δ](A), A(x)⟩ with the slope held
    fixed, whose gradient is that of E(A(x)) − Δ(A(x), y*): one backward pass moves both players, each against the
    other. ``loss`` is Δ, per example and differentiable in y; ``anchor`` · ℓ(A(x), y*) keeps A near the truth while
    the energy is still poor (``anchor_loss``, default Δ). ``slack=False`` drops the []_+ of the energy's side.
    ``player`` leaves one side out: "network" alone is the final tuning of A to a finished energy, without Δ.

    Development data is scored on A(x) itself: no descent is needed at the end.
    """

    def __init__(
        self,
        loss: Loss,
        *,
        anchor: float = 0.0,
        anchor_loss: Loss | None = None,
        truth: Any = None,
        slack: bool = True,
        player: Literal["both", "energy", "network"] = "both",
    ) -> None:
        require_function(loss, "loss", "loss(y, target)")
        if anchor_loss is not None:
            require_function(anchor_loss, "anchor_loss", "anchor_loss(y, target)")
        require_truth(truth)
        if anchor < 0:
            raise ValueError(f"the anchor's weight must not be negative, not {anchor}")
        if player not in ("both", "energy", "network"):
            raise ValueError(f'player must be "both", "energy" or "network", not {player!r}')
        self.loss, self.anchor, self.truth, self.slack, self.player = loss, anchor, truth, slack, player
        self.anchor_loss = loss if anchor_loss is None else anchor_loss
        self._once = Once()

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        refuse_mismatch(model, target, self._once, self.loss, self.anchor_loss)
        features = model.features(x)
        domain = model.minimizer.domain
        answer = domain.output(domain.enter(model.init(features)))
        total = answer.new_zeros(())
        if self.player != "network":
            total = total + self._energy_side(model, features, answer.detach(), target)
        if self.player != "energy":
            total = total + self._network_side(model, features, answer, target)
        if self.anchor:
            total = total + self.anchor * self.anchor_loss(answer, target).mean()
        return total

    def predict(self, model: SPEN, x: Any) -> Tensor:
        return model.feedforward(x)

    def _energy_side(self, model: SPEN, features: Any, answer: Tensor, target: Any) -> Tensor:
        truth = point_of(target, self.truth, answer.dtype)
        margin = self._cost(answer, target) - model.energy(answer, features) + model.energy(truth, features)
        return (margin.clamp_min(0) if self.slack else margin).mean()

    def _network_side(self, model: SPEN, features: Any, answer: Tensor, target: Any) -> Tensor:
        if self.player == "network":
            potential = Potential.of(model.energy, features, identity)
        else:
            potential = Potential.of(LossAugmented(model.energy, self._cost), (features, target), identity)
        slope, _ = potential.detached().gradient(answer)
        return flat(slope * answer).sum(1).mean()

    def _cost(self, y: Tensor, target: Any) -> Tensor:
        return per_example(self.loss, y, target, "an inference network")


__all__ = ["InferenceNetwork"]
