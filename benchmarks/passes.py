"""What each pass of the compiler earns: a training step with all of them, and with one switched off, kind by kind.

    python -m benchmarks.passes                                  # on this machine's GPU, or small on its CPU
    python -m benchmarks.passes --kinds deep-prior,graph --passes pairs,kernels --seconds 600

Every kind has a process of its own, in which both steps are timed in turns, after all processes have compiled theirs.
Above 1 a pass earns something.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from subprocess import PIPE
from typing import Any

import torch

from benchmarks.ceilings import precise
from benchmarks.kinds import KINDS, TOY, make
from benchmarks.measure import Outcome, Step, errors, in_turns, measure, ratio, release
from benchmarks.problems import Problem
from benchmarks.results import add_size, parser_of, write_measured, write_results
from benchmarks.runner import one_line
from benchmarks.table import markdown
from spen.gradients import Compiled

COMPILED = "spen.gradients.compiled"
_BUILT = "all programs are compiled"
Patch = Callable[[], Any]  # a context in which programs are made without the pass


@dataclass(frozen=True)
class Pass:
    """How to make a program without a pass."""

    off: Patch
    devices: tuple[str, ...] = ("cuda", "cpu")
    options: tuple[tuple[str, Any], ...] = ()  # of Compiled, with and without the pass
    without: tuple[tuple[str, Any], ...] = ()  # of Compiled, without the pass
    convolutions: bool = False  # whether it changes convolutions alone


@contextmanager
def replaced(where: str, name: str, new: Callable[[Any], Any]) -> Iterator[None]:
    """A function of the compiler exchanged for ``new(function)``."""
    owner: Any = import_module(f"{COMPILED}.{where.partition(':')[0]}")
    owner = getattr(owner, where.partition(":")[2]) if ":" in where else owner
    if not hasattr(owner, name):
        raise LookupError(f"there is no {where}.{name} any more")
    before = getattr(owner, name)
    setattr(owner, name, new(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def together(*patches: Patch) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch())
        yield


def _skipped(where: str, name: str) -> Patch:
    """A pass that changes a program in place, and now does not."""
    return partial(replaced, where, name, lambda _: lambda program, *_, **__: program)


def _passes(**changes: Any) -> Patch:
    """Other ``lower.Passes``. What is measured among fewer ways stays out of the file that all processes share."""
    return partial(
        together,
        partial(replaced, "lower", "Passes", lambda passes: lambda: replace(passes(), **changes)),
        partial(replaced, "choose", "_store", lambda _: lambda described, times: None),
    )


def _swept(_: Any) -> Callable[[Any], Any]:
    """What ``simplified`` is without its rules: dead code goes."""

    def sweep(program: Any) -> Any:
        program.graph.eliminate_dead_code()
        program.recompile()
        return program

    return sweep


def _nothing() -> Patch:
    return partial(together)


_GPU, _CPU = ("cuda",), ("cpu",)
_CONVOLUTIONS = ("deep-prior", "residual")  # the kinds that have some
_KEPT = (("keep", True),)
_SIMPLIFIED = [partial(replaced, where, "simplified", _swept) for where in ("trace", "keep", "cpu")]

PASSES: dict[str, Pass] = {  # in the order of importance
    "pairs": Pass(_passes(pairs=False), _GPU, convolutions=True),
    "kernels": Pass(_passes(kernels=False), _GPU, convolutions=True),
    "pointwise": Pass(_passes(pointwise=False), _GPU, convolutions=True),
    "simplify": Pass(partial(together, *_SIMPLIFIED)),
    "measured ways": Pass(_passes(prefer="cudnn"), _GPU, convolutions=True),
    "turned": Pass(_passes(turned=False), _GPU, convolutions=True),
    "layout": Pass(_passes(layout=torch.channels_last), _GPU, convolutions=True),
    "keep": Pass(_nothing(), options=_KEPT, without=(("keep", 0.0),)),
    "zeros": Pass(_skipped("simplify", "_drop_zeros")),
    "fuse": Pass(_nothing(), _GPU, without=(("fuse", False),)),
    "graphs": Pass(_nothing(), _GPU, without=(("graphs", False),)),
    "channels last": Pass(_skipped("cpu", "_channels_last"), _CPU),
    "softplus": Pass(_skipped("cpu", "_short_softplus"), _CPU),
}


@dataclass
class Entry:
    """One pass on one kind."""

    kind: str
    name: str
    time: float | None = None  # off over on
    memory: float | None = None
    on_ms: float | None = None
    off_ms: float | None = None
    on_mib: float | None = None
    off_mib: float | None = None
    error: float | None = None  # of the gradients without the pass, relative to those with it
    setup_seconds: float | None = None
    problem: str | None = None

    def __str__(self) -> str:
        if self.problem is not None:
            return "—"
        return f"{self.time:.2f}, {self.memory:.2f}"


class Measured:
    """The steps of one kind, with all passes and without one. All are made first; then pairs of them are timed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.with_all: dict[Any, tuple[Step, Outcome]] = {}  # by the options of Compiled
        self.without: dict[str, tuple[Step, Outcome]] = {}

    def options(self, name: str) -> dict[str, Any]:
        cpu = {"keep": True} if self.problem.device.type == "cpu" else {}  # as Auto would
        return {**cpu, **dict(PASSES[name].options)}

    def make(self, name: str) -> None:
        """The steps with and without a pass, compiled and run; their memory is measured here."""
        options = self.options(name)
        key = tuple(sorted(options.items()))
        if key not in self.with_all:
            self.with_all[key] = self._made(options)
        with PASSES[name].off():
            self.without[name] = self._made({**options, **dict(PASSES[name].without)})

    def _made(self, options: dict[str, Any]) -> tuple[Step, Outcome]:
        problem, found = self.problem, []

        def build() -> Step:
            model = problem.with_strategy(Compiled(patience=0, **options))
            found.append(lambda: problem.gradients(problem.objective(model, problem.x, problem.target)))
            return found[0]

        outcome = measure(build, problem.device, seconds=0.0, repeats=3)
        return found[0], outcome

    def entry(self, kind: str, name: str, *, seconds: float, repeats: int) -> Entry:
        on_step, on = self.with_all[tuple(sorted(self.options(name).items()))]
        off_step, off = self.without[name]
        steps = {"off": off_step, "on": on_step}
        times = in_turns(steps, self.problem.device, seconds=seconds, repeats=repeats)
        found = Entry(kind, name, ratio(times["off"], times["on"]), off.peak_bytes / max(on.peak_bytes, 1.0))
        found.on_ms, found.off_ms = (1000 * statistics.median(times[n]) for n in ("on", "off"))
        found.on_mib, found.off_mib = on.peak_bytes / 2**20, off.peak_bytes / 2**20
        found.error, found.setup_seconds = errors(off.gradients, on.gradients)[0], off.setup_seconds
        return found


