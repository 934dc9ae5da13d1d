"""The data folder: $SPEN_DATA or, where it is not set, the cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder downloads go to, as the operating system prefers."""
    import pooch  # lazily: with $SPEN_DATA set, nothing is ever looked up or fetched

    return Path(pooch.os_cache("spen"))


def data_folders() -> list[Path]:
    """The folders searched, in order: the one that $SPEN_DATA names or, where it is not set, the cache folder."""
    if chosen := os.environ.get("SPEN_DATA"):
        return [Path(chosen)]
    return [cache_folder()]


def find_data(*parts: str) -> Path:
    """The first of the data folders that holds `parts`, joined with it: find_data("srl", "ewt")."""
    wanted = Path(*parts)
    folders = data_folders()
    for folder in folders:
        if (folder / wanted).exists():
            return (folder / wanted).resolve()
    searched = ", ".join(str(folder) for folder in folders)
    raise FileNotFoundError(
        f"no {wanted} under {searched}; set SPEN_DATA to the folder that holds it, or run `spen data fetch`"
    )
