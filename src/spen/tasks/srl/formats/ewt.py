"""English Web Treebank with PropBank spans: a TSV of words, tree and propositions, and the join that makes it.

Columns: ID FORM LEMMA UPOS XPOS HEAD DEPREL parse-bit roleset, then one bracket column per predicate. Labels stay
PropBank's in the file (ARG0, ARGM-TMP); `benchmark` keeps the verbs and renames to CoNLL-2005's (A0, AM-TMP).
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

from spen.tasks.srl.formats.columns import Block, assemble, propositions, read_blocks, sentence_text
from spen.tasks.srl.formats.conllu import parse_conllu
from spen.tasks.srl.sentences import BadCorpus, Proposition, Sentence, decode_text, read_text, write_text

__all__ = [
    "SPLITS",
    "Dropped",
    "EwtJoin",
    "benchmark",
    "conll_role",
    "is_benchmark_predicate",
    "make_ewt",
    "read_source",
    "read_tsv",
    "tsv_text",
    "write_tsv",
]

SPLITS = ("train", "dev", "test")
COLUMNS = ("id", "words", "lemmas", "upos", "tags", "heads", "deprels", "syntax", "props")
_SKELETON = (*("_",) * 5, "syntax", "_", "props")  # a gold_skel file of PropBank


def read_tsv(path: str | Path) -> list[Sentence]:
    """Every sentence of a TSV, gzipped or not, as it stands: all predicates, PropBank's labels."""
    return [assemble(block) for block in read_blocks(read_text(path), path, COLUMNS, tabs=True)]


def write_tsv(path: str | Path, sentences: Iterable[Sentence]) -> None:
    """The inverse of read_tsv; gzipped when the name ends in .gz."""
    write_text(path, tsv_text(sentences))


def conll_role(label: str) -> str:
    """ARGn → An, ARGA → AA, ARGM-x → AM-x, -DSP dropped, C- and R- kept: C-ARG1-DSP → C-A1."""
    prefix = label[:2] if label[:2] in ("C-", "R-") else ""
    body = label[len(prefix) :].removesuffix("-DSP")
    if body.startswith("ARGM-"):
        body = "AM-" + body[5:]
    elif body.startswith("ARG"):
        body = "A" + body[3:]
    return prefix + body


def is_benchmark_predicate(sentence: Sentence, proposition: Proposition) -> bool:
    """XPOS starts with VB, and not (DEPREL starts with aux and there is no argument)."""
    i = proposition.predicate
    auxiliary = sentence.deprels[i].startswith("aux") and not proposition.arguments
    return sentence.xpos[i].startswith("VB") and not auxiliary


def benchmark(sentence: Sentence) -> Sentence:
    """The sentence with verbal propositions alone, under CoNLL-2005's labels."""
    kept = tuple(
        replace(p, pieces=tuple(replace(piece, role=conll_role(piece.role)) for piece in p.pieces))
        for p in sentence.propositions
        if is_benchmark_predicate(sentence, p)
    )
    return replace(sentence, propositions=kept)


def tsv_text(sentences: Iterable[Sentence]) -> str:
    """What write_tsv writes."""
    return "".join(sentence_text(sentence, COLUMNS) + "\n" for sentence in sentences)


# ── the join ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Dropped:
    """A sentence (or a whole document) of the treebank that the join leaves out, and why."""

    split: str
    sent_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class EwtJoin:
    """The joined splits and all that did not join."""

    splits: Mapping[str, tuple[Sentence, ...]]
    dropped: tuple[Dropped, ...]

    def write(self, folder: str | Path) -> list[Path]:
        """ewt-srl.{train,dev,test}.tsv.gz in the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"ewt-srl.{split}.tsv.gz" for split in self.splits]
        for path, sentences in zip(paths, self.splits.values(), strict=True):
            write_tsv(path, sentences)
        return paths


def make_ewt(treebank: str | Path, propbank: str | Path) -> EwtJoin:
    """UD English-EWT sources ⋈ PropBank gold_skel: trees of the one, spans of the other, joined by position.

    Each is a folder or an archive (.tar.xz, .tar.gz, .zip) of the repository. Splits and their order are PropBank's
    lists. A sentence whose two versions differ in length is dropped and named, as is a document PropBank lacks.
    """
    trees = read_source(treebank, "not-to-release/sources/", ".conllu")
    skeletons = read_source(propbank, "data/google/ewt/", ".gold_skel")
    lists = read_source(propbank, "docs/evaluation/", ".txt")
    splits: dict[str, tuple[Sentence, ...]] = {}
    dropped: list[Dropped] = []
    for split in SPLITS:
        name = f"ewt.{split}.txt"
        if name not in lists:
            raise BadCorpus(propbank, 0, f"docs/evaluation/{name} is missing, and it lists the documents of {split}")
        found: list[Sentence] = []
        for number, entry in enumerate(lists[name].split("\n"), 1):
            document = entry.strip().removesuffix(".conllu")
            if not document:
                continue
            genre, _, stem = document.split("/") if document.count("/") == 2 else ("", "", "")
            tree = f"{genre}/{stem}.conllu"
            if tree not in trees:
                raise BadCorpus(name, number, f"the treebank has no {tree or document}")
            parsed = parse_conllu(trees[tree], tree, predicates=lambda _: ())
            skeleton = f"{document}.gold_skel"
            if skeleton not in skeletons:
                reason = f"PropBank has no {skeleton}"
                dropped += [Dropped(split, sentence.sent_id, reason) for sentence in parsed]
                continue
            for sentence, block in _align(parsed, read_blocks(skeletons[skeleton], skeleton, _SKELETON)):
                if block is None:
                    dropped.append(Dropped(split, sentence.sent_id, f"no sentence of {skeleton} has its length"))
                else:
                    joined = propositions(block)
                    found.append(replace(sentence, parse=block.columns["syntax"], propositions=joined))
        splits[split] = tuple(found)
    return EwtJoin(splits, tuple(dropped))


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


def read_source(path: str | Path, under: str, suffix: str) -> dict[str, str]:
    """Texts of a repository's files `…/under/*suffix`, keyed by what follows `under`; from a folder or an archive."""
    path = Path(path)
    found: dict[str, str] = {}
    for name, data in _members(path, under, suffix):
        found[name.partition(under)[2]] = decode_text(data, f"{path}/{name}")
    if not found:
        raise BadCorpus(path, 0, f"no {under}*{suffix} in it; give the repository's folder or archive")
    return found


def _members(path: Path, under: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(path.rglob(f"*{suffix}")):
            if under in file.as_posix():
                yield file.relative_to(path).as_posix(), file.read_bytes()
        return
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as bundle:
                for name in bundle.namelist():
                    if under in name and name.endswith(suffix):
                        yield name, bundle.read(name)
        else:
            with tarfile.open(path) as archive:
                for member in archive:
                    stream = archive.extractfile(member) if member.isfile() else None
                    if stream is not None and under in member.name and member.name.endswith(suffix):
                        yield member.name, stream.read()
    except (OSError, tarfile.TarError, EOFError) as error:
        raise BadCorpus(path, 0, f"neither a folder nor a readable archive ({error})") from error
