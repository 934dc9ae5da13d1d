"""A small multi-label problem: labels that follow from the inputs, and a rule among labels."""

from __future__ import annotations

from pathlib import Path

import torch

from spen.tasks.multilabel.data import Splits, read_parts
from spen.tasks.multilabel.tables import LabelSets, Schema


def small_splits(size: int = 240, inputs: int = 12, labels: int = 5) -> Splits:
    generator = torch.Generator().manual_seed(5)
    x = (torch.rand(size, inputs, generator=generator) < 0.4).float()
    weight = torch.randn(inputs, labels - 1, generator=generator)
    y = ((x - 0.4) @ weight > 0.3).float()
    y = torch.cat([y, (y[:, :1] * y[:, 1:2])], 1)  # the last label: the first two together
    names = tuple(f"label {i}" for i in range(labels))
    parts = [LabelSets(x[a:b], y[a:b], names) for a, b in ((0, 140), (140, 190), (190, size))]
    return Splits(*parts)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, *targets: str) -> LabelSets:
    """The first table of a file, as the model of a fresh training would read it."""
    table = read_parts(path, targets)[0]
    return Schema.of(table).label_sets(table)
