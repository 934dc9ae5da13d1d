"""Time, memory and gradient error of every way to train through a descent, in one run.

    python -m benchmarks                          # on this machine's GPU, or small on its CPU
    python -m benchmarks --only deep-prior-20 --systems "spen FiniteDifference,JAX scan" --seconds 300
    python -m benchmarks.table runs/benchmarks/results.json     # Markdown
    python -m benchmarks.plots runs/benchmarks/results.json     # PNG

Exit status 1: some gradients disagree with the reference. Peers that are missing here are skipped and named.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from benchmarks.ceilings import measure_ceilings
from benchmarks.results import Results, command_line
from benchmarks.runner import Budget, run_case
from benchmarks.suites import FULL, SMALL, SUITES, TOY, choose
from benchmarks.systems import SYSTEMS, find
from benchmarks.table import skips


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; a wrong name ends here, before anything is measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = "; ".join(f"{s.name}: {s.about}" for s in SUITES.values())
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", metavar="SUITE,…", help=f"these suites alone ({known})")
    parser.add_argument("--systems", default="", metavar="NAME;…", help="these systems in place of each suite's own")
    parser.add_argument("--size", choices=[FULL, SMALL, TOY], help="full on a GPU, small on a CPU if not given")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"), help="the folder of results.json")
    parser.add_argument("--seconds", type=float, default=1500.0, help="for everything; what is left then is skipped")
    parser.add_argument("--row-seconds", type=float, default=5.0, help="of timing a row, warm-up not counted")
    parser.add_argument("--repeats", type=int, default=20, help="timings of a row at most")
    parser.add_argument(
        "--reference", choices=["float64", "float32"], default="float64", help="precision of the reference gradients"
    )
    parser.add_argument("--no-autotune", action="store_true", help="leave torch.backends.cudnn.benchmark off")
    parser.add_argument("--list", action="store_true", help="name suites and systems, and end")
    options = parser.parse_args(arguments)
    try:
        options.suites = choose(options.only)
        options.chosen = find([name.strip() for name in options.systems.split(";") if name.strip()])
    except ValueError as error:
        parser.error(str(error))
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu measures the small sizes")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        print(
            "\n".join(
                [*(f"suite   {s.name:16s} {s.about}" for s in SUITES.values()), *(f"system  {n}" for n in SYSTEMS)]
            )
        )
        return 0
    torch.backends.cudnn.benchmark = not options.no_autotune  # as XLA does: the fastest algorithm for each shape
    references = ("float64", "float32") if options.reference == "float64" else ("float32",)
    budget = Budget(options.seconds, options.row_seconds, options.repeats, references)
    results = Results(options.out / "results.json", device=options.device, command=command_line())
    ceilings = measure_ceilings(torch.device(options.device))
    size = options.size or (FULL if options.device == "cuda" else SMALL)
    results.note(ceilings=asdict(ceilings), size=size, cudnn_benchmark=torch.backends.cudnn.benchmark)
    rates = ", ".join(f"{name} {rate / 1e12:.2f} Tflop/s" for name, rate in ceilings.rates.items())
    print(f"{results.head['machine']}\nceilings: {rates}, copy {ceilings.bandwidth / 1e9:.1f} GB/s", flush=True)
    for suite in options.suites:
        for case in suite.cases(options.device, size):
            systems = options.chosen or case.systems
            run_case(suite.name, replace(case, systems=systems), results, ceilings, budget)
    if results.skipped:
        print("skipped:\n" + skips([asdict(skip) for skip in results.skipped]))
    wrong = [f"{row.suite} {row.system}" for row in results.rows if row.agrees is False]
    if wrong:
        print(f"gradients disagree with the reference: {'; '.join(wrong)}", file=sys.stderr)
    print(f"wrote {results.path}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
