"""½‖R(y; x)‖² with R the noise that a U-Net finds in y: an energy that is low where a denoiser would change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.energies import Energy, Scaled
from spen.energies.compose import Term
from spen.protocols import Formula
from spen.tasks.denoising.energy import DataTerm, NoisyObservation, Observation, Observed
from spen.tasks.denoising.holes import fill_pyramid
from spen.tasks.denoising.unet_gradient import WrittenUNet

SHARE = 0.5
"""a: how much of the fine structure counts as noise before the net has learned anything."""

WINDOW = 9
"""Side of the square whose mean is the level of a pixel's surroundings."""

KNEE = 3.0
"""Where numbers begin to be compressed, in units of the noise: an edge of a metre is a hundred times the noise."""


_TRITON = find_spec("triton") is not None  # what torch.compile makes kernels with on a GPU


class _Block(nn.Module):
    """Two 3×3 convolutions with SiLU, added to the input: smooth, so that the energy has two derivatives."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        nn.init.kaiming_normal_(self.first.weight, nonlinearity="relu")
        with torch.no_grad():  # a residual block starts as the identity
            self.second.weight.mul_(0.1)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.second(F.silu(self.first(F.silu(hidden))))


class UNet(nn.Module):
    """Planes to an image of the same size: ``scales`` of width, 2·width, 4·width … channels, ``blocks`` at each."""

    def __init__(self, width: int = 32, blocks: int = 2, inputs: int = 1, scales: int = 3) -> None:
        super().__init__()
        widths = [width * 2**k for k in range(scales)]
        self.unit = 2 ** (scales - 1)
        self.enter = nn.Conv2d(inputs, width, 3, padding=1)
        self.down = nn.ModuleList(
            nn.Sequential(*[_Block(w) for _ in range(blocks)], nn.Conv2d(w, wider, 2, stride=2))
            for w, wider in pairwise(widths)
        )
        self.bottom = nn.Sequential(*[_Block(widths[-1]) for _ in range(blocks)])
        self.rise = nn.ModuleList(nn.ConvTranspose2d(wider, w, 2, stride=2) for w, wider in pairwise(widths))
        self.up = nn.ModuleList(nn.Sequential(*[_Block(w) for _ in range(blocks)]) for w in widths[:-1])
        self.leave = nn.Conv2d(width, 1, 3, padding=1)
        nn.init.kaiming_normal_(self.enter.weight, nonlinearity="relu")

    def forward(self, image: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        # Each coarser scale halves the size: pad to the next multiple of the unit, and cut that off again. Written as
        # u·⌈n/u⌉, and the cut as negative padding, it can be exported for all sizes at once.
        unit = self.unit
        right, below = unit * ((width + unit - 1) // unit) - width, unit * ((height + unit - 1) // unit) - height
        hidden = self.enter(F.pad(image, (0, right, 0, below), mode="replicate"))
        skips = []
        for down in self.down:
            for layer in down[:-1]:  # type: ignore[index]
                hidden = layer(hidden)
            skips.append(hidden)
            hidden = down[-1](hidden)  # type: ignore[index]
        hidden = self.bottom(hidden)
        for rise, up, skip in zip(reversed(self.rise), reversed(self.up), reversed(skips), strict=True):
            hidden = up(rise(hidden) + skip)
        return F.pad(self.leave(hidden), (0, -right, 0, -below))


class UNetPrior(Energy):
    """½‖R + af‖², R + af the noise in s·y as a U-Net sees it; ``scale`` is s, and should bring the noise near 1.

    f = s(y − B y) is the fine structure of y, B the mean of a 9×9 window: noise of a thousandth of the range meets
    numbers of its own size. With its share a the energy starts as one that smooths; R = 0 alone would be a point
    without a slope. The net reads f; the level B y − ½; 1 − m, where the sensor saw nothing; and s·m(y − x), how far
    the descent has come, which makes it a learned data term too.

    ``blind`` is for depth images, where an edge of a metre is a hundred times the noise and would dominate the net, its
    gradient and the smoothing. Then f and s·m(y − x) are compressed by ρ(u) = 3 asinh(u/3), which hardly changes noise;
    the energy is ½‖R‖² + a⟨f, R⟩, without the square of af that smooths edges; and the net does not read the level,
    from which it would memorise the places of one room. As R(½R + af) ≥ −½(af)² and ρ grows like a logarithm, the data
    term bounds the sum from below wherever there is a reading.

    ``floor`` > 0 is for a range of noise levels: s = 1 / (σ + floor) for every image, σ being the noise of the
    features, P is divided by s², and the net reads log s as one more plane, the same at every pixel. So noise of every
    level has the same size for the net.

    ``precision=torch.bfloat16`` rounds the operands of the inner convolutions in training with ``Written``; prediction
    and the plain energy keep full precision. ``compiled`` fuses the formula of ∇E and its derivative by
    ``torch.compile`` on a GPU, if Triton is installed: they are some hundred small kernels, which take longer to launch
    than to run. On a CPU a compiled prior keeps full precision: without AVX-512 BF16 rounded numbers are slow there.
    """

    def __init__(
        self,
        width: int = 32,
        blocks: int = 2,
        *,
        scales: int = 3,
        scale: float = 1.0,
        floor: float = 0.0,
        blind: bool = False,
        precision: torch.dtype | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.net = UNet(width, blocks, (3 if blind else 4) + (floor > 0), scales)
        self.scale, self.floor, self.blind = scale, floor, blind
        self.precision, self.compiled = precision, compiled
        with torch.no_grad():  # little noise is found at first
            self.net.leave.weight.mul_(0.1)
            self.net.leave.bias.zero_()  # type: ignore[union-attr]
            # A feed-forward denoiser never moves y away from x, so it would leave these weights as noise in ∇E.
            self.net.enter.weight[:, -1].zero_()

    def forward(self, y: Tensor, features: Observed) -> Tensor:
        planes = self.planes(y, features)
        return self._energies(self.net(planes), planes, features)

    def scale_of(self, features: Observed) -> Tensor | float:  # (B, 1, 1, 1), or one for all
        """s, which brings the noise of an image near 1."""
        if not self.floor:
            return self.scale
        if not isinstance(features, NoisyObservation):
            raise ValueError("this model reads the noise level: features are (image, seen, noise), not (image, seen)")
        return 1 / (features.noise.abs() + self.floor)

    def denoised(self, y: Tensor, features: Observed) -> Tensor:  # (B, 1, H, W) -> (B, 1, H, W)
        """y − (R + af) / s, or y − R / s if blind: the net as a feed-forward denoiser."""
        if not (self.net.training and self._whole(y)):
            return self._denoised(self.net, y, features)
        return program_of(self)[1](self, y, *features) if self._compiles(y) else written_denoised(self, y, *features)

    def _denoised(self, net: Callable[[Tensor], Tensor], y: Tensor, features: Observed) -> Tensor:
        planes = self.planes(y, features)
        found = net(planes)
        return y - (found if self.blind else found + SHARE * planes[:, :1]) / self.scale_of(features)

    def planes(self, y: Tensor, features: Observed) -> Tensor:  # (B, 1, H, W) -> (B, 3 to 5, H, W)
        """What the net reads: f, the level unless blind, holes, log s if s is not fixed, and how far y has moved."""
        seen, scale = features.seen.to(y), self.scale_of(features)
        level = _window_sums(y) / _window_sums(torch.ones_like(y[:1]))
        fine, moved = scale * (y - level), scale * seen * (y - features.image)
        log_scale = [(0.5 * torch.log(self.floor * scale)).expand_as(y)] if isinstance(scale, Tensor) else []
        if self.blind:
            return torch.cat([_compressed(fine), 1 - seen, *log_scale, _compressed(moved)], 1)
        return torch.cat([fine, level - 0.5, 1 - seen, *log_scale, moved], 1)

    def _energies(self, found: Tensor, planes: Tensor, features: Observed) -> Tensor:  # (B, C, H, W) -> (B,)
        share = SHARE * planes[:, :1]
        noise = found * (0.5 * found + share) if self.blind else 0.5 * (found + share).square()
        energies, scale = noise.flatten(1).sum(1), self.scale_of(features)
        # Where s is the same for all images the weight of the prior holds 1/s².
        return energies / scale.flatten().square() if isinstance(scale, Tensor) else energies

    def formula(self, features: Observed) -> Formula | None:
        """∇E = (∂planes/∂y)ᵀ (Jᵀ(R + af) + a(R + af) on f's plane; aR if blind), J the derivative of the net."""
        if not self._whole(features.image):
            return None
        if self._compiles(features.image):
            return lambda y: program_of(self)[0](self, y, *features)
        net = self._written(features.image)
        return lambda y: self._slope(net, y, features)

    def _slope(self, net: WrittenUNet, y: Tensor, features: Observed) -> tuple[Tensor, Tensor]:
        planes = self.planes(y, features)
        found, pull_back = net(planes)
        noise = found + SHARE * planes[:, :1]
        slopes, scale = pull_back(noise).split(1, 1), self.scale_of(features)
        fine, moved, level = slopes[0], slopes[-1], [] if self.blind else [slopes[1]]
        fine = fine + SHARE * (found if self.blind else noise)
        if self.blind:
            fine, moved = fine * _compression(planes[:, :1]), moved * _compression(planes[:, -1:])
        # Bᵀ: the windows that a pixel lies in, each with its own count at the border of the image.
        count = _window_sums(torch.ones_like(y[:1]))
        spread = _window_sums((sum(level) - scale * fine) / count)
        slope = scale * (fine + features.seen * moved) + spread
        slope = slope / scale.square() if isinstance(scale, Tensor) else slope
        return slope, self._energies(found, planes, features)

    def _written(self, like: Tensor) -> WrittenUNet:
        low = like.is_cuda or (self.training and not self.compiled)
        return WrittenUNet(self.net, self.precision if low else None)

    def _whole(self, image: Tensor) -> bool:
        """Whether every scale of the net halves an even size."""
        return image.shape[-1] % self.net.unit == 0 and image.shape[-2] % self.net.unit == 0

    def _compiles(self, like: Tensor) -> bool:
        return self.compiled and self.training and like.is_cuda and torch.is_grad_enabled() and _TRITON


def written_slope(prior: UNetPrior, y: Tensor, *x: Tensor) -> tuple[Tensor, Tensor]:
    """∇P and P by the formula of ``prior``, as a function of tensors, for ``torch.compile``."""
    return prior._slope(prior._written(y), y, _observed(*x))


def written_denoised(prior: UNetPrior, y: Tensor, *x: Tensor) -> Tensor:
    """The feed-forward denoiser of ``prior`` by ``WrittenUNet``, as a function of tensors, for ``torch.compile``."""
    net = prior._written(y)
    return prior._denoised(lambda planes: net(planes)[0], y, _observed(*x))


def _observed(image: Tensor, seen: Tensor, *noise: Tensor) -> Observed:
    return NoisyObservation(image, seen, *noise) if noise else Observation(image, seen)


_PROGRAMS: WeakKeyDictionary[UNetPrior, tuple[Callable[..., Any], Callable[..., Any]]] = WeakKeyDictionary()
_HOW: dict[str, Any] = {"mode": "reduce-overhead", "dynamic": False}  # fused, and one launch for all of it


def program_of(prior: UNetPrior) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``written_slope`` and ``written_denoised``, compiled for one prior."""
    if prior not in _PROGRAMS:
        # torch.compile limits the programs of one code object: each prior gets a copy.
        own = (FunctionType(f.__code__.replace(), f.__globals__) for f in (written_slope, written_denoised))
        slope, denoised = (torch.compile(f, **_HOW) for f in own)
        _PROGRAMS[prior] = slope, denoised
    return _PROGRAMS[prior]


class DenoiserEnergy(Energy):
    """‖m(y − x)‖² + w/s² · P(y), P the prior, with w learned; ∇E by its formula for ``gradient=Written()``."""

    def __init__(self, prior: UNetPrior, weight: float) -> None:
        super().__init__()
        unit = 1.0 if prior.floor else prior.scale**2
        self.parts = nn.ModuleDict({"local": DataTerm(), "prior": Scaled(prior, weight / unit, learned=True)})

    def forward(self, y: Tensor, features: Observed) -> Tensor:
        return self.parts["local"](y, features) + self.parts["prior"](y, features)

    def terms(self) -> Iterator[Term]:
        for name, part in self.parts.items():
            yield name, part, False

    def formula(self, features: Observed) -> Formula | None:
        prior = self.net.formula(features)
        if prior is None:
            return None
        weight = self.parts["prior"].weight()  # type: ignore[operator, union-attr]

        def gradient(y: Tensor) -> tuple[Tensor, Tensor]:
            slope, energies = prior(y)
            apart = features.seen * (y - features.image)
            return 2 * apart + weight * slope, apart.square().flatten(1).sum(1) + weight * energies

        return gradient

    @property
    def net(self) -> UNetPrior:
        prior = self.parts["prior"].energy
        assert isinstance(prior, UNetPrior)
        return prior


class UNetDenoiser(nn.Module):
    """The net of a ``UNetPrior`` as a feed-forward predictor, Observation → image."""

    def __init__(self, prior: UNetPrior) -> None:
        super().__init__()
        self.prior = prior

    def forward(self, observation: Observed) -> Tensor:  # (B, 1, H, W) twice -> (B, 1, H, W)
        return self.prior.denoised(fill_pyramid(observation.image, observation.seen), observation)


def _compressed(u: Tensor) -> Tensor:
    return KNEE * torch.asinh(u / KNEE)


def _compression(compressed: Tensor) -> Tensor:
    """The slope of ``_compressed``, from its result."""
    return 1 / torch.cosh(compressed / KNEE)


def _window_sums(plane: Tensor) -> Tensor:  # (B, 1, H, W) -> (B, 1, H, W)
    """Sums over the window with zeros around the image, in units of the whole window: its own transpose."""
    if torch.compiler.is_exporting():  # the gradient of a pooling has no translation, that of a convolution has
        line = torch.full((1, 1, WINDOW, 1), 1 / WINDOW, dtype=plane.dtype, device=plane.device)
        margin = WINDOW // 2
        down = F.conv2d(plane, line, padding=(margin, 0))
        return F.conv2d(down, line.transpose(2, 3), padding=(0, margin))
    return F.avg_pool2d(plane, WINDOW, 1, WINDOW // 2)
