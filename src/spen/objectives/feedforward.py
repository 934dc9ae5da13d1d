"""ℓ(Init(F(x)), y*): pretraining without descent (Sec. 5)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spen.model import SPEN
from spen.objectives.loss_objective import LossObjective


class Feedforward(LossObjective):
    """The loss of the feed-forward predictor Init∘F, which starts the descent well."""

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        self.refuse_mismatch(model, target)
        return self.loss(model.feedforward(x), target).mean()

    def predict(self, model: SPEN, x: Any) -> Tensor:
        return model.feedforward(x)
