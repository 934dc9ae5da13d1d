"""Derivatives of a network without a descent: a training step against torch.autograd.grad(create_graph=True).

    python -m benchmarks.derivatives

An interatomic potential that learns energies and forces, and a network for Burgers' equation, whose residual has a
second derivative. In turns; by value in float64 beside.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from benchmarks.ceilings import precise, wait
from benchmarks.kinds import FULL, SMALL, TOY
from benchmarks.measure import errors, in_turns, ratio
from benchmarks.results import add_size, parser_of, write_measured
from benchmarks.table import markdown
from spen.derivatives import Derivatives

WARM_UP = 4  # calls until programs run: plainly, watched, compiled


class Potential(nn.Module):
    """Σ over pairs of a network of the distance, in radial basis functions. y (B, atoms, 3) -> (B,)."""

    def __init__(self, atoms: int, width: int, functions: int = 32) -> None:
        super().__init__()
        first, second = torch.triu_indices(atoms, atoms, offset=1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.register_buffer("centres", torch.linspace(0.5, 4.0, functions))
        layers = [nn.Linear(functions, width), nn.Softplus(), nn.Linear(width, width), nn.Softplus()]
        self.network = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, y: Tensor) -> Tensor:
        r = (y[:, self.first] - y[:, self.second]).square().sum(-1, keepdim=True).sqrt()
        return self.network(torch.exp(-8 * (r - self.centres) ** 2)).flatten(1).sum(1)


def solution(width: int) -> nn.Module:
    """u(x, t): (B, 2) -> (B, 1)."""
    layers: list[nn.Module] = [nn.Linear(2, width), nn.Tanh()]
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


@dataclass(frozen=True)
class Task:
    """A network, a batch, and a loss of its derivatives, once by ``Derivatives`` and once by autograd."""

    name: str
    network: nn.Module
    batch: Tensor
    through: Callable[[Derivatives, Tensor], Tensor]
    plainly: Callable[[nn.Module, Tensor], Tensor]


def forces(device: str, size: str) -> Task:
    atoms, batch, width = {FULL: (32, 64, 128), SMALL: (12, 32, 64), TOY: (3, 2, 8)}[size]
    y = (1.5 * torch.randn(batch, atoms, 3)).to(device)

    def loss(energy: Tensor, gradient: Tensor) -> Tensor:
        return (energy - 1).square().mean() + (gradient - 1).square().mean()

    def plainly(network: nn.Module, y: Tensor) -> Tensor:
        at = y.detach().requires_grad_()
        energy = network(at)
        return loss(energy, torch.autograd.grad(energy.sum(), at, create_graph=True)[0])

    network = Potential(atoms, width).to(device)
    return Task(f"forces, {batch} × {atoms} atoms", network, y, lambda d, y: loss(*d.gradient(y)), plainly)


def burgers(device: str, size: str) -> Task:
    """u_t + u u_x − ν u_xx = 0."""
    points, width = {FULL: (16_384, 128), SMALL: (2048, 64), TOY: (4, 8)}[size]

    def loss(u: Tensor, gradient: Tensor, second: Tensor) -> Tensor:
        return (gradient[:, 1] + u[:, 0] * gradient[:, 0] - 0.01 * second[:, 0]).square().mean()

    def through(d: Derivatives, y: Tensor) -> Tensor:
        along_x = torch.zeros_like(y)
        along_x[:, 0] = 1
        return loss(*d.curvature(y, along_x))

    def plainly(network: nn.Module, y: Tensor) -> Tensor:
        at = y.detach().requires_grad_()
        u = network(at)
        (gradient,) = torch.autograd.grad(u.sum(), at, create_graph=True)
        (second,) = torch.autograd.grad(gradient[:, 0].sum(), at, create_graph=True)
        return loss(u, gradient, second)

    return Task(
        f"Burgers, {points:,} points", solution(width).to(device), torch.rand(points, 2).to(device), through, plainly
    )


TASKS = {"forces": forces, "burgers": burgers}


@dataclass(frozen=True)
class Speed:
    """Of training steps on one task."""

    task: str
    plain_ms: float
    compiled_ms: float
    faster: float  # the median over the turns
    setup_seconds: float
    error: float  # of the parameters' gradients, against autograd in float64
    plain_error: float


def speed(task: Task, *, seconds: float, repeats: int, fuse: bool = True) -> Speed:
    """One training step each, in turns."""
    parameters, device = list(task.network.parameters()), task.batch.device
    d = Derivatives(task.network, compile=True, fuse=fuse)

    def gradients(loss: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]

    calls = {
        "plain": lambda: gradients(task.plainly(task.network, task.batch)),
        "compiled": lambda: gradients(task.through(d, task.batch)),
    }
    began = time.perf_counter()
    for _ in range(WARM_UP):
        calls["compiled"]()
    wait(device)
    setup = time.perf_counter() - began
    if "compiled" not in d.explain():
        raise RuntimeError(d.explain())
    double = copy.deepcopy(task.network).double()
    reference = list(double.parameters())
    right = torch.autograd.grad(task.plainly(double, task.batch.double()), reference, allow_unused=True)
    wanted = [torch.zeros_like(p) if g is None else g for p, g in zip(reference, right, strict=True)]
    wrong = {name: errors(call(), wanted)[0] for name, call in calls.items()}
    times = in_turns(calls, device, seconds=seconds, repeats=repeats)
    plain, compiled = (1000 * statistics.median(times[name]) for name in calls)
    faster = ratio(times["plain"], times["compiled"])
    return Speed(task.name, plain, compiled, faster, setup, wrong["compiled"], wrong["plain"])


def main(arguments: Sequence[str] | None = None) -> list[Speed]:
    parser = parser_of("derivatives", __doc__)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--precision", choices=["float32", "tf32"], default="float32")
    parser.add_argument("--unfused", action="store_true", help="programs that run operation by operation")
    parser.add_argument("--seconds", type=float, default=10.0, help="of timing a task")
    parser.add_argument("--repeats", type=int, default=200)
    options = add_size(parser, arguments)
    found = []
    for name in options.tasks.split(","):
        torch.manual_seed(0)
        with precise(options.precision):
            task = TASKS[name](options.device, options.size)
            found.append(speed(task, seconds=options.seconds, repeats=options.repeats, fuse=not options.unfused))
        write_measured(
            options.out,
            options.device,
            size=options.size,
            precision=options.precision,
            fused=not options.unfused,
            speeds=[asdict(s) for s in found],
        )
    columns = {
        "training step": [s.task for s in found],
        "autograd, ms": [f"{s.plain_ms:.2f}" for s in found],
        "Derivatives, ms": [f"{s.compiled_ms:.2f}" for s in found],
        "faster": [f"{s.faster:.2f} ×" for s in found],
        "set-up, s": [f"{s.setup_seconds:.1f}" for s in found],
        "gradient error": [f"{s.error:.0e}" for s in found],
        "autograd's": [f"{s.plain_error:.0e}" for s in found],
    }
    print(markdown(columns))
    return found


if __name__ == "__main__":
    main()
