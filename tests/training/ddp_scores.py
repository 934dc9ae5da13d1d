"""Development scores of sets that processes cannot share equally: python -m tests.training.ddp_scores OUT DEVICES."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor
from torchmetrics import CatMetric, Metric

from spen.objectives import EndToEnd, squared_error
from spen.training import TensorSource, fit, joint
from tests.training.toy import MSE, build_data, build_model

SIZES = (5, 2)  # three batches of two, and one


class Kept(CatMetric):
    """A metric that keeps what it has seen: its mean."""

    higher_is_better = False

    def update(self, y: Tensor, target: Tensor) -> None:  # type: ignore[override]
        super().update(squared_error(y, target))

    def compute(self) -> Tensor:
        return torch.as_tensor(super().compute()).mean()


def run(out: Path, devices: int) -> None:
    torch.set_num_threads(1)
    full, dev = build_data()
    for size in SIZES:
        for metric in (MSE(), Kept()):
            score(out / f"{size}-{type(metric).__name__}", devices, full, dev, size, metric)


def score(out: Path, devices: int, full: TensorSource, dev: TensorSource, size: int, metric: Metric) -> None:
    train = TensorSource(full.x[:16], full.target[:16], 16 // devices, shuffle=False)
    dev = TensorSource(dev.x[:size], dev.target[:size], 2, shuffle=False)
    stage = joint(EndToEnd(squared_error), epochs=1, learning_rate=1e-6)
    fit(build_model(), [stage], train, dev, metric, out=out, accelerator="cpu", devices=devices, progress=False)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
