"""Training steps of several processes on one machine against one process, and the share of communication.

    python -m benchmarks.processes

Every process has one thread and a batch of its own, and DDP averages the gradients over gloo. The share of
communication is what a step gains if the gradients are not averaged (``no_sync``).
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from benchmarks.kinds import make
from benchmarks.results import add_size, parser_of, write_measured
from benchmarks.table import markdown
from spen.gradients import Exact
from spen.storage import load_weights, save_weights

TIMES = "times.safetensors"


@dataclass(frozen=True)
class Throughput:
    """Of one kind of energy."""

    problem: str
    one_ms: float  # a step of one process
    several_ms: float  # a step of several processes, each with a batch of this size
    ratio: float  # examples a second of several processes over those of one
    communication: float  # share of a step


def _worker(rank: int, world: int, folder: str, kind: str, size: str, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    problem = make(kind, "cpu", size)
    model: Any = DistributedDataParallel(problem.with_strategy(Exact()))
    times: dict[bool, list[float]] = {True: [], False: []}
    for k in range(2 * steps + 4):
        averaged = k % 2 == 0
        dist.barrier()
        began = time.perf_counter()
        with contextlib.nullcontext() if averaged else model.no_sync():
            problem.objective(model, problem.x, problem.target).backward()
        if k >= 4:  # the first steps allocate memory
            times[averaged].append(time.perf_counter() - began)
        model.zero_grad()
    if rank == 0:
        save_weights({str(key): torch.tensor(value) for key, value in times.items()}, Path(folder, TIMES))
    dist.destroy_process_group()


def timed(world: int, kind: str, size: str, steps: int) -> tuple[float, float]:
    """The median seconds of a step, and of one whose gradients are not averaged."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_worker, (world, folder, kind, size, steps), nprocs=world)
        found = load_weights(Path(folder, TIMES))
    return statistics.median(found["True"].tolist()), statistics.median(found["False"].tolist())


def main(arguments: Sequence[str] | None = None) -> list[Throughput]:
    parser = parser_of("processes", __doc__)
    parser.add_argument("--kinds", default="deep-prior,label-sets")
    parser.add_argument("--world", type=int, default=2, help="processes")
    parser.add_argument("--steps", type=int, default=15, help="training steps that are timed")
    options = add_size(parser, arguments)
    if options.device != "cpu":
        parser.error("the processes run on a CPU: give --device cpu")
    found = []
    for kind in options.kinds.split(","):
        _, one = timed(1, kind, options.size, options.steps)
        several, alone = timed(options.world, kind, options.size, options.steps)
        share = max(0.0, 1 - alone / several)
        found.append(Throughput(kind, 1000 * one, 1000 * several, options.world * one / several, share))
        write_measured(options.out, "cpu", size=options.size, world=options.world, throughput=[*map(asdict, found)])
    columns = {
        "energy": [f.problem for f in found],
        "one process, ms a step": [f"{f.one_ms:.1f}" for f in found],
        f"{options.world} processes": [f"{f.several_ms:.1f}" for f in found],
        "examples a second, ratio": [f"{f.ratio:.2f}" for f in found],
        "communication": [f"{f.communication:.1%}" for f in found],
    }
    print(markdown(columns))
    return found


if __name__ == "__main__":
    main()
