"""English Web Treebank with PropBank spans: a TSV of words, tree and propositions, and the join that makes it.

Columns: ID FORM LEMMA UPOS XPOS HEAD DEPREL parse-bit roleset, then one bracket column per predicate. Labels stay
PropBank's in the file (ARG0, ARGM-TMP); `benchmark` keeps the verbs and renames to CoNLL-2005's (A0, AM-TMP).
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

from spen.tasks.srl.formats.conllu import parse_conllu
from spen.tasks.srl.sentences import (
    ROOT,
    BadCorpus,
    Proposition,
    Sentence,
    blocks,
    check_tree,
    column_of,
    parse_column,
    read_text,
    write_text,
)

__all__ = [
    "SPLITS",
    "Dropped",
    "EwtJoin",
    "benchmark",
    "conll_role",
    "is_benchmark_predicate",
    "make_ewt",
    "read_ewt",
    "read_source",
    "read_tsv",
    "tsv_text",
    "write_tsv",
]

SPLITS = ("train", "dev", "test")
_FIXED = 9


def read_tsv(path: str | Path) -> list[Sentence]:
    """Every sentence of a TSV, gzipped or not, as it stands: all predicates, PropBank's labels."""
    return list(_parse_tsv(read_text(path), path))


def write_tsv(path: str | Path, sentences: Iterable[Sentence]) -> None:
    """The inverse of read_tsv; gzipped when the name ends in .gz."""
    write_text(path, tsv_text(sentences))


def read_ewt(folder: str | Path, split: str) -> list[Sentence]:
    """Benchmark sentences of a split: verbs only, CoNLL-2005 labels."""
    if split not in SPLITS:
        raise ValueError(f"EWT has no split {split!r}; choose from {', '.join(SPLITS)}")
    return [benchmark(sentence) for sentence in read_tsv(Path(folder) / f"ewt-srl.{split}.tsv.gz")]


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
    return "".join(map(_sentence_text, sentences))


def _sentence_text(sentence: Sentence) -> str:
    n = len(sentence)
    ordered = sorted(sentence.propositions, key=lambda p: p.predicate)
    senses = ["-"] * n
    for proposition in ordered:
        senses[proposition.predicate] = proposition.sense
    table = [
        [str(i) for i in range(1, n + 1)],
        sentence.words,
        sentence.lemmas or ["_"] * n,
        sentence.upos or ["_"] * n,
        sentence.xpos or ["_"] * n,
        [str(head + 1) for head in sentence.heads],
        sentence.deprels,
        sentence.parse or ["*"] * n,
        senses,
        *(column_of(p.pieces, n) for p in ordered),
    ]
    rows = [f"# sent_id = {sentence.sent_id}", *("\t".join(row) for row in zip(*table, strict=True))]
    for number, row in enumerate(rows[1:], 1):
        if "\n" in row or "\r" in row or row.count("\t") != len(table) - 1:
            raise ValueError(f"sentence {sentence.sent_id!r}: token {number} has a tab or a line break in a column")
    return "\n".join(rows) + "\n\n"


def _parse_tsv(text: str, file: str | Path) -> Iterator[Sentence]:
    for line, lines in blocks(text):
        sent_id = ""
        while lines and lines[0].startswith("#"):
            key, _, value = lines[0][1:].partition("=")
            sent_id = value.strip() if key.strip() == "sent_id" else sent_id
            lines, line = lines[1:], line + 1
        if not lines:
            raise BadCorpus(file, line - 1, "a sentence without words")
        yield _parse_rows([row.split("\t") for row in lines], sent_id, file, line)


