"""How long a user waits: for imports, for the first step of training, until steps are steady.

    python -m benchmarks.startup

Everything in fresh processes. Cold: an empty cache of torch.compile and Triton; warm: what the cold process left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.table import markdown

IMPORTS = """
import time
began = time.perf_counter()
import torch
middle = time.perf_counter()
import spen
spen.SPEN
print(middle - began, time.perf_counter() - middle)
"""
TARGETS = {"import spen beyond torch": 0.3, "first step": 5.0, "set-up, cold": 20.0, "set-up, warm": 5.0}


def imports(repeats: int) -> dict[str, float]:
    """Seconds of ``import torch``, and of ``spen.SPEN`` after it; the best of several processes."""
    found = [[float(part) for part in _output([sys.executable, "-c", IMPORTS]).split()] for _ in range(repeats)]
    return {"import torch": min(f[0] for f in found), "import spen beyond torch": min(f[1] for f in found)}


def trainings(device: str, size: str, seconds: float, steps: int) -> dict[str, Any]:
    """What two processes tell of their first steps with Auto(), cold and warm."""
    found = {}
    command = [sys.executable, "-m", "benchmarks.startup", "--first-steps", "--device", device, "--size", size]
    command += ["--seconds", str(seconds), "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        for name in ("cold", "warm"):
            found[name] = json.loads(_output(command, caches).strip().splitlines()[-1])
    return found


def first_steps(device: str, size: str, seconds: float, steps: int) -> dict[str, Any]:
    """In the fresh process: a training step after another with the default strategy, each waited for."""
    import torch

    from benchmarks.ceilings import precise, wait
    from benchmarks.kinds import make
    from spen.gradients import Auto

    problem = make("deep-prior", device, size)
    auto = Auto()
    model = problem.with_strategy(auto)
    wait(problem.device)
    times: list[float] = []
    began = time.perf_counter()
    with precise("tf32"):
        while len(times) < steps and (len(times) < 3 or time.perf_counter() - began < seconds):
            start = time.perf_counter()
            problem.gradients(problem.objective(model, problem.x, problem.target))
            wait(problem.device)
            times.append(time.perf_counter() - start)
    explained = auto.explain().splitlines()[0]
    return {**settled(times), "choice": explained, "times": times, "torch": torch.__version__}


def settled(times: Sequence[float]) -> dict[str, float]:
    """Of the seconds of steps: the first, a steady one, what all took beyond that, and when the last slow one ended."""
    steady = statistics.median(times[-max(3, len(times) // 4) :])
    slow = [i for i, t in enumerate(times) if t > 2 * steady + 0.01]
    until = sum(times[: slow[-1] + 1]) if slow else 0.0
    beyond = sum(max(t - steady, 0.0) for t in times if t > 1.2 * steady)
    return {"first": times[0], "steady": steady, "setup": beyond, "until": until, "steps": len(times)}


def _output(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(environment or {})}, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return done.stdout


def table(whole: dict[str, Any]) -> str:
    rows: dict[str, float] = dict(whole["imports"])
    for name, found in whole["trainings"].items():
        rows |= {f"first step, {name}": found["first"], f"set-up, {name}": found["setup"]}
        rows |= {f"until steps are steady, {name}": found["until"], f"a steady step, {name}": found["steady"]}
    targets = [next((f"{t:g}" for part, t in TARGETS.items() if name.startswith(part)), "") for name in rows]
    shown = [f"{s:.3f}" for s in rows.values()]
    return markdown({"what": list(rows), "seconds": shown, "at most": targets})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], help="the GPU if there is one")
    parser.add_argument("--size", choices=["full", "small", "toy"], help="full on a GPU, small on a CPU if not given")
    parser.add_argument("--seconds", type=float, default=120.0, help="of training in each process")
    parser.add_argument("--steps", type=int, default=300, help="of training in each process, at most")
    parser.add_argument("--repeats", type=int, default=5, help="processes that import")
    parser.add_argument("--out", type=Path, default=Path("runs/startup"), help="the folder of results.json")
    parser.add_argument("--first-steps", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.device is None:
        import torch

        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.size = options.size or ("full" if options.device == "cuda" else "small")
    given = options.device, options.size, options.seconds, options.steps
    if options.first_steps:
        print(json.dumps(first_steps(*given)))
        return
    from benchmarks.results import write_measured

    whole: dict[str, Any] = {"imports": imports(options.repeats), "trainings": {}}
    write_measured(options.out, options.device, **whole)
    whole["trainings"] = trainings(*given)
    write_measured(options.out, options.device, **whole)
    print(table(whole))
    print(whole["trainings"]["warm"]["choice"])


if __name__ == "__main__":
    main()
