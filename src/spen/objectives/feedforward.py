"""ℓ(Init(F(x)), y*): pretraining without descent (Sec. 5)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spen.arguments import require_function
from spen.model import SPEN
from spen.objectives.mismatch import Once, refuse_mismatch
from spen.protocols import Loss, Objective


class Feedforward(Objective):
    """The loss of the feed-forward predictor Init∘F, which starts the descent well."""

    def __init__(self, loss: Loss) -> None:
        require_function(loss, "loss", "loss(y, target)")
        self.loss = loss
        self._once = Once()

    def __call__(self, model: SPEN, x: Any, target: Any) -> Tensor:
        refuse_mismatch(model, target, self._once, self.loss)
        return self.loss(model.feedforward(x), target).mean()

    def predict(self, model: SPEN, x: Any) -> Tensor:
        return model.feedforward(x)
