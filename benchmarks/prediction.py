"""A prediction of the shipped dp-3 on an image of 640×480, beside a plain loop of autograd.grad.

python -m benchmarks.prediction
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import spen
from benchmarks.ceilings import precise, wait
from benchmarks.measure import in_turns
from benchmarks.results import parser_of, write_measured
from benchmarks.table import markdown
from spen.models import open_model
from spen.tasks.denoising.data import Rooms
from spen.tasks.denoising.energy import Observation

WARM_UP = 10  # a program may serve a shape after a few batches of it


def observation(height: int, width: int, device: str) -> Observation:
    """A frame of a room, repeated until it is large enough."""
    frame = Rooms("test", 1).frame(0)
    times = [-(-wanted // have) for wanted, have in zip((height, width), frame.noisy.shape[-2:], strict=True)]
    planes = [p.float().repeat(1, *times)[None, :, :height, :width].to(device) for p in (frame.noisy, frame.valid)]
    return Observation(*planes)


def plain_loop(model: spen.SPEN, x: Any) -> Tensor:
    """y_T as one would write it by hand: dE/dy by autograd, the rule's update, nothing else."""
    domain, rule = model.minimizer.domain, model.minimizer.rule
    features = model.features(x)
    z = domain.enter(model.init(features))
    state = rule.begin(z)
    for t in range(rule.steps):
        with torch.enable_grad():
            y = domain.output(z).detach().requires_grad_()
            (gradient,) = torch.autograd.grad(model.energy(y, features).sum(), y)
        direction, state = rule.update(t, z, gradient, state)
        z = domain.step(z, direction)
    return domain.output(z)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = parser_of("prediction", __doc__)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = True
    device = torch.device(options.device)
    model = open_model("dp-3").model.to(device).eval()
    x = observation(options.height, options.width, options.device)
    calls: dict[str, Callable[[], Tensor]] = {
        "model(x)": lambda: model(x).output,
        "a plain loop of autograd.grad": lambda: plain_loop(model, x),
    }
    with torch.no_grad(), precise("tf32"):
        for _ in range(WARM_UP):
            answer = calls["model(x)"]()
        away = float((answer - plain_loop(model, x)).abs().max())
        wait(device)
        times = in_turns(calls, device, seconds=options.seconds, repeats=options.repeats)
    found = {name: 1000 * statistics.median(taken) for name, taken in times.items()}
    write_measured(options.out, options.device, milliseconds=found, difference=away, times=times)
    print(markdown({"dp-3": list(found), "ms a prediction": [f"{ms:.2f}" for ms in found.values()]}))
    print(f"{options.width}×{options.height} on {options.device}; answers are at most {away:.1e} apart")
    return {**found, "difference": away}


if __name__ == "__main__":
    main()
