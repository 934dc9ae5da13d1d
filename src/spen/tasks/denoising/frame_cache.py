"""Frames made once and kept in a file, for many processes that read the same ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from spen.storage import save_weights
from spen.tasks.denoising.data import Frame, Frames


class KeptFrames:
    """The frames of a file that ``keep`` wrote."""

    def __init__(self, path: Path | str) -> None:
        with safe_open(path, framework="pt") as file:
            self._names: list[str] = json.loads(file.metadata()["names"])
            self._parts: list[Tensor] = [file.get_tensor(name) for name in Frame._fields]

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return self._names[index]

    def frame(self, index: int, epoch: int = 0) -> Frame:
        """Noise is as it was when the frames were kept, in every epoch."""
        return Frame(*(part[index] for part in self._parts))


def keep(frames: Frames, path: Path | str, made: Iterable[Frame] | None = None) -> KeptFrames:
    """Write frames of one size (or what ``made`` yields of them) unless the file is there, and read it."""
    path = Path(path)
    if not path.exists():
        made = (frames.frame(index) for index in range(len(frames))) if made is None else made
        columns = [torch.stack(column) for column in zip(*made, strict=True)]
        names = json.dumps([frames.name(index) for index in range(len(frames))])
        save_weights(dict(zip(Frame._fields, columns, strict=True)), path, {"names": names})
    return KeptFrames(path)
