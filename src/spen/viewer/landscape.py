"""E on a plane through the descent: z(a, b) = z_0 + a·(z_T − z_0) + b·v, with the path drawn on it.

z are coordinates in which straight lines stay inside the domain: y itself for real numbers, log y on a simplex (softmax
is the inverse). v is orthogonal to z_T − z_0 and as long: the direction in which the path bends most or, if it does not
bend, the steepest one at the end. So y_0 lies at (0, 0) and y_T at (1, 0).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

import spen
from spen.domains import Reals, Simplex
from spen.protocols import Domain
from spen.tensors import tree_map
from spen.viewer.iterates import note

_CELLS = 2**19
"""Entries of y that are scored in one batch: a few dozen megabytes of activations per channel."""

_MARGIN = 0.5
"""How far the plane reaches beyond the path, in lengths of z_T − z_0."""


@dataclass(frozen=True)
class Slice:
    """Energies over a grid of the plane, and the path in its coordinates."""

    a: NDArray[np.float64]  # (m,)
    b: NDArray[np.float64]  # (n,)
    energies: NDArray[np.float64]  # (n, m)
    path: NDArray[np.float64]  # (T + 1, 2)
    path_energies: NDArray[np.float64]  # (T + 1,), at the iterates themselves
    captured: float  # the share of the path's squared length that lies in the plane

    @property
    def line(self) -> NDArray[np.float64]:  # (m,)
        """Energies on the straight line from y_0 to y_T and beyond (b = 0)."""
        return self.energies[int(np.abs(self.b).argmin())]


def show(model: spen.SPEN, x: Any, *, size: int, what: str, progress: Callable[[float], None] | None = None) -> str:
    """The figure of a slice as HTML, with a note below it; `what` names the model and the input."""
    sliced = slice_energy(model, x, size=size, progress=progress)
    steps, first, last = len(sliced.path) - 1, *(_signed(sliced.path_energies[t]) for t in (0, -1))
    return picture(figure(sliced), escape(f"Energy on a plane through the descent of {what}")) + note(
        f"{what}: {steps} steps, energy {first} → {last}; the plane holds {100 * sliced.captured:.1f} % of the path."
    )


def slice_energy(
    model: spen.SPEN,
    x: Any,  # a batch of one
    *,
    size: int = 31,
    progress: Callable[[float], None] | None = None,
) -> Slice:
    """Descend on x and score `size` × `size` points of the plane; `progress` is called with the share that is done."""
    if size < 3:
        raise ValueError(f"a slice needs at least 3 points a side, not {size}")
    domain = model.minimizer.domain
    with torch.no_grad():
        features = model.features(x)
        trajectory = model(x)
        energies = trajectory.energies[:, 0].double().cpu().numpy()
    outputs = [trajectory.start, *trajectory.outputs]
    if len(outputs[0]) != 1:
        raise ValueError(f"a slice is drawn for one example, not for {len(outputs[0])}")
    points = torch.stack([_flat(domain, y) for y in outputs])  # (T + 1, N)
    along = points[-1] - points[0]
    length = along.norm()
    if not float(length) > 0:
        raise ValueError("the descent did not move, so there is no plane to draw")

    def energy(z: Tensor) -> Tensor:  # (k, N) -> (k,)
        y = _point(domain, z.view(len(z), *outputs[0].shape[1:])).to(outputs[0].dtype)
        return model.energy(y, tree_map(lambda f: f.expand(len(z), *f.shape[1:]), features))

    across = _across(points, along, energy)
    path = torch.stack([(points - points[0]) @ along, (points - points[0]) @ across], 1) / length**2
    off = points - points[0] - path[:, :1] * along - path[:, 1:] * across
    captured = 1 - float(off.square().sum() / (points - points[0]).square().sum())
    a, b = (
        torch.linspace(float(p.min()) - _MARGIN, float(p.max()) + _MARGIN, size, dtype=torch.float64) for p in path.T
    )
    b = b - b[b.abs().argmin()]  # the line b = 0 is shown on its own, so it must be one of the rows
    places = torch.cartesian_prod(b, a).split(max(1, _CELLS // len(along)))  # rows of b, columns of a
    values = []
    with torch.no_grad():
        for done, part in enumerate(places, 1):
            values.append(energy(points[0] + part[:, 1:] * along + part[:, :1] * across).double().cpu())
            if progress is not None:
                progress(done / len(places))
    grid = torch.cat(values).view(size, size).numpy()
    return Slice(a.numpy(), b.numpy(), grid, path.numpy(), energies, captured)


def figure(sliced: Slice) -> Figure:
    """Left the plane with the path, right the energies along the path and along the straight line."""
    drawn = Figure(figsize=(10.4, 4.6), dpi=160, layout="constrained")
    left, right = drawn.subplots(1, 2, width_ratios=(1.35, 1))
    lowest = min(float(sliced.energies.min()), float(sliced.path_energies.min()))
    # Square roots: the landscape is flat near the answer, where the path is, and steep elsewhere.
    height = np.sqrt(np.maximum(sliced.energies - lowest, 0))
    # One steep corner must not use half of the colours.
    levels = np.linspace(0, max(float(np.quantile(height, 0.97)), 1e-9), 22)
    shade = left.contourf(sliced.a, sliced.b, height, levels=levels, cmap="viridis", extend="max")
    left.contour(sliced.a, sliced.b, height, levels=levels, colors="white", linewidths=0.35, alpha=0.5)
    left.plot(*sliced.path.T, color="white", linewidth=3.4, solid_capstyle="round")
    left.plot(*sliced.path.T, color="#d9480f", linewidth=1.8, marker="o", markersize=4.5)
    for place, name, side in ((sliced.path[0], "$y_0$", -1), (sliced.path[-1], "$y_T$", 1)):
        left.annotate(
            name,
            place,
            xytext=(10 * side, -10),
            textcoords="offset points",
            ha="right" if side < 0 else "left",
            va="top",
            color="black",
            fontsize=12,
            bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
        )
    left.set(xlabel="along $y_T - y_0$", ylabel="across, in the same unit", title="energy on the plane")
    bar = drawn.colorbar(shade, ax=left, pad=0.02)
    marks = np.linspace(0, levels[-1], 6)
    bar.set_ticks(marks.tolist(), labels=[_signed(lowest + mark**2) for mark in marks])
    right.plot(sliced.a, sliced.line, color="#3b6fd4", linewidth=1.8, label="on the straight line")
    right.plot(sliced.path[:, 0], sliced.path_energies, "o-", color="#d9480f", markersize=4.5, label="the descent")
    right.set(xlabel="along $y_T - y_0$", title="energy on the way")
    right.legend(frameon=False)
    right.grid(alpha=0.2)
    right.spines[["top", "right"]].set_visible(False)
    return drawn


def picture(drawn: Figure, words: str) -> str:
    """The figure as an image element; `words` are its alternative text."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png")
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return f'<img class="plot" alt="{words}" src="data:image/png;base64,{encoded}">'


