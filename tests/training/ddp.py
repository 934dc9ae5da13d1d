"""Runs with devices=2, whose second process Lightning starts: python tests/training/ddp.py OUT."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics import CatMetric

from spen.objectives import squared_error
from spen.training import TensorSource, fit, joint, save_weights
from spen.training.module import StageModule
from tests.training import toy
from tests.training.toy import MSE, build_data, build_model

SIZES = (5, 2)  # of development sets that two processes cannot share equally: three batches of two, and one


class Kept(CatMetric):
    """A metric that keeps what it has seen: its mean."""

    higher_is_better = False

    def update(self, y: Tensor, target: Tensor) -> None:  # type: ignore[override]
        super().update(squared_error(y, target))

    def compute(self) -> Tensor:
        return torch.as_tensor(super().compute()).mean()


def run(out: Path, devices: int) -> None:
    """One run that writes the gradients of each update, and one for each size and metric."""
    full, dev = build_data()
    options: dict[str, Any] = {"accelerator": "cpu", "devices": devices, "progress": False}
    model = build_model()
    model.features[2].p = 0.0  # type: ignore[index, assignment, union-attr]  # processes draw different masks
    train = TensorSource(full.x, full.target, 8 // devices, shuffle=False)
    gradients: dict[str, Tensor] = {}
    original = StageModule.on_before_optimizer_step

    def keep(self: Any, optimizer: Any) -> None:
        named = self.model.named_parameters()
        gradients.update({f"{self.global_step}/{n}": p.grad.clone() for n, p in named if p.grad is not None})
        original(self, optimizer)

    StageModule.on_before_optimizer_step = keep  # type: ignore[method-assign]
    try:
        fit(model, [joint(squared_error, epochs=1)], train, dev, MSE(), out=out / "gradients", **options)
    finally:
        StageModule.on_before_optimizer_step = original  # type: ignore[method-assign]
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        save_weights(gradients, out / "gradients.safetensors")
    train = TensorSource(full.x[:16], full.target[:16], 16 // devices, shuffle=False)
    for size in SIZES:
        for metric in (MSE(), Kept()):
            few = TensorSource(dev.x[:size], dev.target[:size], 2, shuffle=False)
            stage = joint(squared_error, epochs=1, learning_rate=1e-6)
            fit(build_model(), [stage], train, few, metric, out=out / f"{size}-{type(metric).__name__}", **options)


def run_two(out: Path) -> None:
    os.environ.update(toy.ENVIRONMENT)
    sys.argv = [__file__, str(out)]  # what Lightning starts the second process with
    run(out, 2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(Path(sys.argv[1]), 2)
