"""CoNLL-2005 files: blocks of rows, one row a token, columns apart by blanks, a blank line after each sentence.

The shared task distributes one file per kind of annotation (words, synt.*, props, …); people paste them into one
file. Both are read here, gzipped or not. The props columns are the verb (`-` elsewhere) and one column of brackets
per verb, left to right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from spen.tasks.srl.sentences import (
    ROOT,
    BadCorpus,
    Proposition,
    Props,
    Sentence,
    blocks,
    check_tree,
    column_of,
    parse_column,
    read_text,
    write_text,
)

__all__ = ["COLUMNS", "read_conll2005", "read_props", "write_props"]

# Column name → field of Sentence; `_` is a column to skip, `props` takes the rest of the row.
_FIELDS = {
    "words": "words",
    "lemmas": "lemmas",
    "upos": "upos",
    "tags": "xpos",
    "heads": "heads",
    "deprels": "deprels",
    "syntax": "parse",
    "entities": "entities",
}
COLUMNS = ("words", "tags", "syntax", "props")
# Folders of the distribution and the columns of the files in each.
_FOLDERS: Mapping[str, tuple[str, ...]] = {
    "words": ("words",),
    "synt.cha": ("tags", "syntax"),
    "synt.col2": ("tags", "syntax"),
    "synt.col2h": ("tags", "syntax"),
    "synt.wsj": ("tags", "syntax"),
    "synt.upc": ("tags", "_", "_"),
    "dependencies": ("lemmas", "upos", "heads", "deprels"),
    "ne": ("entities",),
    "props": ("props",),
}
_SEVERAL_TREES = ("synt.cha", "synt.col2", "synt.col2h", "synt.wsj")
_BLANKS = re.compile(r"[ \t]+")


class _Block(NamedTuple):
    """One sentence of one file: its columns by name, and where it stood."""

    file: str | Path
    line: int
    columns: dict[str, list[str]]
    props: list[list[str]] | None
    length: int


def read_conll2005(path: str | Path, *, columns: Sequence[str] = COLUMNS, syntax: str | None = None) -> list[Sentence]:
    """Sentences of a merged file (`columns` says what its columns are) or of a folder as distributed.

    A folder holds one folder per annotation (`words/`, `props/`, `synt.cha/`, …) with one file per section in each.
    `syntax` names the folder to take tags and trees from where there are several; by default the first there is.
    """
    path = Path(path)
    if not path.is_dir():
        return [_assemble([block]) for block in _read_blocks(path, columns)]
    sentences: list[Sentence] = []
    for files in _sections(path, syntax):
        rows = [_read_blocks(file, names) for file, names in files]
        for together in zip_longest(*rows):
            sentences.append(_assemble(_same_length(together, files)))
    return sentences


def read_props(path: str | Path) -> list[Props]:
    """Propositions of a props file on its own."""
    return [Props(block.length, _propositions(block)) for block in _read_blocks(Path(path), ("props",))]


def write_props(path: str | Path, sentences: Iterable[Sentence | Props]) -> None:
    """The props of every sentence, in the widths the shared task's own files have."""
    write_text(path, props_text(sentences))


def props_text(sentences: Iterable[Sentence | Props]) -> str:
    """What write_props writes."""
    lines: list[str] = []
    for sentence in sentences:
        props = sentence.props if isinstance(sentence, Sentence) else sentence
        verbs, brackets = _prop_columns(props)
        for i, verb in enumerate(verbs):
            lines.append(f"{verb:<19}" + "".join(f" {column[i]:>14}" for column in brackets))
        lines.append("")
    return "\n".join(lines) + "\n" if lines else ""


def _prop_columns(props: Props) -> tuple[list[str], list[list[str]]]:
    verbs = ["-"] * props.length
    ordered = sorted(props.propositions, key=lambda p: p.predicate)
    for proposition in ordered:
        if verbs[proposition.predicate] != "-":
            raise ValueError(f"two propositions share the predicate at token {proposition.predicate + 1}")
        verbs[proposition.predicate] = proposition.sense
    return verbs, [column_of(p.pieces, props.length) for p in ordered]


def _check_names(columns: Sequence[str]) -> None:
    for name in columns:
        if name not in _FIELDS and name not in ("_", "props"):
            known = ", ".join([*_FIELDS, "props", "_"])
            raise ValueError(f"no column is called {name!r}; choose from {known}")
    if "props" in columns[:-1]:
        raise ValueError("props takes the rest of the row, so it must be the last column")


