"""Any trained model of the tasks, by name, as something to export."""

from __future__ import annotations

from pathlib import Path

from spen.export import Exportable, Written, write

__all__ = ["exportable", "save_folder", "write"]


def exportable(name: str, task: str) -> Exportable:
    """The model of a run folder, of a folder that ``save_pretrained`` wrote, or of the package."""
    if task == "denoising":
        from spen.tasks.denoising.exporting import exportable as found
    elif task == "srl":
        from spen.tasks.srl.exporting import exportable as found
    elif task == "multilabel":
        from spen.tasks.multilabel.exporting import exportable as found
    else:
        raise ValueError(f"{name} is a model of {task!r}, which cannot be exported")
    return found(name)


def save_folder(thing: Exportable, folder: Path) -> Written:
    """config.json and model.safetensors, for ``SPEN.from_pretrained``; a folder with other files is left alone."""
    others = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    if set(others) - {"config.json", "model.safetensors"}:
        raise ValueError(f"{folder} holds other files ({sorted(others)[0]}); give a folder that is empty or new")
    return Written(thing.model.save_pretrained(folder), "pretrained", {}, None)
