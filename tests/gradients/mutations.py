"""Does the next gradient belong to the energy as it is now? Random energies, random changes, every strategy.

    python -m tests.gradients.mutations --cases 10000 --seed 0

A case is one change of something that an energy (``readable.py``), a rule, a domain or a stop reads, and the gradient
after it: equal to that of ``Exact()`` on a fresh copy, or an error. Some changes come between a descent and its
backward pass, which must then differentiate the energy that ran.
"""

from __future__ import annotations

import argparse
import copy
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.func import functional_call

import spen
from spen.domains import Box, Reals, Simplex
from spen.gradients import Auto, Checkpointed, Compiled, Exact, ForwardOverReverse, GradientStrategy, auto
from spen.gradients.compiled import cuda_graphs
from spen.gradients.compiled.errors import NotTraceable
from spen.gradients.compiled.guards import Guarded
from spen.gradients.replay import Tape
from spen.rules import GradientDescent, Momentum
from tests.gradients import readable_functions, readable_modules, readable_process  # noqa: F401  they add to KINDS
from tests.gradients.readable import KINDS, WIDTH, Mutations, Readable
from tests.gradients.test_cuda_graphs import StandIn

TOLERANCE = 1e-6
CHANGES = 10
"""Of one energy: fewer than the states after which a program is refused."""

UNSEEN_BETWEEN = {
    "tensors/numpy in place": "memory that torch does not watch: Exact takes the new numbers too",
}
"""Changes between a descent and its backward pass that nobody can see."""
UNSEEN_BY_EXACT = {
    "tensors/buffer data": "another memory through .data, of which autograd takes no notice",
    "parametrizations of weights/added": "a parametrization that is removed: torch cuts the weight off from the graph",
}
"""Changes that strategies which evaluate the energy again notice and double backprop, Auto's choice here, does not."""


class Baked(StandIn):
    """A stand-in for a CUDA graph that has rule, domain and stop as they were when it was captured."""

    def __init__(self, tape: Tape, start: Tensor, pattern: Any, addresses: tuple[int, ...]) -> None:
        parts = [p for p in (tape.descend.rule, tape.descend.domain) for p in (*p.parameters(), *p.buffers())]
        baked = copy.deepcopy(tape.descend, {id(p): p for p in parts})
        super().__init__(replace(tape, descend=baked), start, pattern, addresses)


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    with mock.patch.object(auto, "_is_cpu", return_value=False):
        yield


@contextmanager
def with_stand_ins() -> Iterator[None]:
    with mock.patch.object(cuda_graphs, "Captured", Baked):
        yield


STRATEGIES: dict[str, tuple[Callable[[], GradientStrategy], Callable[[], Any] | None]] = {
    "Compiled": (lambda: Compiled(patience=0), None),
    "Compiled, kept": (lambda: Compiled(Checkpointed(), keep=True, patience=0), None),
    "Compiled, captured": (lambda: Compiled(patience=0, graphs=True), with_stand_ins),
    "Auto, programs": (lambda: Auto(measure=False, patience=0), as_on_a_gpu),
    "Auto": (lambda: Auto(measure=False), None),
    "Checkpointed": (Checkpointed, None),
    "ForwardOverReverse": (ForwardOverReverse, None),
}


@dataclass
class Tally:
    """What was found."""

    cases: Counter[str] = field(default_factory=Counter)
    strategies: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    felt: int = 0
    """Changes that changed the gradient."""
    programs: int = 0
    needless: list[str] = field(default_factory=list)
    """Programs that were made though nothing had changed."""
    errors: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)
    """Errors that are no sentence."""
    silent: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def table(self) -> str:
        rows = [
            ("cases", sum(self.cases.values())),
            ("  changed the gradient", self.felt),
            *((f"  {name}", n) for name, n in sorted(self.moments.items())),
            *((f"  with {name}", n) for name, n in sorted(self.strategies.items())),
            *((f"  {name}", n) for name, n in sorted(self.cases.items())),
            ("programs made", self.programs),
            ("  for a state that had not changed", len(self.needless)),
            ("errors", sum(self.errors.values())),
            *((f"  {name}", n) for name, n in sorted(self.errors.items())),
            ("  that are no sentence", len(self.unknown)),
            ("silent differences", len(self.silent)),
            ("seconds", round(self.seconds)),
        ]
        return "\n".join(f"{name:<110}{number:>8}" for name, number in rows)


