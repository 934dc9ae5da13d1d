"""Energies that count, bytes that autograd keeps, and the gradients of a small training step."""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Energy, Scaled, Sum
from spen.protocols import GradientStrategy
from spen.rules import Momentum
from spen.tasks.denoising.energy import DataTerm, DeepPrior, Observation


class Counting(Energy):
    """Counts the calls of an energy and the rows it was given, and the backward passes through it."""

    def __init__(self, energy: nn.Module) -> None:
        super().__init__()
        self.energy = energy
        self.rows: list[int] = []

    @property
    def calls(self) -> int:
        return len(self.rows)

    def forward(self, y: Tensor, features: Any) -> Tensor:
        self.rows.append(y.shape[0])
        return self.energy(y, features)


class _Kept:
    """Lives as long as autograd keeps the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Saved:
    """The distinct storages that autograd keeps for a backward pass that has not run yet."""

    def __init__(self) -> None:
        self._kept: weakref.WeakSet[_Kept] = weakref.WeakSet()

    @property
    def bytes(self) -> int:
        """What is kept beside parameters: they are there anyway."""
        tensors = [k.tensor for k in self._kept if not isinstance(k.tensor, nn.Parameter)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values())

    def pack(self, tensor: Tensor) -> _Kept:
        kept = _Kept(tensor)
        self._kept.add(kept)
        return kept


@contextmanager
def saved_for_backward() -> Iterator[Saved]:
    saved = Saved()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda kept: kept.tensor):
        yield saved


def gradients(energy: nn.Module, strategy: GradientStrategy, x: Tensor, steps: int = 3) -> Tensor:
    """Every parameter's gradient of a loss on all iterates, one after another, from a descent with momentum."""
    minimizer = spen.Minimizer(Reals(), Momentum(steps, 0.02, decay=0.25, learn_rates=True), strategy)
    total = sum(y.square().mean() for y in minimizer(energy, x, torch.zeros_like(x)).outputs)
    assert isinstance(total, Tensor)
    wanted = [*energy.parameters(), *minimizer.parameters()]
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, wanted, allow_unused=True) if g is not None])


def prior(width: int = 16, size: int = 5) -> Energy:
    """A convolutional energy with a learned weight, the same every time."""
    torch.manual_seed(0)
    return Scaled(DeepPrior(width, size, temperature=5.0), 0.1, learned=True)


class _Image(nn.Module):
    def forward(self, features: Observation) -> Tensor:
        return features.image


def denoiser(prior: nn.Module, steps: int, gradient: GradientStrategy) -> spen.SPEN:
    """The denoiser of Sec. 6.1: a data term and a prior, from the noisy image on."""
    rule = Momentum(steps, 0.05, decay=0.25, learn_rates=True)
    energy = Sum(local=DataTerm(), prior=Scaled(prior, 0.05, learned=True))
    return spen.SPEN(energy=energy, init=_Image(), minimizer=spen.Minimizer(Reals(), rule, gradient))


def distance(found: Tensor, exact: Tensor) -> float:
    """‖found − exact‖ / ‖exact‖."""
    return float((found - exact).norm() / exact.norm())


def docs_script(name: str) -> Any:
    """A program of docs/scripts as a module."""
    path = Path(__file__).parents[1] / "docs" / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
