"""Peers: TorchOpt and higher differentiate an optimiser's steps; JAX differentiates a scan. Missing ones are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import Outcome, Step
from benchmarks.problems import Problem
from benchmarks.systems import SYSTEMS, System, Unavailable, system
from spen.tasks.denoising.energy import Observation

JAX_PYTHON = "SPEN_JAX_PYTHON"
"""An environment variable: the interpreter that has JAX, if it is another than this one."""


@system("TorchOpt", needs="torchopt")
def torchopt_sgd(problem: Problem) -> Step:
    """FuncOptimizer(sgd) with the learned rates as its schedule."""
    import torchopt

    _require_reals(problem, "TorchOpt")

    def step() -> list[Tensor]:
        now = 0
        rates = problem.model.minimizer.rule.rates()  # type: ignore[operator]
        optimizer = torchopt.FuncOptimizer(torchopt.sgd(lr=lambda _: rates[now], momentum=problem.decay))
        features = problem.model.features(problem.x)
        y = (problem.model.init(features).detach().requires_grad_(),)
        total = torch.zeros((), device=problem.device)
        for now in range(problem.steps):
            y = optimizer.step(problem.model.energy(y[0], features).sum(), y)
            total = total + _weighted(problem, now, y[0])
        return problem.gradients(total)

    return step


@system("higher", needs="higher")
def higher_sgd(problem: Problem) -> Step:
    """DifferentiableSGD with the learned rates as overrides."""
    import higher

    _require_reals(problem, "higher")

    def step() -> list[Tensor]:
        rates = problem.model.minimizer.rule.rates()  # type: ignore[operator]
        features = problem.model.features(problem.x)
        y = problem.model.init(features).detach().requires_grad_()
        plain = torch.optim.SGD([y], lr=1.0, momentum=problem.decay)
        optimizer, total = higher.get_diff_optim(plain, [y]), torch.zeros((), device=problem.device)
        for t in range(problem.steps):
            energy = problem.model.energy(y, features).sum()
            (y,) = optimizer.step(energy, params=[y], override={"lr": [rates[t]]})
            total = total + _weighted(problem, t, y)
        return problem.gradients(total)

    return step


def _require_reals(problem: Problem, who: str) -> None:
    if not problem.portable:
        raise Unavailable(f"{who} moves parameters of ℝⁿ from a start without gradient; {problem.name} is not that")


def _weighted(problem: Problem, t: int, y: Tensor) -> Tensor:
    return problem.loss(y, problem.target).mean() / (problem.steps - t) / problem.steps


def _no_step(problem: Problem) -> Step:
    raise Unavailable("this peer runs in a process of its own")


def _jax(checkpointed: bool):  # type: ignore[no-untyped-def]
    def outside(problem: Problem, seconds: float, repeats: int) -> Outcome:
        return run_jax(problem, checkpointed=checkpointed, seconds=seconds, repeats=repeats)

    return outside


for _name, _checkpointed in (("JAX scan", False), ("JAX scan, checkpoint", True)):
    SYSTEMS[_name] = System(_name, _no_step, outside=_jax(_checkpointed))


def run_jax(problem: Problem, *, checkpointed: bool, seconds: float, repeats: int) -> Outcome:
    """lax.scan of grad, jitted, on the same weights and inputs, in a process of its own with the memory to itself."""
    if not problem.portable or not isinstance(problem.x, Observation):
        raise Unavailable(f"there is no JAX version of {problem.name}")
    python = os.environ.get(JAX_PYTHON, sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "given.npz", Path(folder) / "answer.npz"
        arrays: dict[str, Any] = {name: p.detach().cpu().numpy() for name, p in problem.named_parameters().items()}
        x: dict[str, Tensor] = {"image": problem.x.image, "seen": problem.x.seen, "target": problem.target}
        arrays |= {f"x.{k}": v.cpu().numpy() for k, v in x.items()}
        np.savez(given, **arrays)
        options = ["--decay", str(problem.decay), "--temperature", "25", "--repeats", str(repeats)]
        options += ["--seconds", str(min(30.0, seconds / 4))] + (["--checkpoint"] if checkpointed else [])
        kind = problem.device.type
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": kind}
        script = Path(__file__).with_name("jax_scan.py")
        try:
            done = subprocess.run(
                [python, str(script), str(given), str(answer), *options],
                capture_output=True,
                text=True,
                timeout=max(seconds, 1.0),
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"JAX did not finish within {seconds:.0f} s") from None
        if done.returncode:
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()] or ["no message"]
            raise Unavailable(f"JAX: {lines[-1][:200]}")
        told = json.loads(done.stdout.strip().splitlines()[-1])
        with np.load(answer) as found:
            gradients = [torch.from_numpy(found[name]) for name in problem.named_parameters()]
    notes = {k: told[k] for k in ("version", "device", "allocator_peak_bytes", "precision") if k in told}
    if kind == "cpu":
        notes["cpu_ms"] = told["cpu_ms"]
    return Outcome(gradients, told["seconds"], told["peak_bytes"], None, told["setup_seconds"], notes)
