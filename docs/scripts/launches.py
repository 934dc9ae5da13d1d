"""How many operations the losses of all iterates take, forward and backward: one by one and in one call.

python docs/scripts/launches.py

Counted on the CPU by torch's dispatcher, without views and empty memory, which launch nothing on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.problems import Problem
from benchmarks.small import label_sets, srl
from spen.objectives import EndToEnd, together


class Count(TorchDispatchMode):
    """Operations that write numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (function.is_view or "empty" in str(function) or "detach" in str(function))
        return function(*args, **(kwargs or {}))


def operations(problem: Problem, devices: tuple[str, ...]) -> int:
    together.DEVICES = devices
    objective = EndToEnd(problem.loss)
    trajectory = problem.model(problem.x)
    trajectory.outputs = [y.detach().requires_grad_() for y in trajectory.outputs]
    objective.of(trajectory, problem.target)
    with Count() as counted:
        torch.autograd.grad(objective.of(trajectory, problem.target), trajectory.outputs)
    return counted.count


if __name__ == "__main__":
    for problem in (srl("cpu", batch=2), label_sets("cpu", batch=2)):
        single, once = operations(problem, ()), operations(problem, ("cpu",))
        print(f"{problem.name}, {problem.sizes['steps']} iterates: {single} operations one by one, {once} in one call")
