"""One training step of the DeepPrior of Sec. 6.1 by every strategy, beside what most people write by hand.

    python -m benchmarks --device cpu
    python -m benchmarks --device cuda --batch 32 --height 96 --width 128 --steps 20

Every gradient is compared with plain double backprop in the same precision; peak memory is the card's, or on a CPU the
bytes autograd keeps between forward and backward.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spen
from spen.domains import Reals
from spen.energies import Scaled, Sum
from spen.gradients import Auto, Checkpointed, Exact, FiniteDifference, ForwardOverReverse, GradientStrategy
from spen.rules import Momentum
from spen.tasks.denoising.priors import DataTerm, DeepPrior, Observation

DECAY, RATE = 0.25, 0.05


@dataclass
class Row:
    """One way to train, measured."""

    name: str
    milliseconds: float
    megabytes: float
    error: float


class First(nn.Module):
    def forward(self, features: Observation) -> Tensor:
        return features.image


def by_hand(energy: nn.Module, x: Observation, target: Tensor, steps: int, *, checkpointed: bool) -> Tensor:
    """The loop most people write: create_graph=True at every step, optionally inside torch.utils.checkpoint."""

    def step(y: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = y.view_as(y) if y.requires_grad else y.detach().requires_grad_()
            (g,) = torch.autograd.grad(energy(point, x).sum(), point, create_graph=True)
        h = DECAY * h + g
        return y - RATE * h, h

    y, h, total = x.image, torch.zeros_like(x.image), torch.zeros((), device=x.image.device)
    for t in range(steps):
        y, h = checkpoint(step, y, h, use_reentrant=False) if checkpointed else step(y, h)
        total = total + (y - target).square().mean() / (steps - t) / steps
    return total


def by_spen(energy: nn.Module, x: Observation, target: Tensor, steps: int, strategy: GradientStrategy) -> Tensor:
    minimizer = spen.Minimizer(Reals(), Momentum(steps, RATE, decay=DECAY), strategy).to(x.image.device)
    outputs = minimizer(energy, x, x.image).outputs
    return sum((y - target).square().mean() / (steps - t) / steps for t, y in enumerate(outputs))  # type: ignore[return-value]


def measure(
    name: str, loss: Callable[[], Tensor], energy: nn.Module, reference: Tensor | None, device: str, repeats: int
) -> tuple[Row, Tensor]:
    parameters = list(energy.parameters())

    def once() -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss(), parameters)])

    gradient = once()
    memory = _peak(once, loss, device)
    times = []
    for _ in range(repeats):
        _wait(device)
        began = time.perf_counter()
        once()
        _wait(device)
        times.append(time.perf_counter() - began)
    error = 0.0 if reference is None else float((gradient - reference).norm() / reference.norm())
    return Row(name, 1000 * statistics.median(times), memory / 2**20, error), gradient


def _peak(once: Callable[[], Tensor], loss: Callable[[], Tensor], device: str) -> float:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        once()
        return torch.cuda.max_memory_allocated() - before
    kept: weakref.WeakSet[_Kept] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Kept:
        holder = _Kept(tensor)
        kept.add(holder)
        return holder

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor):
        total = loss()
    sizes = {k.tensor.untyped_storage().data_ptr(): k.tensor.untyped_storage().nbytes() for k in kept}
    del total
    return sum(sizes.values())


class _Kept:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def run(device: str, batch: int, height: int, width: int, steps: int, repeats: int) -> list[Row]:
    """All ways on the same weights and inputs."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    energy = Sum(local=DataTerm(), prior=Scaled(DeepPrior(), 0.05, learned=True)).to(device)
    image = torch.rand(batch, 1, height, width, device=device)
    x, target = Observation(image, torch.ones_like(image)), nn.functional.avg_pool2d(image, 3, 1, 1)
    ways: list[tuple[str, Callable[[], Tensor]]] = [
        ("plain double backprop", lambda: by_hand(energy, x, target, steps, checkpointed=False)),
        ("torch.utils.checkpoint", lambda: by_hand(energy, x, target, steps, checkpointed=True)),
    ]
    strategies: list[GradientStrategy] = [
        Exact(),
        Checkpointed(),
        FiniteDifference(),
        FiniteDifference(doubled=False),
        ForwardOverReverse(),
        Auto(),
    ]
    ways += [(f"spen {s}", lambda s=s: by_spen(energy, x, target, steps, s)) for s in strategies]  # type: ignore[misc]
    rows, reference = [], None
    for name, loss in ways:
        row, gradient = measure(name if "Auto" not in name else "spen Auto()", loss, energy, reference, device, repeats)
        reference = gradient if reference is None else reference
        rows.append(row)
        print(f"{row.name:48s} {row.milliseconds:9.1f} ms {row.megabytes:9.1f} MiB  error {row.error:.0e}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--height", type=int, default=48)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    a = parser.parse_args()
    rows = run(a.device, a.batch, a.height, a.width, a.steps, a.repeats)
    if a.out:
        a.out.write_text(json.dumps([asdict(r) for r in rows], indent=1))


if __name__ == "__main__":
    main()