def _read_blocks(path: Path, columns: Sequence[str]) -> list[_Block]:
    _check_names(columns)
    with_props = bool(columns) and columns[-1] == "props"
    plain = columns[:-1] if with_props else columns
    found: list[_Block] = []
    for line, lines in blocks(read_text(path)):
        rows = [_BLANKS.split(text.strip(" \t\r")) for text in lines]
        width = len(rows[0])
        for i, row in enumerate(rows):
            if len(row) < len(columns) or (not with_props and len(row) != len(columns)):
                raise BadCorpus(path, line + i, f"{len(row)} columns where {', '.join(columns)} were expected")
            if len(row) != width:
                raise BadCorpus(path, line + i, f"{len(row)} columns where the sentence began with {width}")
        table = list(zip(*rows, strict=True))
        named = {name: list(table[i]) for i, name in enumerate(plain) if name != "_"}
        props = [list(column) for column in table[len(plain) :]] if with_props else None
        found.append(_Block(path, line, named, props, len(rows)))
    return found


def _propositions(block: _Block) -> tuple[Proposition, ...]:
    if block.props is None:
        return ()
    verbs, *brackets = block.props
    predicates = [i for i, verb in enumerate(verbs) if verb != "-"]
    if len(predicates) != len(brackets):
        problem = f"{len(predicates)} predicates but {len(brackets)} columns of arguments"
        raise BadCorpus(block.file, block.line, problem)
    return tuple(
        Proposition(i, verbs[i], parse_column(column, block.file, block.line))
        for i, column in zip(predicates, brackets, strict=True)
    )


def _assemble(together: Sequence[_Block]) -> Sentence:
    fields: dict[str, Any] = {}
    for block in together:
        for name, cells in block.columns.items():
            if name == "heads":
                fields["heads"] = _heads(cells, block)
            elif _FIELDS[name] not in fields:
                fields[_FIELDS[name]] = tuple(cells)
        if block.props is not None:
            fields["propositions"] = _propositions(block)
    # A file of props and tags alone still has as many tokens as rows.
    fields.setdefault("words", ("_",) * together[0].length)
    return Sentence(**fields)


def _heads(cells: Sequence[str], block: _Block) -> tuple[int, ...]:
    for i, cell in enumerate(cells):
        if not (cell.isascii() and cell.isdigit()):
            raise BadCorpus(block.file, block.line + i, f"head {cell!r} is no number")
    heads = tuple(int(cell) - 1 if cell != "0" else ROOT for cell in cells)
    check_tree(heads, block.file, range(block.line, block.line + block.length))
    return heads


def _same_length(together: Sequence[_Block | None], files: Sequence[tuple[Path, tuple[str, ...]]]) -> list[_Block]:
    there = [block for block in together if block is not None]
    for block, (file, _) in zip(together, files, strict=True):
        if block is None:
            problem = f"the file ends before {there[0].file}, which has another sentence at line {there[0].line}"
            raise BadCorpus(file, read_text(file).count("\n"), problem)
        if block.length != there[0].length:
            problem = f"{block.length} tokens where {there[0].file}:{there[0].line} has {there[0].length}"
            raise BadCorpus(file, block.line, problem)
    return there


def _sections(folder: Path, syntax: str | None) -> list[list[tuple[Path, tuple[str, ...]]]]:
    """The files of each section, words first."""
    if syntax is not None and syntax not in _FOLDERS:
        raise ValueError(f"no syntax folder is called {syntax!r}; choose from {', '.join(_SEVERAL_TREES)}, synt.upc")
    present = [name for name in _FOLDERS if (folder / name).is_dir()]
    if "words" not in present:
        raise BadCorpus(folder, 0, "the folder has no words/; put them back from the Penn Treebank first")
    synt = [name for name in present if name.startswith("synt.")]
    if syntax is not None and syntax not in synt:
        raise BadCorpus(folder, 0, f"the folder has no {syntax}/, only {', '.join(synt) or 'no syntax at all'}")
    keep = syntax or next(iter(synt), None)
    present = [name for name in present if name not in synt or name == keep]
    sections = []
    for words in sorted((folder / "words").iterdir()):
        files: list[tuple[Path, tuple[str, ...]]] = []
        for name in present:
            file = folder / name / words.name.replace(".words", f".{name}")
            if not file.is_file():
                other = file.with_suffix("") if file.suffix == ".gz" else file.with_name(file.name + ".gz")
                if not other.is_file():
                    raise BadCorpus(file, 0, f"the file is missing, and {words.name} needs it")
                file = other
            files.append((file, _FOLDERS[name]))
        sections.append(files)
    return sections
