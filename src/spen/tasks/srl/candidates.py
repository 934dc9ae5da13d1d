"""Candidate arguments from the dependency tree, after Täckström, Ganchev and Das (2015, Sec. 6.3).

For a predicate p: (1) the subtree of each child of p, and of the children of a conj child; (2) for each ancestor in
turn, its partial subtrees (the word itself, then whole child subtrees outwards on either side, up to the one that
holds p) and then its children's subtrees as in (1); (3) each of these without punctuation at its ends. Two kinds go
beyond the paper because PropBank annotates light verbs and small clauses: the bare head word of a dependent of p, and
the run from one dependent to the right of p to a later one (`let [us go]`). A span that covers p is no candidate.

Each candidate carries its path, which says how it was found. Only paths that led to an argument in training are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spen.tasks.srl.sentences import ROOT, Sentence


class Candidate(NamedTuple):
    """A span [start, end), the token that heads it, and the path that led to it."""

    start: int
    end: int
    head: int
    path: str


class Tree(NamedTuple):
    """Children of every token, left to right, and the span [first, last) of its subtree."""

    children: list[list[int]]
    first: list[int]
    last: list[int]

    @classmethod
    def of(cls, sentence: Sentence) -> Tree:
        if not sentence.heads:
            raise ValueError(f"sentence {sentence.sent_id!r} has no dependency tree, and candidates come from one")
        n = len(sentence)
        children: list[list[int]] = [[] for _ in range(n)]
        for token, head in enumerate(sentence.heads):
            if head != ROOT:
                children[head].append(token)
        order = [sentence.heads.index(ROOT)]
        for token in order:
            order += children[token]
        first, last = list(range(n)), list(range(1, n + 1))
        for token in reversed(order):
            head = sentence.heads[token]
            if head != ROOT:
                first[head] = min(first[head], first[token])
                last[head] = max(last[head], last[token])
        return cls(children, first, last)


def propose(sentence: Sentence, predicate: int, tree: Tree | None = None) -> list[Candidate]:
    """Every candidate of one predicate, each span once, under the first path that finds it."""
    search = _Search(sentence, predicate, Tree.of(sentence) if tree is None else tree)
    search.subtrees(predicate, "")
    search.dependents()
    path, token = "", predicate
    while (head := sentence.heads[token]) != ROOT:
        path += "^" + sentence.deprels[token]
        search.partial_subtrees(head, path)
        search.subtrees(head, path)
        token = head
    return [Candidate(*span, *found) for span, found in search.found.items()]


class _Search:
    """The spans found so far for one predicate."""

    def __init__(self, sentence: Sentence, predicate: int, tree: Tree) -> None:
        self.predicate, self.tree = predicate, tree
        self.deprels, self.lemmas = sentence.deprels, sentence.lemmas or sentence.words
        self.punctuation = _punctuation(sentence)
        self.found: dict[tuple[int, int], tuple[int, str]] = {}

    def add(self, start: int, end: int, head: int, path: str) -> None:
        if start <= self.predicate < end:
            return
        self.found.setdefault((start, end), (head, path))
        punctuation = self.punctuation
        right = end
        while right > start and punctuation[right - 1]:
            right -= 1
        if right == start:
            return
        if right != end:
            self.found.setdefault((start, right), (head, path + "."))
        left = start
        while punctuation[left]:
            left += 1
        if left != start:
            self.found.setdefault((left, right), (head, path + ".."))

    def holds_predicate(self, token: int) -> bool:
        return self.tree.first[token] <= self.predicate < self.tree.last[token]

    def subtrees(self, head: int, path: str) -> None:
        """(1): children, and the children of a conj child."""
        first, last = self.tree.first, self.tree.last
        for child in self.tree.children[head]:
            if self.holds_predicate(child):
                continue
            relation = f"{path}v{self.deprels[child]}"
            self.add(first[child], last[child], child, relation)
            if self.deprels[child] == "conj":
                for below in self.tree.children[child]:
                    self.add(first[below], last[below], below, f"{relation}v{self.deprels[below]}")

    def partial_subtrees(self, head: int, path: str) -> None:
        """(2): the word widened by whole child subtrees, nearest first; the path names what stopped either side."""
        lefts = [c for c in reversed(self.tree.children[head]) if c < head]
        rights = [c for c in self.tree.children[head] if c > head]
        starts = self._widen(lefts, head, self.tree.first)
        ends = self._widen(rights, head + 1, self.tree.last)
        side = "<" if self.predicate < head else ">"
        for i, start in enumerate(starts):
            stop_left = self.deprels[lefts[i]] if i + 1 < len(starts) else ""
            for j, end in enumerate(ends):
                stop_right = self.deprels[rights[j]] if j + 1 < len(ends) else ""
                self.add(start, end, head, f"{path}{side}{stop_left}|{stop_right}")

    def _widen(self, children: Sequence[int], edge: int, edges: Sequence[int]) -> list[int]:
        reached = [edge]
        for child in children:
            if self.holds_predicate(child):
                break
            reached.append(edges[child])
        return reached

    def dependents(self) -> None:
        """Bare head words of p's dependents (the path names the verb: it is light verbs that want them), and runs."""
        first, last, p = self.tree.first, self.tree.last, self.predicate
        children = self.tree.children[p]
        for i, child in enumerate(children):
            relation = self.deprels[child]
            if child < p and not relation.startswith("nsubj"):
                continue
            self.add(child, child + 1, child, f"!{relation}:{self.lemmas[p]}")
            self.add(first[child], child + 1, child, f"!{relation}")
            if child < p:
                continue
            for later in children[i + 1 :]:
                if self.deprels[later] == "punct":
                    break
                self.add(first[child], last[later], child, f"{relation}+{self.deprels[later]}")


def _punctuation(sentence: Sentence) -> list[bool]:
    if sentence.upos:
        return [tag == "PUNCT" for tag in sentence.upos]
    return [not any(c.isalnum() for c in word) for word in sentence.words]


@dataclass(frozen=True)
class CandidateRules:
    """Which candidates to keep: those whose path is in `paths`; all where it is None."""

    paths: frozenset[str] | None = None

    @classmethod
    def fit(cls, sentences: Iterable[Sentence], *, min_count: int = 2, min_rate: float = 0.01) -> CandidateRules:
        """Keep the paths that led to an argument `min_count` times or more and at a rate of `min_rate` or more.

        A rate is arguments / candidates of that path. min_count=1, min_rate=0 is the paper's rule; its long tail of
        paths costs a third more candidates for half a point of recall.
        """
        tried: Counter[str] = Counter()
        right: Counter[str] = Counter()
        for sentence in sentences:
            tree = Tree.of(sentence) if sentence.propositions else None
            for proposition in sentence.propositions:
                gold = {(a.start, a.end) for a in proposition.arguments}
                for candidate in propose(sentence, proposition.predicate, tree):
                    tried[candidate.path] += 1
                    right[candidate.path] += candidate[:2] in gold
        kept = (p for p, n in right.items() if n >= max(min_count, 1) and n >= min_rate * tried[p])
        return cls(frozenset(kept))

    def to_list(self) -> list[str] | None:
        """The sorted paths, as JSON can hold them; None where all are allowed."""
        return None if self.paths is None else sorted(self.paths)

    def __call__(self, sentence: Sentence) -> list[list[Candidate]]:
        """The candidates of each proposition of the sentence, sorted by span."""
        if not sentence.propositions:
            return []
        tree, paths = Tree.of(sentence), self.paths
        found = (propose(sentence, p.predicate, tree) for p in sentence.propositions)
        return [sorted(c for c in candidates if paths is None or c.path in paths) for candidates in found]
