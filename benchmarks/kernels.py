"""Where the time of a training step of the DeepPrior goes, with all passes of the compiler and with none.

    python -m benchmarks.kernels --device cuda          # about two minutes on one GPU
    python -m benchmarks.kernels --device cpu --tiny    # that it works

Two tables: the two programs of a step of the descent (∇E and the products with H), and whole training steps. A row that
fails is printed with its reason.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from benchmarks.ceilings import precise, wait
from benchmarks.measure import errors, in_turns, measure
from benchmarks.passes import replaced
from benchmarks.problems import Problem, deep_prior
from benchmarks.results import parser_of
from benchmarks.runner import one_line
from spen.descent.potential import Potential
from spen.gradients import Compiled, ForwardOverReverse
from spen.gradients.compiled import ops
from spen.gradients.compiled.choose import seconds_of
from spen.gradients.compiled.lower import Passes, lowered
from spen.gradients.compiled.program import Bound

PRECISIONS: dict[str, torch.dtype | None] = {"tf32": None, "bf16": torch.bfloat16}
OFF = Passes(pairs=False, pointwise=False, turned=False, kernels=False, layout=torch.channels_last)
ROWS = [(name, precision, passes) for precision in PRECISIONS for name, passes in (("all passes", None), ("none", OFF))]
SHARES = {"programs": 0.5, "steps": 1.0}  # of the time, when a table ends


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of("kernels", __doc__)
    parser.add_argument("--tiny", action="store_true", help="small shapes: a test of this script")
    parser.add_argument("--only", default="programs,steps", help="which tables")
    parser.add_argument("--seconds", type=float, default=170.0, help="after which no further row is begun")
    options = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = True
    sizes = {"batch": 2, "height": 8, "width": 12, "steps": 2} if options.tiny else {}
    problem = deep_prior(options.device, **sizes)
    began = time.perf_counter()
    print(f"torch {torch.__version__}, Triton kernels: {'yes' if ops.kernels() is not None else 'no'}", flush=True)
    for name in options.only.split(","):
        row = {"programs": programs, "steps": steps}[name](problem)
        for title, precision, passes in ROWS:
            if time.perf_counter() > began + SHARES[name] * options.seconds:
                print(f"{title:12s} {precision:6s} not begun: the time was up", flush=True)
                continue
            try:
                print(f"{title:12s} {precision:6s} {row(PRECISIONS[precision], passes)}", flush=True)
            except Exception as error:  # one row must not end the run
                print(f"{title:12s} {precision:6s} {type(error).__name__}: {one_line(error)}", flush=True)


Row = Callable[[torch.dtype | None, Passes | None], str]


def programs(problem: Problem) -> Row:
    """∇E and P = H v with its cross terms, as Compiled lowers them: milliseconds, MiB, error against float32."""
    print(f"\n{'programs':19s} {'∇E ms':>8s} {'∇E MiB':>8s} {'P ms':>8s} {'P MiB':>8s} {'error':>9s}")
    with precise("float32"):
        exact = [program(*inputs) for program, inputs in _traced(problem)]

    def row(precision: torch.dtype | None, passes: Passes | None) -> str:
        cells, error = [], 0.0
        for (program, inputs), right in zip(_traced(problem), exact, strict=True):
            with torch.no_grad():
                run = lowered(program, inputs, fuse=True, precision=precision, passes=passes or Passes())
                error = max(error, errors(list(run(*inputs)), list(right))[0])
                call = lambda run=run, inputs=inputs: run(*inputs)  # noqa: E731
                cells += [f"{1e3 * _seconds(call, problem.device):8.3f}", f"{_peak(call, problem.device):8.0f}"]
        return f"{' '.join(cells)} {error:9.1e}"

    return row


def _traced(problem: Problem) -> list[tuple[GraphModule, list[Tensor]]]:
    torch.manual_seed(1)
    found: list[tuple[GraphModule, list[Tensor]]] = []
    potential = Potential.of(problem.model.energy, problem.x)
    Bound.of(
        potential,
        problem.x.image,
        ForwardOverReverse().product,
        lambda program, inputs: found.append((program, list(inputs))) or program,  # type: ignore[func-returns-value]
    )
    found[1][1][1] = torch.randn_like(found[1][1][1])
    return found


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """The median of single calls; on a GPU as replays of a graph, which is how a descent runs them."""
    if device.type == "cuda":
        return seconds_of(call, device, 7)
    return statistics.median(in_turns({"": call}, device, seconds=float("inf"), repeats=7)[""])


def _peak(call: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        return 0.0
    wait(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    wait(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def steps(problem: Problem) -> Row:
    """Training steps with Compiled; the error is the distance from the first row."""
    print(f"\n{'training step':19s} {'ms':>8s} {'MiB':>8s} {'from 1st':>9s}")
    reference: list[list[Tensor]] = []

    def row(precision: torch.dtype | None, passes: Passes | None) -> str:
        changed: Any = nullcontext() if passes is None else replaced("lower", "Passes", lambda _: lambda: passes)
        with changed:
            model = problem.with_strategy(Compiled(precision=precision, fuse=True))
            outcome = measure(
                lambda: lambda: problem.gradients(problem.objective(model, problem.x, problem.target)),
                problem.device,
                seconds=4.0,
                repeats=12,
            )
        reference.append(outcome.gradients)
        error = errors(outcome.gradients, reference[0])[0]
        return f"{1e3 * outcome.median:8.2f} {outcome.peak_bytes / 2**20:8.0f} {error:9.1e}"

    return row


if __name__ == "__main__":
    main()
