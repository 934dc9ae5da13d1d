"""A folder of annotated sentences → its splits: train, dev and test, in any of four forms. Imports no torch.

With X one of train, dev (or devel) and test (or test.wsj), a split is the first of these that is there:

- ``ewt-srl.X.tsv.gz``, as `spen data make ewt` writes it (also in a folder ``ewt`` below);
- ``X/words``, ``X/props`` and ``X/synt.*``, as CoNLL-2005 distributes them. Further folders ``test.Y`` are splits Y;
- ``X.conllu`` with props in further columns, or with ``X.props`` beside it;
- ``X.conll``, with columns words, tags, syntax and props.

Each file may be gzipped. Sentences that have phrases but no dependencies get a tree by head rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from spen.tasks.locations import find_data
from spen.tasks.srl.constituents import with_tree
from spen.tasks.srl.formats.columns import assemble, read_blocks
from spen.tasks.srl.formats.conll2005 import join_blocks, props_blocks, read_conll2005
from spen.tasks.srl.formats.conllu import COLUMNS, check_tabs
from spen.tasks.srl.formats.ewt import SPLITS, benchmark, read_tsv
from spen.tasks.srl.sentences import BadCorpus, Sentence, read_text

Splits = dict[str, Sequence[Sentence]]
_NAMES = {"train": ("train",), "dev": ("dev", "devel"), "test": ("test", "test.wsj")}
NAMES = {"ewt": ("srl",), "conll2005": ("srl", "conll2005")}


def locate(data: str) -> Path | None:
    """The folder of a data set's name, or the folder itself; None for the built-in sentences."""
    if data in ("", "builtin"):
        return None
    try:
        folder = find_data(*NAMES[data]) if data in NAMES else Path(data)
    except FileNotFoundError as error:
        if data != "conll2005":
            raise
        unpack = "unpack the shared task's release into $SPEN_DATA/srl/conll2005 and run `spen data make conll2005`"
        raise ValueError(f"conll2005 is not here; {unpack}, or give its folder after --data") from error
    if not folder.is_dir():
        raise ValueError(
            f"there is no data set {data!r} for role labelling; there are builtin, ewt, conll2005, or a folder"
        )
    return folder


def find_splits(folder: Path, wanted: Sequence[str] = SPLITS) -> dict[str, Path]:
    """Where each split of the folder is; ValueError if one of those wanted is missing."""
    roots = [folder, *([folder / "ewt"] if (folder / "ewt").is_dir() else [])]
    found: dict[str, Path] = {}
    for split, names in _NAMES.items():
        places = (place for root in roots for place in _places(root, split, names))
        if (path := next((p for p in places if p.exists()), None)) is not None:
            found[split] = path.parent if path.name == "words" else path
    if missing := [split for split in wanted if split not in found]:
        forms = "X.conllu with X.props beside it, X/words and X/props of CoNLL-2005, or ewt-srl.X.tsv.gz"
        raise ValueError(
            f"{folder} has no {' and no '.join(missing)} sentences; put them there, for X each, as {forms}"
        )
    for extra in sorted(folder.glob("test.*/words")):
        if extra.parent not in found.values():
            found[extra.parent.name.removeprefix("test.")] = extra.parent
    return found


def _places(root: Path, split: str, names: Sequence[str]) -> Iterator[Path]:
    yield root / f"ewt-srl.{split}.tsv.gz"
    for name in names:
        yield root / name / "words"
        for ending in ("conllu", "conllu.gz", "conll", "conll.gz"):
            yield root / f"{name}.{ending}"


def read_splits(folder: Path, wanted: Sequence[str] = SPLITS) -> Splits:
    """The sentences of the splits that are wanted, and of further test sets if all are."""
    found = find_splits(folder, wanted)
    every = set(SPLITS) <= set(wanted)
    return {split: _read(path) for split, path in found.items() if every or split in wanted}


def _read(path: Path) -> list[Sentence]:
    if ".tsv" in path.suffixes:
        return [benchmark(sentence) for sentence in read_tsv(path)]
    if ".conllu" in path.suffixes:
        sentences = _read_conllu(path)
    else:
        sentences = [with_tree(s, path, number) for number, s in enumerate(read_conll2005(path), 1)]
    if not any(p.arguments for s in sentences for p in s.propositions):
        raise BadCorpus(path, 0, "no predicate has an argument, so there is nothing to learn or to score")
    name = path.name.partition(".conll")[0].removeprefix("test.")
    return [s if s.sent_id else replace(s, sent_id=f"{name}-{i}") for i, s in enumerate(sentences, 1)]


def _read_conllu(path: Path) -> list[Sentence]:
    """Trees of CoNLL-U, roles of its further columns or of the props file beside it."""
    text = read_text(path)
    check_tabs(text, path)
    blocks = read_blocks(text, path, COLUMNS, tabs=True)
    stem = path.name.partition(".conllu")[0]
    for props in (path.with_name(f"{stem}.props"), path.with_name(f"{stem}.props.gz")):
        if props.is_file():
            return join_blocks({path: blocks, props: props_blocks(props)})
    if any(block.props is None for block in blocks):
        raise BadCorpus(
            path, 1, f"there are no roles: put {stem}.props beside it, or its columns after the ten of CoNLL-U"
        )
    return [assemble(block) for block in blocks]