def loop_changes(rng: random.Random, minimizer: spen.Minimizer) -> Mutations:
    """What a rule, a domain and a stop read."""
    rule, domain = minimizer.rule, minimizer.domain
    found: Mutations = {"rates": lambda: change_in_place(next(iter(rule.parameters())), rng)}
    if isinstance(rule, Momentum):
        found["decay"] = lambda: setattr(rule, "decay", rng.choice([0.2, 0.5, 0.8]))
    if isinstance(domain, Simplex):
        found["update"] = lambda: setattr(domain, "update", rng.choice(["logits", "projected", "mirror"]))
    if isinstance(domain, Box):
        found["bound"] = lambda: setattr(domain, "high", rng.choice([0.4, 0.7, 1.0]))
    if minimizer.stop is not None:
        found["stop"] = lambda: setattr(minimizer.stop, "tolerance", rng.choice([1e-9, 0.05, 0.2]))
    return found


def change_in_place(tensor: Tensor, rng: random.Random) -> None:
    with torch.no_grad():
        tensor.mul_(rng.choice([0.8, 1.1]))


class Called(nn.Module):
    """The minimiser and the energy as one module, for functional_call."""

    def __init__(self, energy: nn.Module, minimizer: spen.Minimizer) -> None:
        super().__init__()
        self.energy, self.minimizer = energy, minimizer

    def forward(self, features: Tensor, start: Tensor) -> Tensor:
        outputs = self.minimizer(self.energy, features, start).outputs
        loss = torch.stack([(y - 0.3).square().sum() for y in outputs]).sum()
        assert isinstance(loss, Tensor)
        return loss


class World:
    """An energy, its minimiser and all that can be done to them."""

    def __init__(self, rng: random.Random, strategy: str, stack: ExitStack) -> None:
        self.rng = rng
        make, surroundings = STRATEGIES[strategy]
        if surroundings is not None:
            stack.enter_context(surroundings())
        torch.manual_seed(rng.randrange(2**31))
        kinds = rng.sample(sorted(KINDS), rng.choice([1, 1, 2]))
        terms, self.changes = [], {"nothing/at all": lambda: None}
        for name in kinds:
            term, changes = KINDS[name](rng, stack)
            terms.append(term)
            self.changes |= {f"{name}/{change}": function for change, function in changes.items()}
        domain = rng.choice([Reals, Simplex, Box, partial(Simplex, "through_logits")])()
        rule = rng.choice([Momentum, GradientDescent])(2, 0.2, learn_rates=True)
        stop = rng.choice([None, spen.RelativeChange(0.05)])
        self.minimizer = spen.Minimizer(domain, rule, make(), stop).double()
        self.changes |= {f"loop/{name}": change for name, change in loop_changes(rng, self.minimizer).items()}
        self.energy = Readable(terms).double()
        self.x, self.start = torch.randn(2, 2, WIDTH, dtype=torch.float64)
        self.captured = strategy == "Compiled, captured"
        self.quiet = False  # the case before left a program for the present state

    def change(self) -> str:
        """The name of one: mostly of the energy, now and then of the loop, or none at all."""
        kinds = sorted({name.partition("/")[0] for name in self.changes})
        (kind,) = self.rng.choices(kinds, [{"nothing": 1, "loop": 2}.get(kind, 8) for kind in kinds])
        return self.rng.choice([name for name in self.changes if name.startswith(kind + "/")])

    def copied(self) -> Called:
        minimizer = self.minimizer
        parts = copy.deepcopy((minimizer.domain, minimizer.rule, minimizer.stop, self.energy))
        return Called(parts[3], spen.Minimizer(parts[0], parts[1], Exact(), parts[2]))

    def leaves(self) -> tuple[Tensor, Tensor]:
        return self.x.clone().requires_grad_(), self.start.clone().requires_grad_()


Gradients = list[Tensor | None]


def begun(model: Called, x: Tensor, start: Tensor, how: str) -> tuple[Tensor, list[Tensor]]:
    """The loss of a descent, and what it is differentiated by."""
    if how == "functional_call":
        # Tied parameters stay one tensor.
        others = {p: (1.1 * p.detach()).requires_grad_(p.requires_grad) for p in model.parameters()}
        exchanged = {n: others[p] for n, p in model.named_parameters(remove_duplicate=False)}
        loss = functional_call(model, exchanged, (x, start), tie_weights=False)
        return loss, [*(p for p in others.values() if p.requires_grad), x, start]
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        return model(x, start), [*(p for p in model.parameters() if p.requires_grad), x, start]


def differentiated(loss: Tensor, by: list[Tensor]) -> Gradients:
    return list(torch.autograd.grad(loss, by, allow_unused=True))


