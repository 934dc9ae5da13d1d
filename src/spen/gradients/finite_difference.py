"""H v ≈ (∇E(y + εv) − ∇E(y − εv)) / 2ε: first derivatives alone (Domke 2012; the paper's own choice, Sec. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from spen.descent.potential import Potential, ScoreFunction
from spen.energies.compose import evaluate
from spen.gradients.replay import Replayed
from spen.gradients.second_order import Products, added, exact_product, vjp
from spen.gradients.snapshots import drawing_from, generators
from spen.tensors import flat, tree_map

# The cube root of the rounding error balances it against the curvature of the gradient, for y of order one.
_RADII = {torch.float64: 3e-6, torch.float32: 1e-2}
_PEAK = 4.0  # no coordinate is moved by more than this many radii, however spiked the direction


class FiniteDifference(Replayed):
    """Two first-order evaluations per step give H v and ∂_θ⟨v, ∇E⟩ together.

    With ε_i chosen per example so that y moves by ``radius`` in the root mean square of its coordinates,
    one backward pass of Σ_i (E(y_i + ε_i v_i) − E(y_i − ε_i v_i)) / 2ε_i holds both products. Works with energies
    that can be differentiated only once: compiled, fused attention, custom Functions. Terms marked ``closed_form``
    (an entropy) are differentiated exactly, since y log y bends too sharply near 0 for any radius.

    ``doubled=True`` evaluates both points as one batch of twice the size (time); ``False`` one after the other
    (memory), as it also does for an energy that draws random numbers. Under autocast the differences are taken without
    it. ``radius=None`` picks 1e-2 in single and 3e-6 in double precision, for y of order one.
    """

    exact = False

    def __init__(self, radius: float | None = None, *, doubled: bool = True) -> None:
        if radius is not None and not radius > 0:
            raise ValueError(f"the radius must be positive, not {radius}")
        self.radius = radius
        self.doubled = doubled

    def product(self, potential: Potential, point: Tensor, direction: Tensor) -> Products:
        black_box, closed = potential.split()
        result: Products = None, [None] * (len(potential.feature_tensors()) + len(potential.parameters()))
        lowered = torch.is_autocast_enabled(point.device.type)
        # Differences of numbers with three digits are noise: what autocast would lower stays in the type of y.
        with torch.autocast(point.device.type, enabled=False) if lowered else nullcontext():
            if black_box is not None:
                energy = _in_type_of(point, black_box) if lowered else black_box
                result = self._difference(potential, point, direction, energy)
        if closed is not None:
            result = added(result, exact_product(potential, point, direction, closed))
        return result

    def _difference(self, potential: Potential, point: Tensor, direction: Tensor, energy: ScoreFunction) -> Products:
        radius = self._radius(point.dtype)
        rows = flat(direction)
        size = torch.maximum(rows.square().mean(1).sqrt(), rows.abs().amax(1) / _PEAK)
        size = torch.where(size < torch.finfo(size.dtype).tiny, 0.0, size)  # 1/size would overflow
        reach = torch.where(size > 0, radius / size, 0.0)  # ε_i
        weight = size / (2 * radius)  # 1 / 2ε_i; 0 where there is no direction
        shift = reach.view(-1, *[1] * (direction.dim() - 1)) * direction
        # In one pass the two points would be scored by different random numbers.
        difference = self._one_pass if self.doubled and not potential.draws else self._two_passes
        return difference(potential, point.detach(), shift, weight, energy)

    def _one_pass(
        self, potential: Potential, point: Tensor, shift: Tensor, weight: Tensor, energy: ScoreFunction
    ) -> Products:
        targets: list[Tensor] = [*potential.feature_tensors(), *potential.parameters()]
        with torch.enable_grad():
            both = torch.cat([point + shift, point - shift]).requires_grad_()
            energies = potential.doubled()(both, energy)
            total = (energies * torch.cat([weight, -weight])).sum()
        at_both, *rest = vjp([total], [torch.ones_like(total)], [both, *targets])
        if at_both is None:
            return None, rest
        at_plus, at_minus = at_both.chunk(2)
        if potential.again:
            self._require_derivative(
                potential, point, energies.detach().chunk(2), (at_plus, at_minus), shift, weight, energy
            )
        return at_plus + at_minus, rest

    def _two_passes(
        self, potential: Potential, point: Tensor, shift: Tensor, weight: Tensor, energy: ScoreFunction
    ) -> Products:
        targets: list[Tensor] = [*potential.feature_tensors(), *potential.parameters()]
        results, values = [], []
        drawn = generators(point.device) if potential.draws else ()
        for moved, signed in ((point + shift, weight), (point - shift, -weight)):
            with torch.enable_grad(), drawing_from(drawn, point.device):
                leaf = moved.requires_grad_()
                energies = potential(leaf, energy)
                total = (energies * signed).sum()
            at_leaf, *rest = vjp([total], [torch.ones_like(total)], [leaf, *targets])
            results.append((at_leaf, rest))
            values.append(energies.detach())
        at_plus, at_minus = (at_leaf for at_leaf, _ in results)
        if potential.again and at_plus is not None and at_minus is not None:
            self._require_derivative(potential, point, values, (at_plus, at_minus), shift, weight, energy)
        return added(*results)

    def _require_derivative(
        self,
        potential: Potential,
        point: Tensor,
        energies: Sequence[Tensor],
        slopes: tuple[Tensor, Tensor],
        shift: Tensor,
        weight: Tensor,
        energy: ScoreFunction,
    ) -> None:
        """Refuse an energy whose gradient is not the derivative of its value: the difference is meaningless then.

        ``energies`` are E₊ and E₋, ``slopes`` w∇E₊ and −w∇E₋ with w = 1/2ε. E₊ − E₋ lies between the slopes of both
        ends, up to the rounding of E.
        """
        plus, minus = (flat(s * shift).sum(1) for s in slopes)
        found, claimed = weight * (energies[0] - energies[1]), plus - minus
        # Products on a GPU may be in TF32, and an energy in single precision for y in double has a radius of its own.
        single = shift.dtype is torch.float64 and self.radius is not None
        unit = 1e-3 if shift.is_cuda else 100 * torch.finfo(torch.float32 if single else shift.dtype).eps
        allowed = 0.1 * (found.abs() + claimed.abs()) + (plus + minus).abs()
        allowed = allowed + unit * weight * (energies[0].abs() + energies[1].abs())

        def wrong() -> bool:
            return bool(2 * ((found - claimed).abs() > allowed).sum() > (weight > 0).sum())

        lost = flat((point + shift) - point - shift).norm(dim=1)
        if bool((lost > 0.1 * flat(shift).norm(dim=1)).any()):
            raise ValueError(
                f"the radius {self._radius(point.dtype):g} of the finite differences is lost in the rounding of y, "
                f"which reaches {float(point.abs().max()):.0e}: give a larger one, or use gradient=Checkpointed()"
            )
        if not wrong():
            return
        allowed = allowed + 4 * weight * self._noise(potential, point, shift, energy)
        if wrong():
            raise RuntimeError(
                f"dE/dy of the energy {type(potential.energy).__name__} is not the derivative of E, so finite "
                "differences cannot differentiate it: it detaches something that depends on y, changes a gradient in a "
                "hook or a custom Function, or draws from a generator of its own. Use gradient=Checkpointed()"
            )

    def _noise(self, potential: Potential, point: Tensor, shift: Tensor, energy: ScoreFunction) -> Tensor:
        """(B,): how far E is from smooth. An energy that is a small difference of large sums has their rounding.

        0 for an energy that has another value at every evaluation.
        """

        def value(part: float) -> Tensor:
            with torch.enable_grad():  # an energy may register hooks
                return potential((point + part * shift).requires_grad_(), energy).detach()

        total = torch.zeros_like(value(1.0))
        for side in (-1.0, 1.0):
            first, middle, last, again = (value(side * part) for part in (0.9, 1.0, 1.1, 1.0))
            bend = (first - 2 * middle + last).abs()
            total = total + torch.where((middle - again).abs() > 0.1 * bend, 0.0, bend)
        return total

    def _radius(self, dtype: torch.dtype) -> float:
        if self.radius is not None:
            return self.radius
        if dtype not in _RADII:
            raise ValueError(f"finite differences in {dtype} are noise; descend in float32 or give a radius")
        return _RADII[dtype]


def _in_type_of(point: Tensor, energy: ScoreFunction) -> ScoreFunction:
    """The energy of features in the type of y: those that F has computed under autocast have a shorter one."""

    def widened(y: Tensor, features: Any, t: Tensor | None = None) -> Tensor:
        return evaluate(energy, y, tree_map(lambda f: f.to(point.dtype) if f.is_floating_point() else f, features), t)

    return widened
