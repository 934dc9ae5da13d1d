"""The energies of Sec. 6.1: ‖y − x‖² − 2σ² log P(y) (Eq. 12), with a field of experts or a deep network for P.

Every energy sums over pixels. The paper's network ends in an average, which differs by a constant factor on images
of one size; with a sum, a prior learned on crops means the same on a whole image.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.energies import Energy, NonNegativeConv2d, SoftAbs, Softplus

Padding = Literal["zeros", "reflect", "replicate"]
Convolution = nn.Conv2d | NonNegativeConv2d


class Observation(NamedTuple):
    """F(x): the image and what of it the sensor saw."""

    image: Tensor  # (B, 1, H, W)
    seen: Tensor  # (B, 1, H, W), 1 where there is a reading, 0 in a hole


class NoisyObservation(NamedTuple):
    """F(x) of a noise-conditioned model."""

    image: Tensor  # (B, 1, H, W)
    seen: Tensor  # (B, 1, H, W), 1 where there is a reading, 0 in a hole
    noise: Tensor  # (B, 1, 1, 1), its standard deviation in units of the image


Observed = Observation | NoisyObservation


def with_noise(x: Observed, noise: Tensor) -> NoisyObservation:  # noise (B,), or one number for all
    """x for a noise-conditioned model."""
    return NoisyObservation(x.image, x.seen, noise.expand(len(x.image)).view(-1, 1, 1, 1))


class DataTerm(Energy):
    """‖m · (y − x)‖²: stay near the readings; what the sensor did not see (m = 0) is left to the prior.

    Not marked ``closed_form``: a difference of a quadratic's gradients is exact, so a pass of its own would be waste.
    """

    def forward(self, y: Tensor, features: Observed) -> Tensor:
        return ((y - features.image).square() * features.seen).flatten(1).sum(1)


class FieldOfExperts(Energy):
    """−log P(y) = Σ_k ‖SoftAbs(f_k ∗ s·y)‖₁ (Eq. 13 and 14), K learned filters; ``scale`` is s.

    A filter starts as random noise with zero mean: it ignores the absolute depth and responds to edges. ``blind`` keeps
    it so: one update of Adam can give a filter a response to the depth itself that exceeds its response to noise.
    """

    def __init__(
        self,
        filters: int = 32,
        size: int = 7,
        *,
        temperature: float = 25.0,
        scale: float = 1.0,
        blind: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, filters, size, bias=False)
        self.activation = SoftAbs(temperature)
        self.scale, self.blind = scale, blind
        with torch.no_grad():
            self.conv.weight.copy_(_centred(self.conv.weight))

    def forward(self, y: Tensor, features: Observed) -> Tensor:
        weight = _centred(self.conv.weight) if self.blind else self.conv.weight
        return self.activation(_convolved(self.scale * y, weight, None, "reflect")).flatten(1).sum(1)


class DeepPrior(Energy):
    """−log P(y) = DNN(y): 7×7×32, SoftPlus, 7×7×32, SoftPlus, 1×1×1, pooled over the image (Eq. 15).

    ``blind`` keeps the mean of the first filters at zero, as in ``FieldOfExperts``. ``average_pooling`` divides by the
    number of pixels, as the paper does.
    """

    def __init__(
        self,
        width: int = 32,
        size: int = 7,
        *,
        temperature: float = 25.0,
        scale: float = 1.0,
        padding: Padding = "zeros",
        blind: bool = False,
        average_pooling: bool = False,
    ) -> None:
        super().__init__()
        self.average_pooling = average_pooling
        self.first: Convolution = nn.Conv2d(1, width, size)
        self.second: Convolution = nn.Conv2d(width, width, size)
        self.last: Convolution = nn.Conv2d(width, 1, 1, bias=False)  # a constant of the energy has no gradient
        self.activation = Softplus(temperature)
        self.scale, self.padding, self.blind = scale, padding, blind
        with torch.no_grad():
            # Filters of zero mean do not see the absolute depth, which would push every unit off its bend.
            self.first.weight.copy_(_centred(self.first.weight))
            self.first.bias.mul_(0.2)  # type: ignore[union-attr]

    def forward(self, y: Tensor, features: Observed) -> Tensor:
        weight = _centred(self.first.weight) if self.blind else self.first.weight
        hidden = self.activation(_convolved(self.scale * y, weight, self.first.bias, self.padding))
        hidden = self.activation(_convolved(hidden, self.second.weight, self.second.bias, self.padding))
        scores = self.last(hidden).flatten(1)
        return scores.mean(1) if self.average_pooling else scores.sum(1)


class ConvexDeepPrior(DeepPrior):
    """The deep prior as an input-convex network: every kernel ≥ 0, which the paper found hinders denoising.

    ``free`` leaves the first filters free, which convexity allows: they see y linearly, and a convex, non-decreasing
    function of convex ones follows. A filter with both signs can be an edge detector again.
    """

    def __init__(self, width: int = 32, size: int = 7, *, free: bool = False, **options: Any) -> None:
        super().__init__(width, size, **options)
        if self.blind and not free:
            raise ValueError("kernels ≥ 0 of mean zero are zero: a blind convex prior needs free first filters")
        if not free:
            self.first = NonNegativeConv2d(1, width, size)
        self.second = NonNegativeConv2d(width, width, size)
        self.last = NonNegativeConv2d(width, 1, 1, bias=False)


def _centred(weight: Tensor) -> Tensor:
    return weight - weight.mean((2, 3), keepdim=True)


def _convolved(image: Tensor, weight: Tensor, bias: Tensor | None, mode: Padding) -> Tensor:
    margin = weight.shape[-1] // 2
    if mode == "zeros":
        return F.conv2d(image, weight, bias, padding=margin)
    return F.conv2d(F.pad(image, (margin, margin, margin, margin), mode=mode), weight, bias)
