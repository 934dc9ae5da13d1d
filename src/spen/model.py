"""x → F(x) → Init → minimise → Trajectory."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from spen.descent.minimizer import Minimizer
from spen.descent.trajectory import Trajectory


class SPEN(nn.Module):
    """ŷ = argmin_y E(y; F(x)) by descent from Init(F(x)) (Eq. 1 and 10).

    ``features`` is F (None: the identity), ``init`` maps features to the point the descent starts from, and
    ``energy`` scores (y, features) with one number per example. Any of them may hold parameters; gradients of an
    objective reach them all, and the learned rates of the minimiser's rule.
    """

    def __init__(
        self, *, energy: nn.Module, init: nn.Module, minimizer: Minimizer, features: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.features = nn.Identity() if features is None else features
        self.init = init
        self.energy = energy
        self.minimizer = minimizer

    def forward(self, x: Any) -> Trajectory:
        features = self.features(x)
        return self.minimizer(self.energy, features, self._start(features))

    def feedforward(self, x: Any) -> Tensor:
        """Init(F(x)) as a point of the domain: the answer without any descent, which pretraining fits (Sec. 5)."""
        domain = self.minimizer.domain
        return domain.output(domain.enter(self._start(self.features(x))))

    def _start(self, features: Any) -> Tensor:
        start = self.init(features)
        if not isinstance(start, Tensor):
            raise ValueError(f"Init must return a tensor to descend from, not {type(start).__name__}")
        return start