def _applies(name: str, kind: str, device: str) -> bool:
    """Whether the pass may change a program of this kind; without convolutions many leave it as it is."""
    tested = PASSES[name]
    return device in tested.devices and (kind in _CONVOLUTIONS or not tested.convolutions)


def measure_kind(
    kind: str,
    names: Sequence[str],
    device: str,
    size: str,
    *,
    seconds: float,
    row_seconds: float,
    repeats: int,
    before_timing: Callable[[], None] = lambda: None,
) -> Iterator[Entry]:
    """The entries of a column; passes that could not be switched off within ``seconds`` are named."""
    began = time.monotonic()
    if device == "cuda":  # the libraries' own workspaces would count as memory of the first program of a process
        with precise("tf32"):
            Measured(make("graph", device, TOY)).make("zeros")
    measured = Measured(make(kind, device, size))
    names = [name for name in names if _applies(name, kind, device)]
    problems: dict[str, str] = {}
    for name in names:
        try:
            if time.monotonic() - began > seconds:
                raise TimeoutError("the time was up")
            with precise("tf32"):
                measured.make(name)
        except Exception as error:  # a program may be impossible without a pass
            problems[name] = one_line(error)
        release(measured.problem.device)
    before_timing()
    for name in names:
        if name in problems:
            yield Entry(kind, name, problem=problems[name])
            continue
        with precise("tf32"):
            yield measured.entry(kind, name, seconds=row_seconds, repeats=repeats)


