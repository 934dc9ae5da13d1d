"""Phrase-structure trees: bracketed text, CoNLL parse bits, and the dependency tree their heads make.

CoNLL-2005 has phrases but no dependencies, and candidates and features need dependencies. Head rules in the manner
of Collins, with the content word as head of a verb group, a prepositional phrase and a clause, give trees and relation
names close to Universal Dependencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from spen.tasks.srl.sentences import ROOT, BadCorpus, Sentence


@dataclass(frozen=True, slots=True)
class Phrase:
    """A label and its parts; a leaf is a tag and a word."""

    label: str
    parts: tuple[Phrase, ...] = ()
    word: str = ""

    def leaves(self) -> Iterator[Phrase]:
        """The words, left to right, each under its tag."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


# ── bracketed text ────────────────────────────────────────────────────────────────────────────────────────────────


def parse_brackets(text: str, file: str | Path) -> Iterator[tuple[int, Phrase]]:
    """(line, tree) for each tree of a Treebank file, without traces, function tags and the unlabelled outer bracket."""
    stack: list[tuple[str, list[Phrase], int]] = []
    word, line, start = "", 1, 1
    for token in _tokens(text):
        if token == "\n":
            line += 1
        elif token == "(":
            if word:
                raise BadCorpus(file, line, f"{word!r} and a bracket stand side by side in one phrase")
            if not stack:
                start = line
            stack.append(("", [], line))
        elif token == ")":
            if not stack:
                raise BadCorpus(file, line, "a bracket closes that was never opened")
            label, parts, _ = stack.pop()
            tree = _close(label, parts, word)
            word = ""
            if stack and tree is not None:
                stack[-1][1].append(tree)
            elif not stack and tree is not None:
                yield start, tree
        elif not stack:
            raise BadCorpus(file, line, f"{token!r} stands outside any bracket")
        elif stack[-1][1] or word:
            raise BadCorpus(file, line, f"{token!r} follows a finished part of its phrase")
        elif not stack[-1][0]:
            stack[-1] = (token, stack[-1][1], stack[-1][2])
        else:
            word = token
    if stack:
        raise BadCorpus(file, stack[0][2], "the bracket opened here is never closed")


def _tokens(text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n")):
        if number:
            yield "\n"
        yield from line.replace("(", " ( ").replace(")", " ) ").split()


def _close(label: str, parts: list[Phrase], word: str) -> Phrase | None:
    if word:
        return None if label == "-NONE-" else Phrase(label, (), word)
    if not parts:
        return None
    if not label:
        return parts[0] if len(parts) == 1 else Phrase("TOP", tuple(parts))
    return Phrase(_plain(label), tuple(parts))


def _plain(label: str) -> str:
    """NP-SBJ=2 → NP; -LRB- stays."""
    return label if label.startswith("-") else label.split("-")[0].split("=")[0].split("|")[0] or label


# ── parse bits ────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_bits(tree: Phrase) -> tuple[str, ...]:
    """`(S(NP*`, `*)`, …: the brackets around each word, tags left to their own column."""
    before: list[str] = []
    after: list[str] = []

    def visit(phrase: Phrase) -> None:
        if not phrase.parts:
            before.append("")
            after.append("")
            return
        at = len(before)
        for part in phrase.parts:
            visit(part)
        before[at] = f"({phrase.label}{before[at]}"
        after[-1] += ")"

    visit(tree)
    return tuple(f"{a}*{b}" for a, b in zip(before, after, strict=True))


# ── dependencies ──────────────────────────────────────────────────────────────────────────────────────────────────

_VERBS = ("VB", "VBD", "VBG", "VBN", "VBP", "VBZ")
_NOUNS = ("NN", "NNS", "NNP", "NNPS", "PRP", "EX", "CD", "$")
_PUNCTUATION = frozenset({",", ".", ":", "``", "''", "-LRB-", "-RRB-", "HYPH", "NFP"})
# label → search from the right?, labels by priority; the content word wins over the function word.
_HEADS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "VP": (False, ("VP", *_VERBS, "MD", "TO", "ADJP", "NP", "S")),
    "S": (False, ("VP", "S", "SBAR", "ADJP", "UCP", "NP", "PP")),
    "SINV": (False, ("VP", "S", "SINV", *_VERBS, "MD", "NP")),
    "SQ": (False, ("VP", "SQ", *_VERBS, "MD", "NP", "ADJP")),
    "SBAR": (False, ("S", "SQ", "SINV", "SBAR", "FRAG", "VP", "WHNP", "IN")),
    "SBARQ": (False, ("SQ", "S", "SINV", "SBARQ", "FRAG", "WHNP")),
    "PP": (True, ("NP", "S", "SBAR", "VP", "PP", "ADJP", "ADVP", "IN", "TO", "RP")),
    "WHPP": (True, ("WHNP", "NP", "IN", "TO")),
    "NP": (True, (*_NOUNS, "NML", "NP", "NX", "JJ", "JJS", "JJR", "QP", "VBG", "DT", "ADJP", "PRP$", "POS")),
    "NML": (True, (*_NOUNS, "NML", "NP", "JJ")),
    "NX": (True, (*_NOUNS, "NX", "NP", "JJ")),
    "WHNP": (True, (*_NOUNS, "NP", "WHNP", "WP", "WDT", "WP$", "WHADJP", "DT")),
    "ADJP": (True, ("JJ", "JJR", "JJS", "VBN", "VBG", "ADJP", "NN", "NNS", "RB")),
    "ADVP": (True, ("RB", "RBR", "RBS", "ADVP", "IN", "TO", "CD", "JJ")),
    "QP": (True, ("CD", "NN", "NNS", "$", "JJ", "RB")),
    "TOP": (False, ("S", "SINV", "SQ", "SBARQ", "S1", "VP", "NP", "FRAG", "INTJ")),
    "S1": (False, ("S", "SINV", "SQ", "SBARQ", "VP", "NP", "FRAG")),
}


