"""Damaged files: whatever is cut, swapped or inserted, a reader answers with sentences or with one BadCorpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.srl.constituents import parse_brackets
from spen.tasks.srl.formats.conll2005 import props_text, read_conll2005, read_props
from spen.tasks.srl.formats.conllu import read_conllu
from spen.tasks.srl.formats.ewt import read_tsv, tsv_text
from spen.tasks.srl.grammar.corpus import make_corpus
from spen.tasks.srl.sentences import BadCorpus, read_text

CORPUS = make_corpus(3)
TSV = tsv_text(CORPUS)
CONLLU = "\n\n".join(
    "\n".join(
        f"{i + 1}\t{s.words[i]}\t{s.lemmas[i]}\t{s.upos[i]}\t{s.xpos[i]}\t_\t{s.heads[i] + 1}\t{s.deprels[i]}\t_\t_"
        for i in range(len(s))
    )
    for s in CORPUS
)
_ROWS = (line.split("\t") for line in TSV.split("\n") if not line.startswith("#"))
MERGED = "\n".join(" ".join([row[1], row[4], *row[7:]]) if row != [""] else "" for row in _ROWS)
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "tsv": (TSV, read_tsv),
    "conllu": (CONLLU, read_conllu),
    "props": (props_text(CORPUS), read_props),
    "merged": (MERGED, read_conll2005),
    "brackets": ("( (S (NP (NN a)) (VP (VB b))) )\n" * 3, lambda p: list(parse_brackets(read_text(p), p))),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damage")


def test_the_whole_files_are_read(folder: Path) -> None:
    for name, (text, read) in READERS.items():
        (folder / name).write_text(text)
        read(folder / name)


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_damage_is_read_or_named(folder: Path, name: str, data: st.DataObject) -> None:
    text, read = READERS[name]
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        kind = data.draw(st.sampled_from(("cut", "insert", "swap", "line")))
        if kind == "cut":
            del raw[at : at + data.draw(st.integers(1, 5))]
        elif kind == "insert":
            raw[at:at] = data.draw(
                st.sampled_from((b"\t", b"\n", b"(", b")", b"*", b"\xff", b"9", b" ", b"-", b"\x00"))
            )
        elif kind == "swap":
            raw[at] = data.draw(st.integers(0, 255))
        else:
            end = raw.find(b"\n", at)
            del raw[at : end + 1 if end >= 0 else len(raw)]
        if not raw:
            break
    path = folder / f"{name}-damaged"
    path.write_bytes(bytes(raw))
    try:
        read(path)
    except BadCorpus as error:
        assert str(error).startswith(f"{path}:{error.line}: ")  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
        assert error.line <= raw.count(b"\n") + 2  # noqa: PT017
