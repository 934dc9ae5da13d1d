"""`spen data fetch ewt`, `spen data make ewt` and `spen data make conll2005`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from spen.tasks.locations import cache_folder
from spen.tasks.task import Progress


def fetch(folder: Path | None) -> list[Path]:
    """Download the treebank and the propositions."""
    from spen.tasks.srl.download import fetch_ewt

    archives = fetch_ewt(folder or _downloads(), progress=sys.stderr.isatty())
    return [archives.treebank, archives.propbank]


def make(source: Path | None, out: Path | None, *, progress: Progress) -> dict[str, Any]:
    """Join the treebank and the propositions."""
    from spen.tasks.srl.download import find_archives
    from spen.tasks.srl.formats.ewt import make_ewt

    source, out = source or _downloads(), out or cache_folder() / "srl" / "ewt"
    archives = find_archives(source)
    if archives is None:
        raise ValueError(f"{source} does not hold the two archives of EWT; `spen data fetch ewt` downloads them")
    join = make_ewt(archives.treebank, archives.propbank)
    join.write(out)
    sizes = {split: len(sentences) for split, sentences in join.splits.items()}
    return {"folder": out, "unit": "sentences", "sizes": sizes, "dropped": len(join.dropped)}


def make_conll2005(
    source: Path | None, out: Path | None, *, progress: Progress, ptb: Path | None = None
) -> dict[str, Any]:
    """Put the words of the Penn Treebank back into the shared task's files."""
    if ptb is None:
        raise ValueError("conll2005 has no words of its own: give the Penn Treebank with --ptb DIR")
    if source is None:
        raise ValueError("give the folder of the shared task's release with --source DIR")
    if out is not None:
        raise ValueError("the words of conll2005 are put into its --source folder; leave --out away")
    from spen.tasks.srl.formats.penn import make_conll2005

    made = make_conll2005(ptb, source)
    return {"folder": source, "unit": "sentences", "sizes": {file.name: count for file, count in made.items()}}


def _downloads() -> Path:
    return cache_folder() / "raw" / "ewt"