def table(entries: Sequence[dict[str, Any]]) -> str:
    """Rows are passes, columns kinds; time and memory without the pass over those with it."""
    found = {(e["name"], e["kind"]): e for e in entries}
    names = [n for n in PASSES if any(name == n for name, _ in found)]
    columns: dict[str, list[str]] = {"without": names}
    for kind in dict.fromkeys(k for _, k in found):
        cells = [found.get((n, kind)) for n in names]
        columns[kind] = ["" if c is None else str(Entry(**c)) for c in cells]
    lines = [markdown(columns)]
    lines += [f"- {e['name']} on {e['kind']}: {e['problem']}" for e in entries if e["problem"]]
    wrong = [e for e in entries if (e["error"] or 0.0) > 1e-2]
    lines += [f"- {e['name']} on {e['kind']}: gradients differ by {e['error']:.0e}" for e in wrong]
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of("passes", __doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--passes", default=",".join(PASSES))
    parser.add_argument("--seconds", type=float, default=400.0, help="of compiling; the kinds compile side by side")
    parser.add_argument("--each", type=int, default=len(PASSES), help="passes for a process; fewer compile sooner")
    parser.add_argument("--row-seconds", type=float, default=3.0, help="of timing an entry")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--here", action="store_true", help="in this process, whatever the number of kinds")
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    options = add_size(parser, arguments)
    options.kinds, options.passes = (
        [name.strip() for name in text.split(",") if name.strip()] for text in (options.kinds, options.passes)
    )
    for given, known, what in ((options.kinds, KINDS, "kind"), (options.passes, PASSES, "pass")):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"there is no {what} {', '.join(unknown)}; there are {', '.join(known)}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    path: Path = options.out / "results.json"
    if options.here:
        _run_here(options, path)
        return
    write_measured(options.out, options.device, size=options.size, entries=[])
    shares = [options.passes[i : i + options.each] for i in range(0, len(options.passes), options.each)]
    commands = [
        _command(options, kind, share)
        for kind in options.kinds
        for share in shares
        if any(_applies(name, kind, options.device) for name in share)
    ]
    processes = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) for command in commands]
    for process in processes:  # all compile at the same time, and none is timed while another compiles
        _read_until(process, _BUILT)
    for process in processes:
        process.communicate("\n")
    print(table(json.loads(path.read_text(encoding="utf-8"))["entries"]))
    print(f"wrote {path}")


def _command(options: argparse.Namespace, kind: str, passes: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.passes", "--here", "--wait", "--kinds", kind]
    command += ["--passes", ",".join(passes), "--device", options.device, "--size", options.size]
    command += ["--seconds", str(options.seconds), "--row-seconds", str(options.row_seconds)]
    return [*command, "--repeats", str(options.repeats), "--out", str(options.out)]


def _read_until(process: subprocess.Popen[str], line: str) -> None:
    """Pass on what a process prints, until it prints this line or ends."""
    for printed in process.stdout or []:
        if printed.strip() == line:
            return
        print(printed, end="", flush=True)


def _wait_for_a_line() -> None:
    print(_BUILT, flush=True)
    sys.stdin.readline()


def _run_here(options: argparse.Namespace, path: Path) -> None:
    torch.backends.cudnn.benchmark = True
    for kind in options.kinds:
        for entry in measure_kind(
            kind,
            options.passes,
            options.device,
            options.size,
            seconds=options.seconds,
            row_seconds=options.row_seconds,
            repeats=options.repeats,
            before_timing=_wait_for_a_line if options.wait else lambda: None,
        ):
            print(f"{kind:12s} without {entry.name:24s} {entry.problem or entry}", file=sys.stderr, flush=True)
            whole = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"entries": []}
            whole["entries"].append(vars(entry))
            write_results(path, whole)


if __name__ == "__main__":
    main()