def dependencies(tree: Phrase) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Head (−1 at the root) and relation of every word."""
    n = sum(1 for _ in tree.leaves())
    heads, deprels = [ROOT] * n, ["root"] * n
    counter = iter(range(n))

    def visit(phrase: Phrase) -> int:
        if not phrase.parts:
            return next(counter)
        tops = [visit(part) for part in phrase.parts]
        h = _head_child(phrase)
        for i, part in enumerate(phrase.parts):
            if i != h:
                heads[tops[i]], deprels[tops[i]] = tops[h], _relation(phrase, i, h, part)
        return tops[h]

    visit(tree)
    return tuple(heads), tuple(deprels)


def _head_child(phrase: Phrase) -> int:
    from_right, wanted = _HEADS.get(phrase.label, (False, ()))
    labels = [part.label for part in phrase.parts]
    coordinated = "CC" in labels or "CONJP" in labels
    places = range(len(labels))
    if coordinated and phrase.label in labels:
        return labels.index(phrase.label)
    if phrase.label in ("NP", "NML", "NX", "WHNP"):
        # The last noun of the base phrase, before any postmodifier; of stacked phrases the first.
        base = [i for i in places if labels[i] in _NOUNS]
        stacked = [i for i in places if labels[i] in ("NP", "NX", "WHNP")]
        if base and not (stacked and stacked[0] < base[0]):
            return base[0] if coordinated else base[-1]
        if stacked and labels[-1] != "POS":
            return stacked[0]
    for label in wanted:
        for i in reversed(places) if from_right else places:
            if labels[i] == label:
                return i
    solid = [i for i in places if labels[i] not in _PUNCTUATION and labels[i] not in ("CC", "SYM")] or list(places)
    return solid[-1] if from_right else solid[0]


def _passive(phrase: Phrase) -> bool:
    """A verb phrase whose innermost verb is a participle under a form of be or get."""
    below = phrase
    be = False
    while below.label == "VP" and below.parts:
        h = _head_child(below)
        auxiliaries = [part.word.lower() for part in below.parts[:h] if not part.parts]
        if auxiliaries:
            be = auxiliaries[-1] in _BE or (be and auxiliaries[-1] in ("not", "n't"))
        below = below.parts[h]
    return be and below.label == "VBN"


_BE = frozenset({"be", "is", "are", "am", "was", "were", "been", "being", "'s", "'re", "'m", "get", "got", "gets"})
_BY_LABEL = {
    "CC": "cc", "CONJP": "cc", "DT": "det", "PDT": "det:predet", "WDT": "det", "PRP$": "nmod:poss", "WP$": "nmod:poss",
    "POS": "case", "JJ": "amod", "JJR": "amod", "JJS": "amod", "ADJP": "amod", "CD": "nummod", "QP": "nummod",
    "RB": "advmod", "RBR": "advmod", "RBS": "advmod", "ADVP": "advmod", "WHADVP": "advmod", "WRB": "advmod",
    "RP": "compound:prt", "PRT": "compound:prt", "INTJ": "discourse", "UH": "discourse", "PRN": "parataxis",
    "SBARQ": "parataxis",
}  # fmt: skip


def _relation(phrase: Phrase, i: int, h: int, part: Phrase) -> str:
    label, parent, head = part.label, phrase.label, phrase.parts[h]
    labels = [p.label for p in phrase.parts]
    if label in _PUNCTUATION:
        return "punct"
    if i > h and ("CC" in labels[h:i] or "CONJP" in labels[h:i] or "," in labels[h:i]) and label == head.label:
        return "conj" if "CC" in labels or "CONJP" in labels else "parataxis"
    if parent in ("PP", "WHPP") and label in ("IN", "TO", "VBG", "RP"):
        return "case"
    if parent == "SBAR" and label in ("IN", "TO", "DT"):
        return "mark"
    if parent in ("VP", "SQ", "SINV") and label in (*_VERBS, "MD") and i < h:
        return "aux:pass" if part.word.lower() in _BE and _passive(phrase) else "aux"
    if parent == "VP" and label == "TO":
        return "mark"
    if parent in ("SBAR", "SBARQ") and label == "WHNP":
        return "obj" if any(p.label == "NP" for p in head.parts[:1]) else "nsubj"
    if parent in ("S", "SINV", "SQ"):
        if label == "NP" and (i < h or parent != "S"):
            nearest = not any(x == "NP" for x in labels[i + 1 : h])
            return ("nsubj:pass" if _passive(head) else "nsubj") if nearest else "obl:unmarked"
        if label in ("S", "SBAR"):
            return "csubj" if i < h and not any(x == "NP" for x in labels[:h]) else "advcl"
    if parent == "VP":
        if label == "NP":
            return "iobj" if "NP" in labels[i + 1 :] else "obj"
        verbal = {"S": "xcomp", "SBAR": "ccomp", "ADJP": "xcomp", "SQ": "ccomp", "SINV": "ccomp", "VP": "xcomp"}
        if label in verbal:
            return verbal[label]
    if label in ("PP", "WHPP"):
        return "obl" if parent in ("VP", "S", "SINV", "SQ", "ADJP", "ADVP") else "nmod"
    if parent in ("NP", "NML", "NX", "WHNP", "QP"):
        nominal = {"SBAR": "acl:relcl", "VP": "acl", "S": "acl", "NP": "appos" if i > h else "nmod:poss"}
        if label in nominal:
            return nominal[label]
        if label in (*_NOUNS, "NML", "NX"):
            return "compound"
    return _BY_LABEL.get(label, "dep")


# ── sentences ─────────────────────────────────────────────────────────────────────────────────────────────────────

_COARSE = {
    "NN": "NOUN", "VB": "VERB", "MD": "AUX", "JJ": "ADJ", "RB": "ADV", "IN": "ADP", "DT": "DET", "PR": "PRON",
    "CC": "CCONJ", "CD": "NUM", "WP": "PRON", "WD": "PRON", "WR": "ADV", "TO": "PART", "PO": "PART", "UH": "INTJ",
    "RP": "ADP", "EX": "PRON", "PD": "DET",
}  # fmt: skip


def _coarse(tag: str) -> str:
    """A Universal tag for a Penn tag, well enough for features."""
    if tag.startswith("NNP"):
        return "PROPN"
    return _COARSE.get(tag[:2], "X" if tag[:1].isalpha() else "SYM" if tag in ("$", "#") else "PUNCT")


def with_tree(sentence: Sentence, file: str | Path, number: int) -> Sentence:
    """The sentence with a dependency tree made from its phrases, where it has none; `number` is its place in `file`.

    It gets Universal tags and lemmas as well: the lower-cased word, and for a predicate what the props call it.
    """
    if sentence.heads:
        return sentence
    if not sentence.parse or not sentence.xpos:
        raise BadCorpus(file, 0, f"sentence {number} has no tree; add synt.*/ or dependencies/ with one file a section")
    tags = [tag.replace("(", "-LRB-").replace(")", "-RRB-") for tag in sentence.xpos]
    leaves = (bit.replace("*", f"({tag} {i})") for i, (bit, tag) in enumerate(zip(sentence.parse, tags, strict=True)))
    try:
        trees = [tree for _, tree in parse_brackets(f"( {' '.join(leaves)} )", file)]
    except BadCorpus as error:
        raise BadCorpus(file, 0, f"the syntax column of sentence {number} is no tree: {error.problem}") from None
    if len(trees) != 1 or [leaf.word for leaf in trees[0].leaves()] != [str(i) for i in range(len(sentence))]:
        raise BadCorpus(file, 0, f"the syntax column of sentence {number} is no tree over its {len(sentence)} words")
    named = _with_words(trees[0], sentence.words)
    heads, deprels = dependencies(named)
    lemmas = [word.lower() for word in sentence.words]
    for proposition in sentence.propositions:
        lemmas[proposition.predicate] = proposition.sense
    upos = tuple(_coarse(tag) for tag in sentence.xpos)
    return replace(sentence, heads=heads, deprels=deprels, upos=upos, lemmas=sentence.lemmas or tuple(lemmas))


def _with_words(tree: Phrase, words: tuple[str, ...]) -> Phrase:
    """The tree with words in the place of their numbers: words may hold brackets, which the text above could not."""
    if not tree.parts:
        return replace(tree, word=words[int(tree.word)])
    return replace(tree, parts=tuple(_with_words(part, words) for part in tree.parts))
