"""CoNLL-2005 without its words + the Penn Treebank = CoNLL-2005.

The shared task ships props and syntax; the words of WSJ sections 02 … 24 belong to the Treebank, which a user owns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spen.tasks.srl.constituents import Phrase, parse_bits, parse_brackets
from spen.tasks.srl.formats.conll2005 import read_props
from spen.tasks.srl.sentences import BadCorpus, read_text, write_text

_TEST_WSJ = "23"


def read_section(ptb_dir: str | Path, section: str) -> Iterator[tuple[Path, int, Phrase]]:
    """(file, line, tree) of each sentence of a WSJ section: wsj_SSNN.mrg, .parse or bare, anywhere below the folder."""
    name = re.compile(rf"wsj_{section}\d\d(\.mrg|\.parse)?(\.gz)?", re.IGNORECASE)
    files = sorted((f for f in Path(ptb_dir).rglob("*") if name.fullmatch(f.name)), key=lambda f: f.name.lower())
    if not files:
        problem = f"no wsj_{section}NN.mrg or .parse below it; give the Treebank's folder of merged (tagged) trees"
        raise BadCorpus(ptb_dir, 0, problem)
    for file in files:
        for line, tree in parse_brackets(read_text(file), file):
            yield file, line, tree


def make_conll2005(ptb_dir: str | Path, conll_dir: str | Path) -> dict[Path, int]:
    """Write words/ and synt.wsj/ (gold tags and phrases) by every props/ below conll_dir; sentences of each words file.

    `train.02.props.gz` takes section 02, `devel.24` 24 and `test.wsj` 23; words files that exist are kept, and so are
    the Brown section's, which the shared task ships. Every sentence must have as many words as its props have rows.
    """
    folders = sorted(folder for folder in Path(conll_dir).rglob("props") if folder.is_dir())
    if not folders:
        raise BadCorpus(conll_dir, 0, "no props folder below it; give the folder the shared task's archive unpacks to")
    made: dict[Path, int] = {}
    for folder in folders:
        for props in sorted(folder.glob("*.props*")):
            found = re.fullmatch(r".*\.(\d\d|wsj|brown)\.props(\.gz)?", props.name)
            if not found:
                raise BadCorpus(props, 0, "the name has no section; expected train.02.props.gz, devel.24 or test.wsj")
            section = {"wsj": _TEST_WSJ}.get(found[1], found[1])
            words = folder.parent / "words" / props.name.replace(".props", ".words")
            if words.is_file():
                made[words] = len(read_props(props))
            elif section == "brown":
                raise BadCorpus(words, 0, "the Brown test words are missing; they come with the shared task's tests")
            else:
                made[words] = _write_section(ptb_dir, section, props, words)
    return made


def _write_section(ptb_dir: str | Path, section: str, props: Path, words: Path) -> int:
    expected = read_props(props)
    trees = list(read_section(ptb_dir, section))
    texts: dict[str, list[str]] = {"words": [], "synt.wsj": []}
    for number, (file, line, tree) in enumerate(trees):
        leaves = list(tree.leaves())
        if number >= len(expected):
            raise BadCorpus(file, line, f"the Treebank goes on after the {len(expected)} sentences of {props.name}")
        if len(leaves) != expected[number].length:
            problem = f"{len(leaves)} words, but sentence {number + 1} of {props.name} has {expected[number].length}"
            raise BadCorpus(file, line, problem)
        texts["words"] += [leaf.word for leaf in leaves]
        bits = zip(leaves, parse_bits(tree), strict=True)
        texts["synt.wsj"] += [f"{leaf.label}\t{bit}" for leaf, bit in bits]
        for lines in texts.values():
            lines.append("")
    if len(trees) < len(expected):
        raise BadCorpus(props, 0, f"{len(expected)} sentences, but section {section} of the Treebank has {len(trees)}")
    for name, lines in texts.items():
        target = words.parent.parent / name / props.name.replace(".props", f".{name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, "\n".join(lines) + "\n")
    return len(trees)
