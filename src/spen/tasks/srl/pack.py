"""A finished run as a model of the package: NAME.json and NAME.safetensors, which `Labeller.open` reads by name.

python -m spen.tasks.srl.pack RUN NAME --about "what it is" --command "what trained it" [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import torch

from spen.tasks.srl.training import recipe_of
from spen.training import Run, save_weights

__all__ = ["main", "pack"]


def pack(run: Path | str, name: str, folder: Path | str, *, about: str, command: str) -> Path:
    """Write the two files and return the JSON's path. Matrices are kept in half precision: half the size."""
    opened, folder = Run.open(run), Path(folder)
    description = opened.description()
    recipe = recipe_of(description["recipe"])
    held = json.loads((opened.folder / "srl.json").read_text(encoding="utf-8"))
    weights = {
        key: value.to(torch.float16) if value.is_floating_point() and value.dim() > 1 else value
        for key, value in opened.load().items()
    }
    values = {
        "task": "srl",
        "data": description["recipe"].get("data", ""),
        "about": about,
        "command": command,
        **{key: description[key] for key in ("seed", "hardware", "versions") if key in description},
        "recipe": recipe.describe(),
        **held,
    }
    save_weights(weights, folder / f"{name}.safetensors")
    path = folder / f"{name}.json"
    lines = ",\n ".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in values.items())
    path.write_text(f"{{\n {lines}\n}}\n", encoding="utf-8")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; errors are one line and status 2."""
    parser = argparse.ArgumentParser(prog="python -m spen.tasks.srl.pack", description="Pack a run as a shipped model.")
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--about", required=True)
    parser.add_argument("--command", required=True, help="the command that trained it")
    parser.add_argument("--folder", type=Path, default=Path(str(resources.files("spen") / "weights")))
    given = parser.parse_args(arguments)
    try:
        print(pack(given.run, given.name, given.folder, about=given.about, command=given.command))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
