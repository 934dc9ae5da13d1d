"""CoNLL-U in, sentences out: parsed text whose verbs become predicates without arguments, ready for a model.

Multiword tokens (`3-4`) and empty nodes (`5.1`) have no place in the tree and are passed over; both are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from spen.tasks.srl.sentences import (
    ROOT,
    Argument,
    BadCorpus,
    Proposition,
    Sentence,
    blocks,
    check_tree,
    read_text,
)

__all__ = ["ConlluFile", "conllu_text", "find_verbs", "parse_conllu", "read_conllu", "with_predicates"]


@dataclass(frozen=True, slots=True)
class ConlluFile:
    """The sentences of a file and how many of its lines are no words of the tree."""

    sentences: tuple[Sentence, ...]
    multiword_tokens: int
    empty_nodes: int


def read_conllu(path: str | Path, *, predicates: Callable[[Sentence], Collection[int]] | None = None) -> ConlluFile:
    """A CoNLL-U file, gzipped or not; `predicates` says which tokens are predicates (default: find_verbs)."""
    return parse_conllu(read_text(path), path, predicates=predicates)


def parse_conllu(
    text: str, file: str | Path, *, predicates: Callable[[Sentence], Collection[int]] | None = None
) -> ConlluFile:
    """CoNLL-U text; `file` is what errors call it."""
    choose = find_verbs if predicates is None else predicates
    sentences: list[Sentence] = []
    multiword = empty = 0
    for line, lines in blocks(text):
        sent_id, rows, numbers = "", [], []
        for number, row in enumerate(lines, line):
            if row.startswith("#"):
                key, _, value = row[1:].partition("=")
                sent_id = value.strip() if key.strip() == "sent_id" else sent_id
                continue
            cells = row.split("\t")
            if len(cells) != 10:
                raise BadCorpus(file, number, f"{len(cells)} columns where CoNLL-U has 10, apart by tabs")
            if "-" in cells[0]:
                multiword += 1
            elif "." in cells[0]:
                empty += 1
            else:
                rows.append(cells)
                numbers.append(number)
        if not rows:
            raise BadCorpus(file, line, "a sentence without words")
        sentence = _sentence(rows, numbers, sent_id or str(len(sentences) + 1), file)
        sentences.append(with_predicates(sentence, choose(sentence)))
    return ConlluFile(tuple(sentences), multiword, empty)


def conllu_text(sentence: Sentence) -> str:
    """The sentence as CoNLL-U, which has no column for roles: `parse_conllu` reads back all but those."""
    lines = [f"# sent_id = {sentence.sent_id}"] if sentence.sent_id else []
    blank = ("_",) * len(sentence)
    columns = zip(
        sentence.words, sentence.lemmas or blank, sentence.upos or blank, sentence.xpos or blank, sentence.heads,
        sentence.deprels, strict=True,
    )  # fmt: skip
    for number, (word, lemma, upos, xpos, head, deprel) in enumerate(columns, 1):
        lines.append("\t".join([str(number), word, lemma, upos, xpos, "_", str(head + 1), deprel, "_", "_"]))
    return "\n".join(lines) + "\n"


# Words and punctuation of the Penn treebank, with what the web treebank adds to them.
_PENN_TAGS = """
CC CD DT EX FW IN JJ JJR JJS LS MD NN NNS NNP NNPS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH VB VBD VBG VBN VBP VBZ
WDT WP WP$ WRB $ # , . : '' `` ( ) -LRB- -RRB- ADD AFX GW HYPH NFP XX
"""
_PENN = frozenset(_PENN_TAGS.split())


def find_verbs(sentence: Sentence) -> list[int]:
    """Tokens whose Penn tag starts with VB (without Penn tags: UPOS VERB or AUX), auxiliaries by relation left out."""
    penn = bool(sentence.xpos) and _PENN.issuperset(sentence.xpos)
    found = []
    for i in range(len(sentence)):
        verb = sentence.xpos[i].startswith("VB") if penn else sentence.upos[i] in ("VERB", "AUX")
        if verb and not sentence.deprels[i].startswith("aux"):
            found.append(i)
    return found


def with_predicates(sentence: Sentence, predicates: Collection[int]) -> Sentence:
    """The sentence with an empty proposition at each of these tokens, its sense the lemma."""
    for i in predicates:
        if not 0 <= i < len(sentence):
            raise ValueError(f"predicate {i} lies outside the sentence of {len(sentence)} tokens")
    props = tuple(Proposition(i, _sense(sentence, i), (Argument(i, i + 1, "V"),)) for i in sorted(set(predicates)))
    return Sentence(
        words=sentence.words, lemmas=sentence.lemmas, upos=sentence.upos, xpos=sentence.xpos, heads=sentence.heads,
        deprels=sentence.deprels, parse=sentence.parse, propositions=props, sent_id=sentence.sent_id,
    )  # fmt: skip


def _sense(sentence: Sentence, i: int) -> str:
    # A props file gives `-` to tokens that are no predicates and blanks to its columns.
    lemma = "".join(sentence.lemmas[i].split()) if sentence.lemmas else ""
    return lemma if lemma not in ("", "-", "_") else "".join(sentence.words[i].lower().split()).replace("-", "_") or "_"


def _sentence(rows: list[list[str]], numbers: list[int], sent_id: str, file: str | Path) -> Sentence:
    heads = []
    for i, (cells, number) in enumerate(zip(rows, numbers, strict=True)):
        if cells[0] != str(i + 1):
            raise BadCorpus(file, number, f"token {cells[0]!r} where token {i + 1} was expected")
        if not (cells[6].isascii() and cells[6].isdigit()):
            raise BadCorpus(file, number, f"head {cells[6]!r} is no number; labelling needs a dependency tree")
        heads.append(int(cells[6]) - 1 if cells[6] != "0" else ROOT)
    check_tree(heads, file, numbers)
    columns = list(zip(*rows, strict=True))
    return Sentence(
        words=columns[1], lemmas=columns[2], upos=columns[3], xpos=columns[4], heads=tuple(heads),
        deprels=columns[7], sent_id=sent_id,
    )  # fmt: skip
