"""Upload models to the Hugging Face hub and fetch them: the files of ``save_pretrained``. Needs the extra ``hub``."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from spen import __version__
from spen.pretrained import CONFIG, WEIGHTS, save_pretrained

if TYPE_CHECKING:
    from spen.model import SPEN

__all__ = ["download", "is_repository", "push"]

CARD = "README.md"


def is_repository(name: Path | str) -> bool:
    """Whether a string has the form user/name. A ``Path`` always means a folder."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name, re.ASCII) is not None


def download(name: str, revision: str | None = None) -> Path:
    """The folder in the hub's cache that holds config.json and model.safetensors; no other file is fetched."""
    hub = _library(f"there is no folder {name!r}, and to look for it on the Hugging Face hub")
    who = {"library_name": "spen", "library_version": __version__}
    try:  # a snapshot is of one commit, also if somebody uploads meanwhile
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=[CONFIG, WEIGHTS], **who))
    except (OSError, ValueError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"there is no folder {name!r}, and it cannot be fetched from the Hugging Face hub: {first}"
        ) from error


def push(model: SPEN, name: str, *, private: bool | None = None, revision: str | None = None) -> str:
    """Upload the model and return the URL of the commit. An existing model card is not overwritten."""
    if not is_repository(name):
        raise ValueError(f'a model of the Hugging Face hub is called "user/name", not {name!r}')
    api = _library("to upload a model to the Hugging Face hub").HfApi(library_name="spen", library_version=__version__)
    with tempfile.TemporaryDirectory() as place:
        folder = save_pretrained(model, place)  # first: a model that cannot be saved makes no repository
        api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        if not api.file_exists(name, CARD, revision=revision):
            (folder / CARD).write_text(_card(model, name), encoding="utf-8")
        commit = api.upload_folder(
            repo_id=name, folder_path=folder, revision=revision, commit_message=f"Upload a model of spen {__version__}"
        )
    return str(commit.commit_url)


def _library(purpose: str) -> ModuleType:
    try:
        import huggingface_hub
    except ImportError:
        raise ModuleNotFoundError(f"{purpose}, run `pip install huggingface_hub`") from None
    return huggingface_hub


def _card(model: SPEN, name: str) -> str:
    origin = model.origin
    built = "It was built by hand" if origin is None else f"Its builder is `{origin.builder}`"
    build = ", build=make_model" if origin is None else ""
    return f"""---
library_name: spen
tags:
- structured-prediction
- energy-based-model
---

# {name.partition("/")[2]}

A structured prediction energy network of the library spen, version {__version__}: it predicts by gradient
descent on a learned energy. {built}; it has {sum(p.numel() for p in model.parameters()):,} parameters.

```python
import spen

model = spen.SPEN.from_pretrained("{name}"{build})
trajectory = model(x)
y = trajectory.output
```
"""
