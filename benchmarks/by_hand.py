"""The loop most people write: double backprop through everything, with or without torch.utils.checkpoint a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchmarks.ceilings import precise
from benchmarks.problems import Problem


def unrolled_loss(problem: Problem, *, checkpointed: bool = False) -> Tensor:
    """(1/T) Σ_t ℓ(y_t, y*) / (T − t + 1), with dE/dy of every step on the graph."""
    energy, squash, steps = problem.model.energy, problem.squash, problem.steps
    features = problem.model.features(problem.x)
    z = problem.model.init(features)
    rates: Any = problem.model.minimizer.rule.rates()  # type: ignore[operator]

    def step(z: Tensor, h: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            y = squash(z)
            point = y.view_as(y) if y.requires_grad else y.detach().requires_grad_()
            (g,) = torch.autograd.grad(energy(point, features).sum(), point, create_graph=True)
        h = problem.decay * h + g
        return z - rate * h, h

    h, total = torch.zeros_like(z), torch.zeros((), device=z.device, dtype=z.dtype)
    for t in range(steps):
        z, h = checkpoint(step, z, h, rates[t], use_reentrant=False) if checkpointed else step(z, h, rates[t])
        total = total + problem.loss(squash(z), problem.target).mean() / (steps - t) / steps
    return total


def reference_gradients(
    problem: Problem, precisions: Sequence[str] = ("float64", "float32")
) -> tuple[list[Tensor], str]:
    """The gradients that everyone is compared with: by hand, in the first precision that fits, without TF32."""
    failures = []
    for name in precisions:
        try:
            with precise(name), _without_autotuning():
                exact = problem.converted(getattr(torch, name))
                return _mean([p.gradients(unrolled_loss(p, checkpointed=True)) for p in exact.sliced()]), name
        except RuntimeError as error:  # out of memory included
            failures.append(f"{name}: {str(error).splitlines()[0]}")
    raise RuntimeError("; ".join(failures))


@contextmanager
def _without_autotuning() -> Iterator[None]:
    """Trying every algorithm of a double-precision convolution takes longer than the slowest of them."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _mean(slices: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(parts).mean(0) for parts in zip(*slices, strict=True)]