def _parse_rows(rows: list[list[str]], sent_id: str, file: str | Path, line: int) -> Sentence:
    width = len(rows[0])
    heads = []
    for i, row in enumerate(rows):
        if len(row) < _FIXED:
            raise BadCorpus(file, line + i, f"{len(row)} columns where at least {_FIXED} were expected, apart by tabs")
        if len(row) != width:
            raise BadCorpus(file, line + i, f"{len(row)} columns where the sentence began with {width}")
        if row[0] != str(i + 1):
            raise BadCorpus(file, line + i, f"token {row[0]!r} where token {i + 1} was expected")
        if not (row[5].isascii() and row[5].isdigit()):
            raise BadCorpus(file, line + i, f"head {row[5]!r} is no number")
        heads.append(int(row[5]) - 1 if row[5] != "0" else ROOT)
    check_tree(heads, file, range(line, line + len(rows)))
    columns = list(zip(*rows, strict=True))
    predicates = [i for i, sense in enumerate(columns[8]) if sense != "-"]
    if len(predicates) != width - _FIXED:
        problem = f"{len(predicates)} predicates but {width - _FIXED} columns of arguments"
        raise BadCorpus(file, line, problem)
    return Sentence(
        words=columns[1],
        lemmas=columns[2],
        upos=columns[3],
        xpos=columns[4],
        heads=tuple(heads),
        deprels=columns[6],
        parse=columns[7],
        propositions=tuple(
            Proposition(i, columns[8][i], parse_column(columns[_FIXED + k], file, line))
            for k, i in enumerate(predicates)
        ),
        sent_id=sent_id,
    )


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
            parsed = parse_conllu(trees[tree], tree, predicates=lambda _: ()).sentences
            skeleton = f"{document}.gold_skel"
            if skeleton not in skeletons:
                reason = f"PropBank has no {skeleton}"
                dropped += [Dropped(split, sentence.sent_id, reason) for sentence in parsed]
                continue
            for sentence, block in _align(parsed, _skeletons(skeletons[skeleton], skeleton)):
                if block is None:
                    dropped.append(Dropped(split, sentence.sent_id, f"no sentence of {skeleton} has its length"))
                else:
                    found.append(_join(sentence, block, skeleton))
        splits[split] = tuple(found)
    return EwtJoin(splits, tuple(dropped))


@dataclass(frozen=True, slots=True)
class _Skeleton:
    line: int
    columns: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.columns[0])


def _skeletons(text: str, file: str) -> list[_Skeleton]:
    found = []
    for line, lines in blocks(text):
        rows = [row.split() for row in lines]
        for i, row in enumerate(rows):
            if len(row) < 8 or len(row) != len(rows[0]):
                wanted = f"where the sentence began with {len(rows[0])}" if len(row) >= 8 else "where 8 or more belong"
                raise BadCorpus(file, line + i, f"{len(row)} columns {wanted}")
        found.append(_Skeleton(line, list(zip(*rows, strict=True))))
    return found


def _align(parsed: tuple[Sentence, ...], skeletons: list[_Skeleton]) -> Iterator[tuple[Sentence, _Skeleton | None]]:
    """Pair by position; where one source splits a sentence the other does not, by the longest run of equal lengths."""
    paired: dict[int, _Skeleton] = {}
    if len(parsed) == len(skeletons):
        paired = {i: b for i, (s, b) in enumerate(zip(parsed, skeletons, strict=True)) if len(s) == len(b)}
    else:
        matcher = SequenceMatcher(None, [len(s) for s in parsed], [len(b) for b in skeletons], autojunk=False)
        for block in matcher.get_matching_blocks():
            for k in range(block.size):
                paired[block.a + k] = skeletons[block.b + k]
    for i, sentence in enumerate(parsed):
        yield sentence, paired.get(i)


def _join(sentence: Sentence, skeleton: _Skeleton, file: str) -> Sentence:
    parse, senses, brackets = skeleton.columns[5], skeleton.columns[7], skeleton.columns[8:]
    predicates = [i for i, sense in enumerate(senses) if sense != "-"]
    if len(predicates) != len(brackets):
        problem = f"{len(predicates)} predicates but {len(brackets)} columns of arguments"
        raise BadCorpus(file, skeleton.line, problem)
    propositions = tuple(
        Proposition(i, senses[i], parse_column(column, file, skeleton.line))
        for i, column in zip(predicates, brackets, strict=True)
    )
    return replace(sentence, parse=parse, propositions=propositions)


def read_source(path: str | Path, under: str, suffix: str) -> dict[str, str]:
    """Texts of a repository's files `…/under/*suffix`, keyed by what follows `under`; from a folder or an archive."""
    path = Path(path)
    found: dict[str, str] = {}
    for name, data in _members(path, under, suffix):
        key = name.partition(under)[2]
        try:
            found[key] = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise BadCorpus(f"{path}/{name}", line, f"byte {data[error.start]:#04x} is not UTF-8") from error
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
