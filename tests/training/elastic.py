"""Runs of two processes that torchrun's agent starts, and starts again when one has ended.

The first attempt ends when the second process kills itself before update ``at`` of the run ``killed``.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities.rank_zero import rank_zero_only

import spen
from spen.gradients import FiniteDifference
from spen.objectives import EndToEnd, squared_error
from spen.rules import Momentum
from spen.tasks.multilabel.recipes import RECIPES
from spen.tasks.multilabel.train import train as train_label_sets
from spen.tasks.srl.recipes import find_recipe
from spen.tasks.srl.train import train as train_roles
from spen.training import Run, TensorSource, fit, joint
from spen.training.module import StageModule
from tests.tasks.multilabel.small import small_splits
from tests.tasks.srl.small import prepared
from tests.training import toy


def whole(out: Path, **options: Any) -> Run:
    """Three epochs of two updates; the dropout of F draws numbers in each process."""
    train, dev = toy.build_data()
    stage = joint(squared_error, epochs=3, learning_rate=0.01, warmup=2, decay_to=0.2)
    return fit(toy.build_model(), [stage], train, dev, toy.MSE(), out=out, accelerator="cpu", progress=False, **options)


def uneven(out: Path) -> Run:
    """Nine examples in batches of four for two processes, one development example, early stops."""
    train, dev = toy.build_data()
    model = toy.build_model()
    model.minimizer = spen.Minimizer(
        model.minimizer.domain, Momentum(8, 0.5), FiniteDifference(), spen.RelativeChange(0.02)
    )
    few = TensorSource(train.x[:9], train.target[:9], 4)
    one = TensorSource(dev.x[:1], dev.target[:1], 2, shuffle=False)
    stage = joint(EndToEnd(squared_error), epochs=4, patience=1, learning_rate=0.01)
    return fit(model, [stage], few, one, toy.MSE(), out=out, accelerator="cpu", progress=False)


def killed(out: Path, at: int) -> Run:
    """As ``whole``; one process of the first attempt dies."""
    step = StageModule.training_step

    def training_step(self: Any, batch: Any, index: int) -> Any:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.global_rank == 1 and self.global_step == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, batch, index)

    StageModule.training_step = training_step  # type: ignore[method-assign]
    try:
        return whole(out)
    finally:
        StageModule.training_step = step  # type: ignore[method-assign]


def main(out: Path, at: int) -> None:
    torch.set_num_threads(1)
    rank_zero_only.rank = int(os.environ["RANK"])  # as if Lightning had been imported in this process
    (out / f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}").touch()
    whole(out / "undisturbed")
    uneven(out / "uneven")
    if not (out / "begun by two" / "state").exists():
        whole(out / "begun by two", seconds=0.0)
    whole(out / "begun by one")
    few = {"hidden": (16,), "network": (8,), "pretrain_epochs": 1, "epochs": 1, "batch_size": 30}
    recipe = replace(RECIPES["bibtex-end-to-end"], **few)
    train_label_sets(recipe, out / "labels", splits=small_splits(), progress=False)
    train_roles(replace(find_recipe("local"), pretrain_epochs=1), prepared(size=12), out / "roles", progress=False)
    killed(out / "killed", at)
