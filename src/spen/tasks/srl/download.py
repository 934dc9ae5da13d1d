"""EWT from its two repositories at pinned commits, checked by what the join of the two must be.

The host makes repository archives on demand and does not promise equal bytes, so an archive that only it made has no
checksum to know; archives whose checksum is known are checked first. Either way the joined corpus must have the known
checksums, which pins every token, head and span that is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pooch

from spen.tasks.srl.formats.ewt import SPLITS, EwtJoin, make_ewt, tsv_text
from spen.tasks.srl.sentences import BadCorpus, read_text

__all__ = ["PROPBANK", "TREEBANK", "EwtArchives", "Source", "check_ewt", "fetch_ewt", "find_archives"]


@dataclass(frozen=True, slots=True)
class Source:
    """A repository at a commit, and archives of it whose checksum is known."""

    repository: str
    commit: str
    known: Mapping[str, str]  # file name → sha256

    @property
    def file(self) -> str:
        return f"{self.repository.rpartition('/')[2]}-{self.commit}.tar.gz"

    def url(self, host: str) -> str:
        return f"{host}/{self.repository}/archive/{self.commit}.tar.gz"


TREEBANK = Source(
    "UniversalDependencies/UD_English-EWT",
    "15d613d",
    {
        "UD_English-EWT-15d613d.sources.tar.xz": "2006075dafee0fc3837ccb183e85f308c3a43ead6e42717d0542a2df51d2aa83",
    },
)
PROPBANK = Source(
    "propbank/propbank-release",
    "4abade0",
    {
        "propbank-release-4abade0.ewt-gold_skel.tar.xz": (
            "852471c7e7ef13830839292ae8a00e303918e93508ee137e7077cbcea9a1401d"
        ),
    },
)
# sha256 of the joined TSVs, not compressed.
JOINED = {
    "train": "dcb213d843986ebbd0507a8bdb929f35afbfbf9e893fa2a830b49a371eac7a32",
    "dev": "de03a6afc949f42aa4946ef841c4c1c59c140cbe29921ce63361e2868cf7d6f1",
    "test": "ae76668ac24133e5a56d3334eda9da18a83f78a082dd989b0cf6b2c693fc9f42",
}
HOST = "https://github.com"


class EwtArchives(NamedTuple):
    """The two archives, ready for make_ewt(*archives)."""

    treebank: Path
    propbank: Path


def find_archives(folder: str | Path) -> EwtArchives | None:
    """The two archives where the folder already holds both (those with known checksums must have them); else None."""
    found: list[Path] = []
    for source in (TREEBANK, PROPBANK):
        path = _present(source, Path(folder))
        if path is None:
            return None
        found.append(path)
    return EwtArchives(*found)


def fetch_ewt(folder: str | Path, *, host: str = HOST, check: bool = True, progress: bool = False) -> EwtArchives:
    """Download what the folder lacks of the two archives; `check` joins them and compares checksums (3 seconds)."""
    folder = Path(folder)
    paths = []
    for source in (TREEBANK, PROPBANK):
        path = _present(source, folder)
        if path is None:
            try:
                name = pooch.retrieve(
                    source.url(host), known_hash=None, fname=source.file, path=folder, progressbar=progress
                )
            except (OSError, ValueError) as error:
                problem = f"{source.url(host)} could not be fetched ({type(error).__name__}); check the network"
                raise ConnectionError(f"{problem}, or put {source.file} into {folder} yourself") from error
            path = Path(name)
        paths.append(path)
    archives = EwtArchives(*paths)
    if check:
        check_ewt(make_ewt(*archives), folder)
    return archives


def check_ewt(join: EwtJoin | Mapping[str, str | Path], where: str | Path) -> None:
    """The joined splits (or TSV files of them) have the known checksums."""
    for split in SPLITS:
        text = tsv_text(join.splits[split]) if isinstance(join, EwtJoin) else read_text(join[split])
        if hashlib.sha256(text.encode()).hexdigest() != JOINED[split]:
            problem = f"the {split} split differs from the pinned one; delete the archives there and fetch them again"
            raise BadCorpus(where, 0, problem)


def _present(source: Source, folder: Path) -> Path | None:
    for name, digest in source.known.items():
        path = folder / name
        if path.is_file():
            if pooch.file_hash(str(path)) != digest:
                raise BadCorpus(path, 0, f"the checksum is not {digest}; delete the file and fetch it again")
            return path
    path = folder / source.file
    return path if path.is_file() else None
