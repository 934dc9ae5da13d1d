"""A small training job, and processes of their own for what is killed, terminated or shown on a terminal."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanSquaredError

import spen
from spen.domains import Simplex
from spen.energies import Energy, EntropySmoothed, Linear, Softplus, Sum
from spen.gradients import FiniteDifference
from spen.objectives import EndToEnd, squared_error
from spen.rules import Momentum
from spen.training import Run, Stage, TensorSource, clamped, fit, joint, pretrain

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


class Global(Energy):
    """A network on the labels and a dropout-free view of the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), Softplus(2.0), nn.Linear(8, 1))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.net(y.mean(1)).squeeze(1)


class MSE(MeanSquaredError):
    higher_is_better = False


def build_model(seed: int = 0) -> spen.SPEN:
    torch.manual_seed(seed)
    return spen.SPEN(
        features=nn.Sequential(
            nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 12), nn.Unflatten(1, (3, 4))
        ),
        init=nn.Identity(),
        energy=EntropySmoothed(Sum(local=Linear(), prior=Global()), 1.0),
        minimizer=spen.Minimizer(Simplex(), Momentum(3, 0.5, decay=0.25, learn_rates=True), FiniteDifference()),
    )


def build_data(batch_size: int = 8) -> tuple[TensorSource, TensorSource]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 6, generator=generator)
    target = torch.softmax(2 * torch.randn(6, 12, generator=generator).T @ x.T, 0).T.reshape(64, 3, 4)
    target = target / target.sum(-1, keepdim=True)
    train = TensorSource(x[:32], target[:32], batch_size)
    return train, TensorSource(x[32:], target[32:], 16, shuffle=False)


def build_stages(epochs: int) -> list[Stage]:
    objective = EndToEnd(squared_error)
    return [
        pretrain(squared_error, epochs=2, learning_rate=0.01),
        clamped(objective, epochs=2, learning_rate=0.01),
        joint(objective, epochs=epochs, learning_rate=0.01, warmup=4, decay_to=0.2),
    ]


def train(out: Path, *, epochs: int = 3, seed: int = 0, **options: Any) -> Run:
    source, dev = build_data()
    model = build_model(seed)
    return fit(
        model,
        build_stages(epochs),
        source,
        dev,
        MSE(),
        out=out,
        seed=seed,
        recipe={"name": "toy", "epochs": epochs},
        accelerator="cpu",
        progress=False,
        vitals_every=5,
        **options,
    )


def forkserver() -> ForkServerContext:
    """Processes forked from one that has imported this module: Python, torch and Lightning are loaded once for all."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tests.training.elastic"])
    return context


def start(function: Callable[..., Any], *arguments: Any, stderr: Path | str = os.devnull) -> ForkServerProcess:
    """Call a function in a process of its own, with one thread and with its stderr in a file or a terminal."""
    process = forkserver().Process(target=_call, args=(function, arguments, str(stderr)))
    process.start()
    return process


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], stderr: str) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
    function(*arguments)
