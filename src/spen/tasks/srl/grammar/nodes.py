"""Sentences under construction: nodes with their dependents, frames with their arguments.

A grammar builds nodes in any order; spans are computed once the order of the words is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spen.tasks.srl.sentences import ROOT, Argument, Proposition, Sentence


@dataclass(eq=False)
class Node:
    """A word and its dependents on either side."""

    word: str
    lemma: str
    upos: str
    xpos: str
    deprel: str = "root"
    left: list[Node] = field(default_factory=list)
    right: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        for child in self.left:
            yield from child.walk()
        yield self
        for child in self.right:
            yield from child.walk()

    def attach(self, child: Node, deprel: str, *, left: bool = False) -> Node:
        child.deprel = deprel
        (self.left if left else self.right).append(child)
        return child


@dataclass(eq=False)
class Frame:
    """A predicate and its arguments: a role, the node that heads it, and dependents that do not belong to it."""

    verb: Node
    roles: list[tuple[str, Node, tuple[Node, ...]]] = field(default_factory=list)

    def add(self, role: str, node: Node, *without: Node) -> None:
        self.roles.append((role, node, without))


def finish(root: Node, frames: Sequence[Frame], sent_id: str) -> Sentence:
    """The draft as a sentence: words in order, heads, and one proposition per frame."""
    nodes = list(root.walk())
    place = {id(node): i for i, node in enumerate(nodes)}
    heads = [ROOT] * len(nodes)
    for node in nodes:
        for child in node.left + node.right:
            heads[place[id(child)]] = place[id(node)]
    propositions = []
    for frame in frames:
        verb = place[id(frame.verb)]
        pieces = [Argument(verb, verb + 1, "V")]
        for role, node, without in frame.roles:
            hidden = {place[id(n)] for w in without for n in w.walk()}
            own = [place[id(n)] for n in node.walk() if place[id(n)] not in hidden]
            # The last full stop belongs to the sentence alone.
            end = max(i for i in own if nodes[i].upos != "PUNCT") + 1
            pieces.append(Argument(min(own), end, role))
        propositions.append(Proposition(verb, frame.verb.lemma, tuple(sorted(pieces))))
    first = nodes[0]
    first.word = first.word.capitalize()
    n = len(nodes)
    return Sentence(
        words=tuple(node.word for node in nodes),
        lemmas=tuple(node.lemma for node in nodes),
        upos=tuple(node.upos for node in nodes),
        xpos=tuple(node.xpos for node in nodes),
        heads=tuple(heads),
        deprels=tuple(node.deprel for node in nodes),
        parse=("(S*", *("*",) * (n - 2), "*)"),
        propositions=tuple(sorted(propositions, key=lambda p: p.predicate)),
        sent_id=sent_id,
    )
