"""What is run: named suites of cases, in the order of importance, for a GPU and smaller for a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.kinds import FULL, KINDS, SMALL, TOY, make
from benchmarks.overhead import launch_overhead, resident_memory
from benchmarks.problems import deep_prior
from benchmarks.runner import Case
from benchmarks.systems import SYSTEMS, System, find
from benchmarks.transformer import transformer

_IMAGES = {
    FULL: {"batch": 32, "height": 96, "width": 128},
    SMALL: {"batch": 2, "height": 48, "width": 64},
    TOY: {"batch": 2, "height": 12, "width": 16, "channels": 4},
}


@dataclass(frozen=True)
class Suite:
    """Cases for a device and a size."""

    name: str
    about: str
    cases: Callable[[str, str], list[Case]]  # device, size


SUITES: dict[str, Suite] = {}


def suite(name: str, about: str) -> Callable[[Callable[[str, str], list[Case]]], Callable[[str, str], list[Case]]]:
    """Register cases under a name."""

    def register(cases: Callable[[str, str], list[Case]]) -> Callable[[str, str], list[Case]]:
        SUITES[name] = Suite(name, about, cases)
        return cases

    return register


_ON_CPU = {"spen Compiled, three quarters kept"}  # where memory is plenty a share of the steps is of no interest
# So few rows that the memory of a step beside its iterates is a twentieth of double backprop's; with more steps double
# backprop needs more, and more rows will do.
_FEW = {"spen Compiled, 8 rows": 20, "spen Compiled, 2 rows": 3, "spen Compiled, bf16, 2 rows": 3}


def everyone(device: str, steps: int) -> list[System]:
    elsewhere = {name for name, at in _FEW.items() if at != steps} | (_ON_CPU if device != "cpu" else set())
    return [s for s in SYSTEMS.values() if s.name not in elsewhere]


@suite("deep-prior-20", "the DeepPrior of Sec. 6.1, 20 steps, everyone")
def deep_prior_20(device: str, size: str) -> list[Case]:
    return [Case(partial(deep_prior, device, steps=20 if size != TOY else 4, **_IMAGES[size]), everyone(device, 20))]


@suite("deep-prior-3", "the same with 3 steps")
def deep_prior_3(device: str, size: str) -> list[Case]:
    return [Case(partial(deep_prior, device, steps=3, **_IMAGES[size]), everyone(device, 3))]


_EXACT = ["plain PyTorch", "torch.utils.checkpoint", "spen Exact", "spen Checkpointed", "spen Compiled"]
_EXACT += ["spen Compiled, kept", "spen Auto"]


_PROGRAMS = [f"spen Compiled{how}" for how in ("", ", 16 rows", ", bf16", ", bf16, 16 rows")]


@suite("srl", "the role labelling energy, where launching kernels takes the time")
def role_labelling(device: str, size: str) -> list[Case]:
    # Finite differences are left out: the constraints' softplus of temperature 20 bends within their radius.
    return [Case(partial(make, "srl", device, size), find(_EXACT))]


@suite("label-sets", "the multi-label energy at the sizes of Bibtex")
def multi_label(device: str, size: str) -> list[Case]:
    return [Case(partial(make, "label-sets", device, size), find([*_EXACT, "spen FiniteDifference"]))]


_KINDS = ["plain PyTorch", "spen Exact", "spen Compiled", "spen Compiled, kept"]
_KINDS += ["spen Compiled, reverse over reverse", "spen Compiled, reverse over reverse, kept", "spen Auto"]
_KINDS += ["torch.compile, reverse over reverse", "torch.compile, forward over reverse", "JAX scan"]


def _kind(kind: str, device: str, size: str) -> Case:
    return Case(partial(make, kind, device, size), find(_KINDS if kind == "deep-prior" else _KINDS[:-1]))


@suite("six", "six kinds of energies, each by programs of both kinds, Auto and torch.compile")
def six_kinds(device: str, size: str) -> list[Case]:
    return [_kind(kind, device, size) for kind in KINDS]


for _name in ("residual", "attention", "graph"):
    suite(_name, f"the kind {_name} of the six alone")(
        lambda device, size, name=_name: [_kind(name, device, size)]  # type: ignore[misc]
    )


_SEQUENCES: dict[str, dict[str, Any]] = {
    FULL: {},
    SMALL: {"batch": 2, "positions": 256, "width": 64, "layers": 2, "heads": 4},
    TOY: {"batch": 2, "positions": 16, "width": 16, "layers": 1, "heads": 2},
}
_ONCE = ["spen FiniteDifference", "spen FiniteDifference, two passes"]


@suite("transformer", "an energy with attention: double backprop of the unfused, finite differences of the fused")
def attention(device: str, size: str) -> list[Case]:
    make = partial(transformer, device, **_SEQUENCES[size])
    # The unfused one takes most of the card: its own references are the fused one's.
    twice = Case(partial(make, fused=False), find(["plain PyTorch", "spen Exact"]), compare=size != FULL)
    return [Case(partial(make, fused=True), find(_ONCE)), twice]


@suite("transformer-long", "the same with four times the positions")
def long_attention(device: str, size: str) -> list[Case]:
    sizes = {**_SEQUENCES[size], "positions": 4 * _SEQUENCES[size].get("positions", 4096)}
    make = partial(transformer, device, **sizes)
    fused = Case(partial(make, fused=True), find(_ONCE[1:]), compare=size != FULL)
    return [fused, Case(partial(make, fused=False), find(["plain PyTorch"]), compare=False)]


@suite("overhead", "host time, idle GPU and synchronisations at batch 32")
def overhead(device: str, size: str) -> list[Case]:
    names = ["plain PyTorch", "spen FiniteDifference", *_PROGRAMS]
    make = partial(deep_prior, device, steps=20 if size != TOY else 2, **_IMAGES[size])
    return [Case(make, find(names), compare=False, probe=launch_overhead)]


@suite("resident", "on a CPU: Auto beside plain PyTorch, with the growth of a fresh process")
def resident(device: str, size: str) -> list[Case]:
    if device != "cpu":
        return []
    steps = (3, 20) if size != TOY else (2,)
    systems = find(["plain PyTorch", "spen Exact", "spen Checkpointed", "spen Compiled, kept", "spen Auto"])
    return [Case(partial(deep_prior, device, steps=t, **_IMAGES[size]), systems, probe=resident_memory) for t in steps]


_SWEPT = ["plain PyTorch", "spen Compiled", "spen Compiled, bf16"]  # every point of batch and size is compiled anew
_POINTS: dict[str, dict[str, list[dict[str, int]]]] = {
    "steps": {
        FULL: [{"steps": t} for t in (3, 10, 20, 50, 100, 200)],
        SMALL: [{"steps": t} for t in (3, 10, 20, 50)],
        TOY: [{"steps": t} for t in (1, 2)],
    },
    "batch": {
        FULL: [{"batch": b} for b in (8, 32, 64, 128)],
        SMALL: [{"batch": b} for b in (1, 2, 4, 8)],
        TOY: [{"batch": b} for b in (1, 2)],
    },
    "size": {
        FULL: [{"height": 24 * s, "width": 32 * s} for s in (2, 4, 8, 16)],
        SMALL: [{"height": 24 * s, "width": 32 * s} for s in (1, 2, 4)],
        TOY: [{"height": 6 * s, "width": 8 * s} for s in (1, 2)],
    },
}


def _sweep(axis: str, device: str, size: str, systems: list[str], points: list[dict[str, int]]) -> list[Case]:
    base = {"steps": 20 if size != TOY else 2, **_IMAGES[size]}
    if axis == "size" and size == FULL:
        base["batch"] = 8  # the largest image would not fit 32 times by double backprop
    return [Case(partial(deep_prior, device, **{**base, **p}), find(systems), compare=False) for p in points]


for _axis in _POINTS:
    suite(f"sweep-{_axis}", f"time and memory against {_axis}")(
        lambda device, size, axis=_axis: _sweep(axis, device, size, _SWEPT, _POINTS[axis][size])  # type: ignore[misc]
    )


@suite("sweep-jax", "JAX at the ends of the sweeps; each point is compiled anew")
def sweep_jax(device: str, size: str) -> list[Case]:
    names = ["JAX scan"]
    ends = [(axis, points[size][i]) for axis, points in _POINTS.items() for i in (-1, 0)]
    return [case for axis, point in ends for case in _sweep(axis, device, size, names, [point])]


def choose(names: str) -> list[Suite]:
    """Suites by name, separated by commas; all of them for an empty text."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in SUITES]
    if unknown:
        raise ValueError(f"there is no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    return [SUITES[name] for name in wanted] if wanted else list(SUITES.values())
