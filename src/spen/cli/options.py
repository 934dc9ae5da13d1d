"""What several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from spen.tasks.srl.corpora import Splits

Split = Literal["train", "dev", "test"]
Device = Literal["cpu", "cuda"]
Accelerator = Literal["auto", "cpu", "gpu"]

Json = Annotated[bool, typer.Option("--json", help="For a program to read.")]
OnDevice = Annotated[Device, typer.Option(help="Where the model runs.")]
Seconds = Annotated[
    float | None, typer.Option(min=1, help="Stop after these; the same command goes on later, exit status 3.")
]

OUT_OF_TIME = 3
"""The exit status that asks for the same command again."""


def parse_settings(options: list[str]) -> dict[str, str]:
    """KEY=VALUE pairs of --set."""
    settings = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise ValueError(f"--set takes KEY=VALUE, not {option!r}")
        settings[key.strip()] = value.strip()
    return settings


def check_device(device: str) -> None:
    """A card that is not there is a mistake to tell before anything is read."""
    if device in ("cuda", "gpu"):
        import torch

        if not torch.cuda.is_available():
            raise ValueError(f"there is no {device} here that torch can use; leave the option away to run on the CPU")


def open_roles(data: str) -> tuple[str, Splits, Path | None]:
    """(name, splits, word vectors) of role labelling data: builtin, ewt, or a folder that holds EWT."""
    from spen.tasks.locations import find_data
    from spen.tasks.srl.corpora import builtin_splits, ewt_splits

    if data in ("", "builtin"):
        return "builtin", builtin_splits(3000), None
    folder = find_data("srl") if data == "ewt" else Path(data)
    if not folder.is_dir():
        raise ValueError(f"there is no data set {data!r} for role labelling; there are builtin, ewt, or a folder")
    vectors = folder / "embeddings"
    return "ewt", ewt_splits(folder), vectors if vectors.is_dir() else None


def run_recipe(folder: Path) -> dict[str, Any]:
    """The recipe that a run folder was trained with."""
    import json

    path = folder / "run.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a run: it has no run.json")
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["recipe"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); train the run again") from None


def describe_model(model: str) -> dict[str, Any]:
    """The recipe of a run folder, or what stands beside the weights of a saved or shipped model; all name the task."""
    from spen.pretrained import is_pretrained, read_config
    from spen.tasks.shipped import about, check_model

    check_model(model)
    folder = Path(model)
    if folder.is_dir() and is_pretrained(folder):
        config = read_config(folder)
        return {**config["settings"], "task": config["builder"]}
    return run_recipe(folder) if folder.is_dir() else about(model)