def _signed(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _flat(domain: Domain, y: Tensor) -> Tensor:  # (1, …) -> (N,) float64
    if isinstance(domain, Simplex):
        # Probabilities of 1e-30 and 1e-40 are the same answer; their logarithms must not decide the plane.
        return y.double().clamp_min(1e-12).log().flatten()
    if isinstance(domain, Reals):
        return y.double().flatten()
    raise ValueError(f"a slice is drawn over real numbers or a simplex, not over {type(domain).__name__}")


def _point(domain: Domain, z: Tensor) -> Tensor:
    return torch.softmax(z, domain.dim) if isinstance(domain, Simplex) else z


def _across(points: Tensor, along: Tensor, energy: Callable[[Tensor], Tensor]) -> Tensor:  # (N,), as long as `along`
    """The second direction of the plane."""
    unit = along / along.norm()
    rest = points - points[0]
    rest = rest - (rest @ unit)[:, None] * unit
    if float(rest.norm()) > 1e-4 * float(along.norm()):
        direction = torch.linalg.svd(rest, full_matrices=False).Vh[0]
        bend = rest[rest.norm(dim=1).argmax()]
        direction = direction * torch.sign(direction @ bend)
    else:
        with torch.enable_grad():
            end = points[-1:].clone().requires_grad_()
            (direction,) = torch.autograd.grad(energy(end).sum(), end)
        direction = direction[0] - (direction[0] @ unit) * unit
        if not float(direction.norm()) > 0:
            direction = torch.randn(len(unit), generator=torch.Generator().manual_seed(0), dtype=unit.dtype).to(unit)
            direction = direction - (direction @ unit) * unit
    return direction / direction.norm() * along.norm()
