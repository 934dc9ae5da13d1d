"""How many operations the losses of all iterates take, forward and backward: one by one and in one call.

PYTHONPATH=. python docs/scripts/launches.py

Counted on the CPU, without what launches nothing on a GPU.
"""

from __future__ import annotations

import torch

from benchmarks.counting import Operations
from benchmarks.problems import Problem
from benchmarks.small import label_sets, srl
from spen.objectives import EndToEnd, vmapped_loss


def launches(problem: Problem, devices: tuple[str, ...]) -> int:
    vmapped_loss.DEVICES = devices
    objective = EndToEnd(problem.loss)
    trajectory = problem.model(problem.x)
    trajectory.outputs = [y.detach().requires_grad_() for y in trajectory.outputs]
    objective.of(trajectory, problem.target)
    with Operations() as counted:
        torch.autograd.grad(objective.of(trajectory, problem.target), trajectory.outputs)
    return counted.launches


if __name__ == "__main__":
    for problem in (srl("cpu", batch=2), label_sets("cpu", batch=2)):
        single, once = launches(problem, ()), launches(problem, ("cpu",))
        print(f"{problem.name}, {problem.sizes['steps']} iterates: {single} operations one by one, {once} in one call")
