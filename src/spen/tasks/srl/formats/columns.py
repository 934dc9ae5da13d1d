"""Text in columns: a row for each token, a blank line after each sentence: CoNLL-2005, CoNLL-U and the TSV of EWT.

A format is a tuple of column names. ``props`` is last and stands for the remaining columns: the verb (``-`` where there
is none), then one column of brackets for each verb, from left to right; ``props?`` may be absent. ``_`` is not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
)

# Column name → field of Sentence.
FIELDS = {
    "words": "words",
    "lemmas": "lemmas",
    "upos": "upos",
    "tags": "xpos",
    "heads": "heads",
    "deprels": "deprels",
    "syntax": "parse",
}
_BLANKS = re.compile(r"[ \t]+")


class Block(NamedTuple):
    """One sentence of one file: its columns by name, and the line of every token."""

    file: str | Path
    lines: list[int]
    columns: dict[str, tuple[str, ...]]
    props: list[tuple[str, ...]] | None
    sent_id: str

    @property
    def length(self) -> int:
        return len(self.lines)


def read_blocks(text: str, file: str | Path, columns: Sequence[str], *, tabs: bool = False) -> list[Block]:
    """The sentences of a text; columns are separated by tabs, or by blanks.

    A file with tabs may have comments (``# sent_id = …``) and a column ``id``, whose multiword tokens (``3-4``) and
    empty nodes (``5.1``) are skipped, since they are not words of the tree.
    """
    found = []
    for first, lines in blocks(text):
        sent_id, rows, numbers = "", [], []
        for number, line in enumerate(lines, first):
            if tabs and line.startswith("#"):
                key, _, value = line[1:].partition("=")
                sent_id = value.strip() if key.strip() == "sent_id" else sent_id
                continue
            cells = line.split("\t") if tabs else _BLANKS.split(line.strip(" \t\r"))
            if columns[0] != "id" or re.fullmatch(r"\d+[-.]\d+", cells[0]) is None:
                rows.append(cells)
                numbers.append(number)
        if not rows:
            raise BadCorpus(file, first, "a sentence without words")
        found.append(_block(rows, numbers, sent_id, file, columns, tabs))
    return found


def _block(
    rows: list[list[str]], lines: list[int], sent_id: str, file: str | Path, columns: Sequence[str], tabs: bool
) -> Block:
    plain = [name for name in columns if name not in ("props", "props?")]
    least, most = len(plain) + (columns[-1] == "props"), len(plain) if len(plain) == len(columns) else None
    for line, row in zip(lines, rows, strict=True):
        if len(row) < least or (most is not None and len(row) != most):
            names = f"{', '.join(columns).removesuffix(', props?')} were expected{', separated by tabs' * tabs}"
            raise BadCorpus(file, line, f"{len(row)} columns where {names}")
        if len(row) != len(rows[0]):
            raise BadCorpus(file, line, f"{len(row)} columns where the sentence began with {len(rows[0])}")
    table = list(zip(*rows, strict=True))
    named = {name: table[i] for i, name in enumerate(plain) if name != "_"}
    for i, (line, number) in enumerate(zip(lines, named.pop("id", ()), strict=False)):
        if number != str(i + 1):
            raise BadCorpus(file, line, f"token {number!r} where token {i + 1} was expected")
    return Block(file, lines, named, table[len(plain) :] or None, sent_id)


def propositions(block: Block) -> tuple[Proposition, ...]:
    """The props columns of a sentence; none where there are no such columns."""
    if block.props is None:
        return ()
    verbs, *brackets = block.props
    predicates = [i for i, verb in enumerate(verbs) if verb != "-"]
    if len(predicates) != len(brackets):
        problem = f"{len(predicates)} predicates but {len(brackets)} columns of arguments"
        raise BadCorpus(block.file, block.lines[0], f"{problem}; a token that is no predicate has - in the first")
    return tuple(
        Proposition(i, verbs[i], parse_column(column, block.file, block.lines))
        for i, column in zip(predicates, brackets, strict=True)
    )


def assemble(*together: Block) -> Sentence:
    """A sentence from its blocks, one for each file; of a column that two blocks have, the first counts."""
    first = together[0]
    fields: dict[str, Any] = {"words": ("_",) * first.length, "sent_id": first.sent_id}
    for block in reversed(together):
        if block.length != first.length:
            problem = f"{block.length} tokens where {first.file}:{first.lines[0]} has {first.length}"
            raise BadCorpus(block.file, block.lines[0], f"{problem}; both files need the same sentences and words")
        fields |= {FIELDS[name]: cells for name, cells in block.columns.items() if name != "heads"}
        if "heads" in block.columns:
            fields["heads"] = _heads(block)
        if block.props is not None:
            fields["propositions"] = propositions(block)
    return Sentence(**fields)


def _heads(block: Block) -> tuple[int, ...]:
    for line, cell in zip(block.lines, block.columns["heads"], strict=True):
        if not (cell.isascii() and cell.isdigit()):
            raise BadCorpus(block.file, line, f"head {cell!r} is no number; labelling needs a dependency tree")
    heads = tuple(int(cell) - 1 if cell != "0" else ROOT for cell in block.columns["heads"])
    check_tree(heads, block.file, block.lines)
    return heads


def sentence_text(sentence: Sentence, columns: Sequence[str]) -> str:
    """The rows of a sentence, separated by tabs, with a comment for its identifier; a blank line is not added."""
    n, table = len(sentence), []
    for name in columns:
        if name == "props":
            verbs, brackets = prop_columns(sentence)
            table += [verbs, *brackets]
        elif name == "id":
            table.append([str(i + 1) for i in range(n)])
        elif name == "heads":
            table.append([str(head + 1) for head in sentence.heads])
        else:
            blank = "*" if name == "syntax" else "_"
            table.append(list((name != "_" and getattr(sentence, FIELDS[name])) or [blank] * n))
    rows = ["\t".join(row) for row in zip(*table, strict=True)]
    for number, row in enumerate(rows, 1):
        if "\n" in row or "\r" in row or row.count("\t") != len(table) - 1:
            raise ValueError(f"sentence {sentence.sent_id!r}: token {number} has a tab or a line break in a column")
    return "\n".join([*([f"# sent_id = {sentence.sent_id}"] if sentence.sent_id else []), *rows]) + "\n"


def prop_columns(props: Props | Sentence) -> tuple[list[str], list[list[str]]]:
    """The verbs and one column of brackets for each of them."""
    verbs = ["-"] * props.length
    ordered = sorted(props.propositions, key=lambda p: p.predicate)
    for proposition in ordered:
        if verbs[proposition.predicate] != "-":
            raise ValueError(f"two propositions share the predicate at token {proposition.predicate + 1}")
        verbs[proposition.predicate] = proposition.sense
    return verbs, [column_of(p.pieces, props.length) for p in ordered]
