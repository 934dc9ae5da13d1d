"""`spen data fetch 7scenes` and `spen data make 7scenes`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from spen.tasks.locations import cache_folder
from spen.tasks.options import resolve_device
from spen.tasks.task import Progress


def fetch(folder: Path | None, *, scene: str = "redkitchen") -> list[Path]:
    """Download a scene and unpack it."""
    from spen.tasks.denoising.sevenscenes.download import fetch_sevenscenes

    return [fetch_sevenscenes(scene, folder or _downloads(), show_progress=sys.stderr.isatty())]


def make(source: Path | None, out: Path | None, *, progress: Progress, device: str = "cpu") -> dict[str, Any]:
    """Fuse the frames of a scene into pairs of readings and clean depth."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device is cpu or cuda, not {device!r}")
    source = source or _downloads() / "redkitchen"
    out = out or cache_folder() / "denoising" / source.name
    resolve_device(device)
    from spen.tasks.denoising.sevenscenes.prepare import prepare

    return {"folder": out, "unit": "frames", "sizes": prepare(source, out, device=device, progress=progress)}


def _downloads() -> Path:
    return cache_folder() / "raw" / "7scenes"
