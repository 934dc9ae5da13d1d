"""English Web Treebank with PropBank spans: a TSV of words, tree and propositions, and the join that makes it.

Columns: ID FORM LEMMA UPOS XPOS HEAD DEPREL parse-bit roleset, then one bracket column per predicate. Labels stay
PropBank's in the file (ARG0, ARGM-TMP); `benchmark` keeps the verbs and renames to CoNLL-2005's (A0, AM-TMP).
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path

from spen.tasks.srl.formats.columns import Block, assemble, propositions, read_blocks, sentence_text
from spen.tasks.srl.formats.conllu import parse_conllu
from spen.tasks.srl.sentences import BadCorpus, Sentence, decode_text, read_text

SPLITS = ("train", "dev", "test")
COLUMNS = ("id", "words", "lemmas", "upos", "tags", "heads", "deprels", "syntax", "props")
_SKELETON = (*("_",) * 5, "syntax", "_", "props")  # a gold_skel file of PropBank


def read_tsv(path: str | Path) -> list[Sentence]:
    """Every sentence of a TSV, gzipped or not, with all predicates and PropBank's labels."""
    return [assemble(block) for block in read_blocks(read_text(path), path, COLUMNS, tabs=True)]


def tsv_text(sentences: Iterable[Sentence]) -> str:
    """The inverse of read_tsv."""
    return "".join(sentence_text(sentence, COLUMNS) + "\n" for sentence in sentences)


def conll_role(label: str) -> str:
    """ARGn → An, ARGA → AA, ARGM-x → AM-x, -DSP dropped, C- and R- kept: C-ARG1-DSP → C-A1."""
    prefix = label[:2] if label[:2] in ("C-", "R-") else ""
    body = label[len(prefix) :].removesuffix("-DSP")
    if body.startswith("ARGM-"):
        body = "AM-" + body[5:]
    elif body.startswith("ARG"):
        body = "A" + body[3:]
    return prefix + body


def benchmark(sentence: Sentence) -> Sentence:
    """The sentence with verbal propositions alone, under CoNLL-2005's labels.

    A predicate counts if its XPOS starts with VB, unless its DEPREL starts with aux and it has no argument.
    """
    kept = []
    for p in sentence.propositions:
        auxiliary = sentence.deprels[p.predicate].startswith("aux") and not p.arguments
        if sentence.xpos[p.predicate].startswith("VB") and not auxiliary:
            kept.append(replace(p, pieces=tuple(replace(piece, role=conll_role(piece.role)) for piece in p.pieces)))
    return replace(sentence, propositions=tuple(kept))


def make_ewt(treebank: Path, propbank: Path) -> tuple[dict[str, list[Sentence]], list[str]]:
    """UD English-EWT sources ⋈ PropBank gold_skel: trees of the one, spans of the other, joined by position.

    Each is a tar archive of the repository. Splits and their order are PropBank's lists. Returned are the splits and,
    as `SPLIT ID: reason`, the sentences that were dropped because PropBank lacks the document or their lengths differ.
    """
    trees = _read_archive(treebank, "not-to-release/sources/", ".conllu")
    skeletons = _read_archive(propbank, "data/google/ewt/", ".gold_skel")
    lists = _read_archive(propbank, "docs/evaluation/", ".txt")
    splits: dict[str, list[Sentence]] = {split: [] for split in SPLITS}
    dropped: list[str] = []
    for split, found in splits.items():
        name = f"ewt.{split}.txt"
        if name not in lists:
            raise BadCorpus(propbank, 0, f"docs/evaluation/{name} is missing, and it lists the documents of {split}")
        for number, entry in enumerate(lists[name].split("\n"), 1):
            document = entry.strip().removesuffix(".conllu")
            if not document:
                continue
            genre, _, stem = document.split("/") if document.count("/") == 2 else ("", "", "")
            tree, skeleton = f"{genre}/{stem}.conllu", f"{document}.gold_skel"
            if tree not in trees:
                raise BadCorpus(name, number, f"the treebank has no {tree or document}")
            parsed = parse_conllu(trees[tree], tree)
            if skeleton not in skeletons:
                dropped += [f"{split} {sentence.sent_id}: PropBank has no {skeleton}" for sentence in parsed]
                continue
            for sentence, block in _align(parsed, read_blocks(skeletons[skeleton], skeleton, _SKELETON)):
                if block is None:
                    dropped.append(f"{split} {sentence.sent_id}: no sentence of {skeleton} has its length")
                else:
                    parse = block.columns["syntax"]
                    found.append(replace(sentence, parse=parse, propositions=propositions(block)))
    return splits, dropped


def _align(parsed: Sequence[Sentence], skeletons: Sequence[Block]) -> Iterator[tuple[Sentence, Block | None]]:
    """Pair by position; where one source splits a sentence the other does not, by the longest run of equal lengths."""
    paired: dict[int, Block] = {}
    if len(parsed) == len(skeletons):
        paired = {i: b for i, (s, b) in enumerate(zip(parsed, skeletons, strict=True)) if len(s) == b.length}
    else:
        matcher = SequenceMatcher(None, [len(s) for s in parsed], [b.length for b in skeletons], autojunk=False)
        for block in matcher.get_matching_blocks():
            for k in range(block.size):
                paired[block.a + k] = skeletons[block.b + k]
    for i, sentence in enumerate(parsed):
        yield sentence, paired.get(i)


def _read_archive(path: Path, under: str, suffix: str) -> dict[str, str]:
    """Texts of the files `…/under/*suffix` of a tar archive, keyed by what follows `under`."""
    found: dict[str, str] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None and under in member.name and member.name.endswith(suffix):
                    found[member.name.partition(under)[2]] = decode_text(stream.read(), f"{path}/{member.name}")
    except (OSError, tarfile.TarError, EOFError) as error:
        raise BadCorpus(path, 0, f"not a readable archive ({error})") from error
    if not found:
        raise BadCorpus(path, 0, f"no {under}*{suffix} in it; give the archive of the repository")
    return found
