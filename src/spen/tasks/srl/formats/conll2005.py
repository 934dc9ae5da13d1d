"""CoNLL-2005 files: one file for each kind of annotation (words, synt.*, props, …), or all columns in one file.

Files may be gzipped. Columns are separated by blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from spen.tasks.srl.formats.columns import Block, assemble, prop_columns, propositions, read_blocks
from spen.tasks.srl.sentences import BadCorpus, Props, Sentence, read_text, write_text

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
    "props": ("props",),
}


def read_conll2005(path: str | Path) -> list[Sentence]:
    """Sentences of a merged file (words, tags, syntax, props) or of a folder as distributed.

    A folder holds one folder per annotation (`words/`, `props/`, `synt.cha/`, …) with one file per section in each.
    Tags and trees come from the first `synt.*` there is.
    """
    path = Path(path)
    if not path.is_dir():
        return [assemble(block) for block in read_blocks(read_text(path), path, COLUMNS)]
    sentences: list[Sentence] = []
    for files in _sections(path):
        sentences += join_blocks({file: read_blocks(read_text(file), file, names) for file, names in files.items()})
    return sentences


def join_blocks(files: Mapping[Path, Sequence[Block]]) -> list[Sentence]:
    """Sentences from several files, the n-th from the n-th block of each file."""
    sentences = []
    for together in zip_longest(*files.values()):
        present = [block for block in together if block is not None]
        for block, file in zip(together, files, strict=True):
            if block is None:
                place = f"{present[0].file}, which has another sentence at line {present[0].lines[0]}"
                raise BadCorpus(file, read_text(file).count("\n"), f"the file ends before {place}")
        sentences.append(assemble(*present))
    return sentences


def props_blocks(path: str | Path) -> list[Block]:
    """The sentences of a props file as blocks."""
    text = read_text(path)
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#") or re.match(r"1(\t[^\t]*){9}", line):
            raise BadCorpus(path, number, "this is CoNLL-U, and a props file is needed, as `spen predict` writes it")
        if line.strip():
            break
    return read_blocks(text, path, ("props",))


def read_props(path: str | Path) -> list[Props]:
    """The propositions of a props file."""
    return [Props(block.length, propositions(block)) for block in props_blocks(path)]


def write_props(path: str | Path, sentences: Iterable[Sentence | Props]) -> None:
    """The props of every sentence, with the column widths of the shared task."""
    write_text(path, props_text(sentences))


def props_text(sentences: Iterable[Sentence | Props]) -> str:
    """What write_props writes."""
    lines: list[str] = []
    for sentence in sentences:
        verbs, brackets = prop_columns(sentence)
        for i, verb in enumerate(verbs):
            lines.append(f"{verb:<19}" + "".join(f" {column[i]:>14}" for column in brackets))
        lines.append("")
    return "\n".join(lines) + "\n" if lines else ""


def _sections(folder: Path) -> list[dict[Path, tuple[str, ...]]]:
    """The files of each section with their columns, words first."""
    present = [name for name in _FOLDERS if (folder / name).is_dir()]
    if "words" not in present:
        raise BadCorpus(folder, 0, "the folder has no words/; `spen data make conll2005` makes them from the treebank")
    syntax = [name for name in present if name.startswith("synt.")]
    present = [name for name in present if name not in syntax[1:]]
    sections = []
    for words in sorted((folder / "words").iterdir()):
        files: dict[Path, tuple[str, ...]] = {}
        for name in present:
            file = folder / name / words.name.replace(".words", f".{name}")
            other = file.with_suffix("") if file.suffix == ".gz" else file.with_name(file.name + ".gz")
            if not file.is_file() and not other.is_file():
                raise BadCorpus(file, 0, f"the file is missing, and {words.name} needs it")
            files[file if file.is_file() else other] = _FOLDERS[name]
        sections.append(files)
    return sections
