"""A sentence is words, a dependency tree and one proposition per predicate; spans are half-open, tokens count from 0.

Everything here is immutable, so sentences can be shared between corpora, caches and batches.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

EMPTY = "O"
ROOT = -1


class BadCorpus(ValueError):
    """`file:line: what is wrong`, in one sentence."""

    def __init__(self, file: str | Path, line: int, problem: str) -> None:
        super().__init__(f"{file}:{line}: {problem}")
        self.file, self.line, self.problem = str(file), line, problem


@dataclass(frozen=True, slots=True, order=True)
class Argument:
    """One labelled piece [start, end) of a proposition: `A0`, `AM-TMP`, `R-A0`, `C-A1` or the verb itself, `V`."""

    start: int
    end: int
    role: str

    @property
    def base(self) -> str:
        """The role without its continuation mark: C-A1 → A1, R-A0 → R-A0."""
        return self.role.removeprefix("C-")


@dataclass(frozen=True, slots=True)
class Proposition:
    """A predicate token, its sense (a roleset, or the lemma in CoNLL-2005) and its pieces from left to right."""

    predicate: int
    sense: str
    pieces: tuple[Argument, ...] = ()

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Every piece but the verb's."""
        return tuple(piece for piece in self.pieces if piece.base != "V")


@dataclass(frozen=True, slots=True)
class Props:
    """A sentence in a props file: its length and its propositions."""

    length: int
    propositions: tuple[Proposition, ...] = ()


@dataclass(frozen=True, slots=True)
class Sentence:
    """Parallel columns of one sentence; heads are token indices, −1 at the root, and empty when there is no tree."""

    words: tuple[str, ...]
    lemmas: tuple[str, ...] = ()
    upos: tuple[str, ...] = ()
    xpos: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    deprels: tuple[str, ...] = ()
    parse: tuple[str, ...] = ()
    propositions: tuple[Proposition, ...] = ()
    sent_id: str = ""

    def __post_init__(self) -> None:
        for name in ("lemmas", "upos", "xpos", "heads", "deprels", "parse"):
            column = getattr(self, name)
            if column and len(column) != len(self.words):
                raise ValueError(f"sentence {self.sent_id!r} has {len(self.words)} words but {len(column)} {name}")

    def __len__(self) -> int:
        return len(self.words)

    @property
    def genre(self) -> str:
        """The part of the identifier before the first hyphen: `weblog`, `email`, …"""
        return self.sent_id.partition("-")[0]

    @property
    def length(self) -> int:
        """The number of words, as of `Props`."""
        return len(self.words)


def find_roles(sentences: Iterable[Sentence | Props]) -> tuple[str, ...]:
    """Every role that occurs, sorted, behind the empty label at index 0."""
    found = {a.role for s in sentences for p in s.propositions for a in p.arguments}
    return (EMPTY, *sorted(found))


def is_core(role: str) -> bool:
    """A0 … A5 and AA (ARG0 … ARG5, ARGA): roles a predicate takes once; R-, C- and AM- roles may repeat."""
    return re.fullmatch("A(RG)?[0-5A]", role) is not None


def check_tree(heads: Sequence[int], file: str | Path, lines: Sequence[int]) -> None:
    """One root, every head inside the sentence, no cycle; `lines` are the tokens' lines, for the error to name."""
    roots = [i for i, head in enumerate(heads) if head == ROOT]
    if len(roots) != 1:
        where = lines[roots[1]] if len(roots) > 1 else lines[0]
        raise BadCorpus(file, where, f"the tree has {len(roots)} roots, and it needs exactly one")
    for i, head in enumerate(heads):
        if not ROOT <= head < len(heads):
            raise BadCorpus(file, lines[i], f"head {head + 1} lies outside the sentence of {len(heads)} tokens")
    children: dict[int, list[int]] = {}
    for i, head in enumerate(heads):
        children.setdefault(head, []).append(i)
    for token in roots:  # which grows to all that lie below the root
        roots += children.get(token, [])
    if apart := set(range(len(heads))).difference(roots):
        first = min(apart)
        raise BadCorpus(file, lines[first], f"token {first + 1} never reaches the root: the tree has a cycle")


def parse_column(cells: Sequence[str], file: str | Path, lines: Sequence[int]) -> tuple[Argument, ...]:
    """`(A0*`, `*`, `*)` → pieces; brackets may not nest. `lines` are the tokens' lines, for errors to name."""
    pieces: list[Argument] = []
    start, role = -1, ""
    for i, cell in enumerate(cells):
        if cell == "*":
            continue
        before, star, after = cell.partition("*")
        if not star or (before and before[0] != "(") or after not in ("", ")") or before == "(":
            raise BadCorpus(file, lines[i], f"{cell!r} is no bracket notation such as (A0*, *, *) or (A0*)")
        if before:
            if "(" in before[1:] or ")" in before:
                raise BadCorpus(file, lines[i], f"{cell!r} opens two arguments at once, which may not nest")
            if start >= 0:
                raise BadCorpus(file, lines[i], f"{cell!r} opens an argument while {role} is still open")
            start, role = i, before[1:]
        if after:
            if start < 0:
                raise BadCorpus(file, lines[i], f"{cell!r} closes an argument that was never opened")
            pieces.append(Argument(start, i + 1, role))
            start = -1
    if start >= 0:
        raise BadCorpus(file, lines[start], f"({role}* is never closed in its sentence")
    return tuple(pieces)


def column_of(pieces: Iterable[Argument], length: int) -> list[str]:
    """Pieces → `(A0*`, `*`, `*)`: the inverse of parse_column; overlapping pieces cannot be written."""
    opened, closed = [""] * length, [""] * length
    end = 0
    for piece in sorted(pieces):
        if not end <= piece.start < piece.end <= length:
            raise ValueError(f"{piece.role} [{piece.start}, {piece.end}) overlaps its neighbour or leaves the sentence")
        opened[piece.start], closed[piece.end - 1] = f"({piece.role}", ")"
        end = piece.end
    return [f"{a}*{b}" for a, b in zip(opened, closed, strict=True)]


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file, unpacked where its first two say that it is gzipped."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadCorpus(path, 0, f"the file cannot be read ({error.strerror}); check the path") from error
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError) as error:
        raise BadCorpus(path, 0, "the gzipped file is damaged or cut short; fetch it again") from error


def read_text(path: str | Path) -> str:
    """UTF-8 text of a file, gzipped or not."""
    return decode_text(read_bytes(path), path).removeprefix("\ufeff").replace("\r\n", "\n")


def decode_text(data: bytes, file: str | Path) -> str:
    """UTF-8 text; an error names the line of the first byte that is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"byte {data[error.start]:#04x} is not UTF-8; convert the file to UTF-8"
        raise BadCorpus(file, line, problem) from error


def write_text(path: str | Path, text: str) -> None:
    """UTF-8 text to a file, gzipped with no time stamp (equal text, equal bytes) when the name ends in .gz."""
    data = text.encode("utf-8")
    Path(path).write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, lines) of each stretch between blank lines."""
    start = 1
    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip(" \t\r"):
            if not lines:
                start = number
            lines.append(line)
        elif lines:
            yield start, lines
            lines = []
    if lines:
        yield start, lines
