"""Small things to view: a run that was trained for a moment, problems with known landscapes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spen
from spen.builders import Origin
from spen.domains import Reals
from spen.energies import Energy
from spen.gradients import Exact
from spen.pretrained import write_config
from spen.protocols import Domain
from spen.rules import GradientDescent
from spen.tasks.denoising.recipes import find_recipe
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.train import train


def train_small(folder: Path, *, epochs: int, per_epoch: int) -> Path:
    """foe-3 on the built-in rooms, a few batches an epoch: a true run folder in seconds."""
    recipe = find_recipe("foe-3").with_options(
        batches=per_epoch * epochs, per_epoch=per_epoch, batch_size=2, width=8, crop=(48, 64), warmup=2
    )
    run = train(recipe, find_regime("rooms"), folder, quick=True, accelerator="cpu", progress=False)
    assert run is not None
    return folder


def fake_run(folder: Path, *, task: str = "denoising", entries: int = 0, **recipe: Any) -> Path:
    """A folder that looks like a run in training: run.json, config.json and as many epochs."""
    folder.mkdir(parents=True)
    write_config(folder, Origin(task, {}))
    description = {"recipe": {"name": "foe-3", "task": task, "data": "rooms", **recipe}, "seed": 0}
    (folder / "run.json").write_text(json.dumps(description))
    if entries:
        lines = [
            json.dumps({"stage": "joint", "epoch": k, "loss": 1 / (k + 1), "dev": 30.0 + k}) for k in range(entries)
        ]
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def unfinished(run: Path, folder: Path, *, epochs: int) -> list[str]:
    """A copy of a run as it was after some epochs; the lines of metrics.jsonl still to come are returned."""
    folder.mkdir(parents=True)
    shutil.copy(run / "run.json", folder / "run.json")
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:epochs]), encoding="utf-8")
    return lines[epochs:]


class Bowl(Energy):
    """½ Σ_i k_i (y_i − c_i)²."""

    def __init__(self, stiffness: list[float], centre: list[float]) -> None:
        super().__init__()
        self.k, self.c = torch.tensor(stiffness), torch.tensor(centre)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return 0.5 * (self.k * (y - self.c).square()).flatten(1).sum(1)


class Given(nn.Module):
    """Init: the features themselves."""

    def forward(self, features: Tensor) -> Tensor:
        return features


def model(energy: Energy, domain: Domain | None = None, *, steps: int = 4, rate: float = 0.1) -> spen.SPEN:
    minimizer = spen.Minimizer(domain or Reals(), GradientDescent(steps, rate), Exact())
    return spen.SPEN(energy=energy, init=Given(), minimizer=minimizer)
