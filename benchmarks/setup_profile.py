"""Where the time goes until the first compiled training step: python -m benchmarks.setup_profile [kind]."""

from __future__ import annotations

import cProfile
import pstats
import sys
import time

import torch

from benchmarks.kinds import FULL, SMALL, make
from spen.gradients import Compiled


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    problem = make(sys.argv[1] if len(sys.argv) > 1 else "deep-prior", device, FULL if device == "cuda" else SMALL)
    model = problem.with_strategy(Compiled(patience=0, keep=True))
    profile = cProfile.Profile()
    for step in range(5):
        began = time.perf_counter()
        profile.enable()
        problem.gradients(problem.objective(model, problem.x, problem.target))
        if device == "cuda":
            torch.cuda.synchronize()
        profile.disable()
        print(f"step {step}: {time.perf_counter() - began:.2f} s", flush=True)
    pstats.Stats(profile).sort_stats("cumulative").print_stats("spen|triton|inductor|dynamo|subprocess", 45)


if __name__ == "__main__":
    main()
