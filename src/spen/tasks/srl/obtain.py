"""`spen data fetch ewt`, `spen data make ewt` and `spen data make conll2005`.

EWT is joined from two repositories at pinned commits. Their host makes archives on demand and does not promise equal
bytes, so the checksums are those of the joined corpus: they fix every token, head and span.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pooch

from spen.tasks.locations import cache_folder
from spen.tasks.srl.formats.ewt import make_ewt, tsv_text
from spen.tasks.srl.formats.penn import make_conll2005 as put_words_back
from spen.tasks.srl.sentences import BadCorpus, Sentence, write_text
from spen.tasks.task import Progress

HOST = "https://github.com"
# repository → commit: the treebank, then the propositions
REPOSITORIES = {"UniversalDependencies/UD_English-EWT": "15d613d", "propbank/propbank-release": "4abade0"}
# sha256 of the joined TSVs, not compressed
JOINED = {
    "train": "dcb213d843986ebbd0507a8bdb929f35afbfbf9e893fa2a830b49a371eac7a32",
    "dev": "de03a6afc949f42aa4946ef841c4c1c59c140cbe29921ce63361e2868cf7d6f1",
    "test": "ae76668ac24133e5a56d3334eda9da18a83f78a082dd989b0cf6b2c693fc9f42",
}


def fetch(folder: Path | None) -> list[Path]:
    """Download the treebank and the propositions."""
    return fetch_ewt(folder or _downloads(), progress=sys.stderr.isatty())


def make(source: Path | None, out: Path | None, *, progress: Progress) -> dict[str, Any]:
    """Join the treebank and the propositions: ewt-srl.{train,dev,test}.tsv.gz."""
    source, out = source or _downloads(), out or cache_folder() / "srl" / "ewt"
    archives = find_archives(source)
    if len(archives) < len(REPOSITORIES):
        raise ValueError(f"{source} does not hold the two archives of EWT; `spen data fetch ewt` downloads them")
    splits, dropped = make_ewt(*archives.values())
    check_ewt(splits, source)
    out.mkdir(parents=True, exist_ok=True)
    for split, sentences in splits.items():
        write_text(out / f"ewt-srl.{split}.tsv.gz", tsv_text(sentences))
    sizes = {split: len(sentences) for split, sentences in splits.items()}
    return {"folder": out, "unit": "sentences", "sizes": sizes, "dropped": len(dropped)}


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
    made = put_words_back(ptb, source)
    return {"folder": source, "unit": "sentences", "sizes": {file.name: count for file, count in made.items()}}


def fetch_ewt(folder: Path, *, host: str = HOST, progress: bool = False) -> list[Path]:
    """Download the archives that the folder lacks, join them and compare checksums (3 seconds)."""
    found = find_archives(folder)
    for repository, commit in REPOSITORIES.items():
        if repository not in found:
            url, name = f"{host}/{repository}/archive/{commit}.tar.gz", f"{_stem(repository)}.tar.gz"
            try:
                path = pooch.retrieve(url, known_hash=None, fname=name, path=folder, progressbar=progress)
            except (OSError, ValueError) as error:
                problem = f"{url} could not be fetched ({type(error).__name__}); check the network"
                raise ConnectionError(f"{problem}, or put {name} into {folder} yourself") from error
            found[repository] = Path(path)
    archives = [found[repository] for repository in REPOSITORIES]
    check_ewt(make_ewt(*archives)[0], folder)
    return archives


def find_archives(folder: Path) -> dict[str, Path]:
    """The archive of each repository that the folder holds, as REPOSITORY-COMMIT*.tar.*, in the order above."""
    found = {repository: sorted(folder.glob(f"{_stem(repository)}*.tar.*")) for repository in REPOSITORIES}
    return {repository: paths[0] for repository, paths in found.items() if paths}


def check_ewt(splits: Mapping[str, Sequence[Sentence]], where: Path) -> None:
    """Raise unless the joined splits have the known checksums."""
    for split, sentences in splits.items():
        if hashlib.sha256(tsv_text(sentences).encode()).hexdigest() != JOINED[split]:
            problem = f"the {split} split differs from the pinned one; delete the archives there and fetch them again"
            raise BadCorpus(where, 0, problem)


def _stem(repository: str) -> str:
    return f"{repository.rpartition('/')[2]}-{REPOSITORIES[repository]}"


def _downloads() -> Path:
    return cache_folder() / "raw" / "ewt"
