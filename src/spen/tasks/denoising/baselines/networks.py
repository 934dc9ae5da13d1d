"""Feed-forward nets, Observation → image: a convnet of the DeepPrior's shape, and unrolled proximal iterations.

They are the Init of a SPEN, trained with the ``Feedforward`` objective.

Both nets read the image with its holes filled by ``fill_pyramid``, which has no parameters and passes gradients. The
convnet also reads where the holes were, as a second channel that is 0 where there is a reading: without holes it is the
one-channel net. The proximal net needs no channel: its data term has m = 0 in holes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.energies import Softplus
from spen.parameters import Positive
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.holes import fill_pyramid


class ConvNet(nn.Module):
    """7×7×32, SoftPlus, 7×7×32, SoftPlus, 1×1×1: the DeepPrior without its pooling (Sec. 6.1, 37.0 dB there).

    ``scale`` multiplies the input and divides the output; choose it so that the noise is near 0.05 … 0.1. ``depth``
    counts the wide convolutions. With ``residual`` the net adds to its input and starts as the identity. ``blind``
    removes the mean of the first kernels, so that the net sees differences alone and maps x + c to y + c; it needs
    ``residual``.
    """

    def __init__(
        self,
        width: int = 32,
        size: int = 7,
        depth: int = 2,
        *,
        temperature: float = 25.0,
        scale: float = 1.0,
        residual: bool = True,
        blind: bool = True,
        mask: bool = True,
    ) -> None:
        super().__init__()
        if depth < 1 or width < 1:
            raise ValueError(f"a convnet has at least one layer of one channel, not depth {depth} and width {width}")
        if blind and not residual:
            raise ValueError("a net that is blind to absolute values cannot answer with them; use residual=True")
        _check_size_and_scale(size, scale)
        self.first = nn.Conv2d(2 if mask else 1, width, size)
        self.rest = nn.ModuleList(nn.Conv2d(width, width, size) for _ in range(depth - 1))
        self.last = nn.Conv2d(width, 1, 1)
        self.activation = Softplus(temperature)
        self.scale, self.margin = scale, size // 2
        self.residual, self.blind, self.mask = residual, blind, mask
        for layer in (self.first, *self.rest):
            _start_responsive(layer)
        if residual:
            nn.init.zeros_(self.last.weight)
            assert self.last.bias is not None
            nn.init.zeros_(self.last.bias)

    def forward(self, observation: Observation) -> Tensor:  # (B, 1, H, W) twice -> (B, 1, H, W)
        _check_observation(observation, self.margin)
        image = self.scale * fill_pyramid(*observation)
        hidden = torch.cat([image, 1 - observation.seen.to(image)], 1) if self.mask else image
        hidden = self.activation(F.conv2d(_reflected(hidden, self.margin), self._first_kernels(), self.first.bias))
        for layer in self.rest:
            hidden = self.activation(layer(_reflected(hidden, self.margin)))
        answer = self.last(hidden)
        return (image + answer if self.residual else answer) / self.scale

    def _first_kernels(self) -> Tensor:
        if not self.blind:
            return self.first.weight
        image, holes = self.first.weight[:, :1], self.first.weight[:, 1:]
        return torch.cat([image - image.mean((2, 3), keepdim=True), holes], 1)


class ProximalNet(nn.Module):
    """T primal-dual iterations for min_y ‖m·(y − x)‖² + Σ_k λ_k ‖f_k ∗ y‖₁ with everything in them learned.

    Proximal deep structured models (Wang, Fidler and Urtasun, NIPS 2016), with the iterations of Chambolle and Pock
    (2011) for K y = (f_k ∗ y)_k:

        u ← Π_{|u_k| ≤ λ_k}(u + σ_t K ȳ)                        the dual prox: projection onto the ℓ∞ ball
        y ← (y − τ_t Kᵀu + 2τ_t m x) / (1 + 2τ_t m)             the prox of the masked quadratic, in closed form
        ȳ ← y + (y − y_before)

    Filters and λ are shared by the iterations, the steps σ_t and τ_t are not. Filters start as the lowest cosines of
    the DCT and keep a zero mean in training: a filter that responds to absolute depth responds a hundred times as much
    as to noise, and one step of Adam on it would undo all others. K pads by reflection and Kᵀ is its exact adjoint, so
    that with enough iterations and στ‖K‖² < 1 the minimum is reached. ``scale`` is as in ``ConvNet``.
    """

    def __init__(
        self,
        filters: int = 32,
        size: int = 7,
        iterations: int = 5,
        *,
        scale: float = 1.0,
        strength: float = 0.05,
        step: float = 0.8,
    ) -> None:
        """``strength`` is λ at the start, ``step`` is σ and τ at the start, where ‖K‖ ≈ 1.1."""
        super().__init__()
        if iterations < 1 or filters < 1:
            raise ValueError(f"a proximal net needs an iteration and a filter, not {iterations} and {filters}")
        _check_size_and_scale(size, scale)
        if filters > size * size - 1:
            raise ValueError(
                f"{size}×{size} pixels have {size * size - 1} cosines without a mean, but {filters} filters"
            )
        kernel = lowest_cosines(filters, size)
        self.kernel = nn.Parameter(kernel / spectral_bound(kernel))
        self.thresholds = Positive([strength] * filters, learned=True, name="the strength of a proximal net")
        self.dual_steps = Positive([step] * iterations, learned=True, name="the step of a proximal net")
        self.primal_steps = Positive([step] * iterations, learned=True, name="the step of a proximal net")
        self.scale, self.margin = scale, size // 2

    def forward(self, observation: Observation) -> Tensor:  # (B, 1, H, W) twice -> (B, 1, H, W)
        return self.iterates(observation)[-1]

    def iterates(self, observation: Observation) -> list[Tensor]:  # (B, 1, H, W) each
        """y_0, …, y_T, with y_0 the image with its holes filled."""
        _check_observation(observation, self.margin)
        seen = observation.seen.to(observation.image)
        x = self.scale * observation.image
        y = ahead = self.scale * fill_pyramid(observation.image, seen)
        dual = torch.zeros((), dtype=x.dtype, device=x.device)
        radius = self.thresholds()[:, None, None]
        path = [y]
        for sigma, tau in zip(self.dual_steps(), self.primal_steps(), strict=True):
            dual = project_linf(dual + sigma * self.analyse(ahead), radius)
            before, y = y, prox_masked_square(y - tau * self.synthesise(dual), x, seen, tau)
            ahead = y + (y - before)
            path.append(y)
        return [y / self.scale for y in path]

    def filters(self) -> Tensor:  # (K, 1, size, size)
        """f_k, of zero mean."""
        return self.kernel - self.kernel.mean((2, 3), keepdim=True)

    def analyse(self, y: Tensor) -> Tensor:  # (B, 1, H, W) -> (B, K, H, W)
        """K y: the responses of the filters."""
        return F.conv2d(_reflected(y, self.margin), self.filters())

    def synthesise(self, dual: Tensor) -> Tensor:  # (B, K, H, W) -> (B, 1, H, W)
        """Kᵀu: the transposed convolution, its margins folded back to where reflection took them from."""
        return fold_reflected(F.conv_transpose2d(dual, self.filters()), self.margin)


def project_linf(dual: Tensor, radius: Tensor) -> Tensor:
    """argmin_{|v| ≤ r} ‖v − u‖²: the prox of the conjugate of r‖·‖₁."""
    return torch.maximum(torch.minimum(dual, radius), -radius)


def prox_masked_square(point: Tensor, x: Tensor, seen: Tensor, step: Tensor | float) -> Tensor:
    """argmin_y ‖m·(y − x)‖² + ‖y − v‖² / 2τ = (v + 2τ m x) / (1 + 2τ m), for m of zeros and ones."""
    pull = 2 * step * seen
    return (point + pull * x) / (1 + pull)


def fold_reflected(padded: Tensor, margin: int) -> Tensor:  # (…, H + 2·margin, W + 2·margin) -> (…, H, W)
    """The adjoint of reflection padding: what lies in the margins is added to the pixels it was copied from."""
    if margin == 0:
        return padded
    for axis in (-2, -1):
        length = padded.shape[axis] - 2 * margin
        core = padded.narrow(axis, margin, length)
        low = padded.narrow(axis, 0, margin).flip(axis)
        high = padded.narrow(axis, margin + length, margin).flip(axis)
        padded = core + _placed(low, axis, 1, length) + _placed(high, axis, length - 1 - margin, length)
    return padded


def _placed(part: Tensor, axis: int, start: int, length: int) -> Tensor:
    after = length - start - part.shape[axis]
    return F.pad(part, (0, 0, start, after) if axis == -2 else (start, after))


def lowest_cosines(count: int, size: int) -> Tensor:  # (count, 1, size, size)
    """The ``count`` lowest frequencies of the two-dimensional DCT, the constant left out; orthonormal."""
    place = torch.arange(size, dtype=torch.double) + 0.5
    waves = torch.cos(math.pi / size * torch.arange(size)[:, None] * place)
    waves = waves / waves.norm(dim=1, keepdim=True)
    pairs = ((a, b) for a in range(size) for b in range(size) if a + b)
    order = sorted(pairs, key=lambda ab: (ab[0] ** 2 + ab[1] ** 2, ab))
    return torch.stack([torch.outer(waves[a], waves[b]) for a, b in order[:count]])[:, None].float()


def spectral_bound(kernel: Tensor, grid: int = 64) -> Tensor:  # (K, 1, size, size) -> ()
    """max_ω (Σ_k |f̂_k(ω)|²)^½ on a grid of frequencies: ‖K‖ on an endless image; reflection adds a tenth."""
    return torch.fft.fft2(kernel, s=(grid, grid)).abs().square().sum((0, 1)).max().sqrt()


def _start_responsive(layer: nn.Module) -> None:
    """He's variance, and kernels of zero mean, which start without a response to absolute depth."""
    assert isinstance(layer, nn.Conv2d)
    assert layer.bias is not None
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    with torch.no_grad():
        layer.weight -= layer.weight.mean((2, 3), keepdim=True)


def _reflected(image: Tensor, margin: int) -> Tensor:
    return F.pad(image, (margin,) * 4, mode="reflect") if margin else image


def _check_size_and_scale(size: int, scale: float) -> None:
    if size < 1 or size % 2 == 0:
        raise ValueError(f"a filter must have a centre: its size must be odd, not {size}")
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"the scale must be positive and finite, not {scale}")


def _check_observation(observation: Observation, margin: int) -> None:
    image, seen = observation
    if image.dim() != 4 or image.shape[1] != 1 or image.shape != seen.shape:
        raise ValueError(
            f"image has shape {tuple(image.shape)} and seen {tuple(seen.shape)}, but both must be (B, 1, H, W)"
        )
    if min(image.shape[-2:]) <= margin:
        height, width = image.shape[-2:]
        raise ValueError(f"an image of {width}×{height} is too small: reflection by {margin} needs {margin + 1} pixels")