def difference(found: Gradients, exact: Gradients) -> float:
    """The largest relative difference of one tensor; those that are zero are measured by the largest."""
    largest = max((float(e.norm()) for e in exact if e is not None), default=1.0)
    worst = 0.0
    for mine, right in zip(found, exact, strict=True):
        mine = torch.zeros(()) if mine is None else mine
        right = torch.zeros(()) if right is None else right
        worst = max(worst, float((mine - right).norm()) / max(float(right.norm()), 1e-6 * largest, 1e-300))
    return worst


def is_sentence(error: Exception) -> bool:
    """Errors that a user can act upon: ours, and autograd's about what was changed in place."""
    return isinstance(error, NotTraceable | ValueError) or (isinstance(error, RuntimeError) and len(str(error)) > 30)


def one_case(world: World, tally: Tally, strategy: str, previous: Gradients | None) -> Gradients | None:
    rng = world.rng
    name = world.change()
    unseen = UNSEEN_BETWEEN | (UNSEEN_BY_EXACT if strategy == "Auto" else {})
    between = rng.random() < 0.2 and name not in unseen
    how = rng.choice(["functional_call", "autocast"]) if rng.random() < 0.15 else ""
    model, made = Called(world.energy, world.minimizer), tally.programs
    label = f"{strategy}: {name}" + (" between" if between else "") + (f" under {how}" if how else "")
    tally.cases[name.partition("/")[0]] += 1
    tally.strategies[strategy] += 1
    tally.moments["between descent and backward" if between else "before the descent"] += 1
    if how:
        tally.moments[f"under {how}"] += 1
    if not between:
        world.changes[name]()
    try:
        exact = differentiated(*begun(world.copied(), *world.leaves(), how))
    except Exception as error:
        tally.errors[f"{type(error).__name__} of Exact"] += 1
        return previous
    try:
        for _ in range(rng.choice([1, 3]) if world.captured else 1):  # the third time by a graph
            loss, by = begun(model, *world.leaves(), how)
            if between:
                world.changes[name]()
            off = difference(differentiated(loss, by), exact)
            if not off <= TOLERANCE:
                tally.silent.append(f"{label}: {off:.1e}")
            if between:
                break
    except Exception as error:
        how = how or "error"
        tally.errors[f"{type(error).__name__}: {_short(error)}"] += 1
        if not is_sentence(error):
            tally.unknown.append(f"{label}: {type(error).__name__}: {error}")
    if previous is not None and (
        len(previous) != len(exact) or any(_shape(a) != _shape(b) for a, b in zip(previous, exact, strict=True))
    ):
        tally.felt += 1
    elif previous is not None:
        tally.felt += difference(exact, previous) > TOLERANCE
    if name.startswith("nothing/") and not how and tally.programs > made and not world.captured and world.quiet:
        tally.needless.append(label)
    world.quiet = not between and not how
    return exact


def _shape(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.shape


def _short(error: Exception) -> str:
    words = re.sub(r"\d+|\([^)]*\)|\[[^]]*\]", "…", " ".join(str(error).split())).split()
    return " ".join(words[:12])


def run(
    cases: int,
    seed: int,
    strategies: list[str] | None = None,
    *,
    seconds: float = float("inf"),
    say: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """So many cases, drawn from a seed, or as many as there is time for. ``say`` is told after each energy."""
    rng, tally, began = random.Random(seed), Tally(), time.perf_counter()
    traced = Guarded._trace

    def counted(self: Guarded, *arguments: Any) -> Any:
        tally.programs += self.name != "the descent"
        return traced(self, *arguments)

    with mock.patch.object(Guarded, "_trace", counted):
        while sum(tally.cases.values()) < cases and tally.seconds < seconds:
            strategy = rng.choice(strategies or list(STRATEGIES))
            with ExitStack() as stack:
                world = World(rng, strategy, stack)
                previous = None
                for _ in range(min(CHANGES, cases - sum(tally.cases.values()))):
                    previous = one_case(world, tally, strategy, previous)
            tally.seconds = time.perf_counter() - began
            say(tally)
    return tally


def progress(tally: Tally) -> None:
    done, found = sum(tally.cases.values()), len(tally.silent) + len(tally.unknown)
    if done % 100 == 0:
        print(f"{done} cases, {found} failures, {tally.seconds:.0f} s", file=sys.stderr, flush=True)
        for line in (*tally.silent, *tally.unknown):
            print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategy", choices=list(STRATEGIES), action="append")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tally = run(options.cases, options.seed, options.strategy, seconds=options.seconds, say=progress)
    print(tally.table())
    for title, found in (("silent", tally.silent), ("unknown", tally.unknown), ("needless", tally.needless)):
        for line in found:
            print(f"{title}: {line}")
    raise SystemExit(bool(tally.silent or tally.unknown))


if __name__ == "__main__":
    main()
