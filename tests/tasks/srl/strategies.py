"""Random sentences: any words without blanks, any tree, any propositions that do not overlap themselves."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from spen.tasks.srl.sentences import Argument, Proposition, Props, Sentence

ROLES = ("A0", "A1", "A2", "AM-TMP", "AM-LOC", "R-A0", "C-A0", "C-A1", "C-V", "V")
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=6)
# A roleset of `-` would mean "no predicate here".
SENSES = TEXT.filter(lambda text: text != "-")


@st.composite
def pieces(draw: st.DrawFn, length: int) -> tuple[Argument, ...]:
    cuts = sorted(draw(st.sets(st.integers(0, length), max_size=8)))
    spans = [span for span in itertools.pairwise(cuts) if draw(st.booleans())]
    return tuple(Argument(start, end, draw(st.sampled_from(ROLES))) for start, end in spans)


@st.composite
def propositions(draw: st.DrawFn, length: int, most: int = 3) -> tuple[Proposition, ...]:
    places = sorted(draw(st.sets(st.integers(0, length - 1), max_size=most)))
    return tuple(Proposition(i, draw(SENSES), draw(pieces(length))) for i in places)


@st.composite
def props(draw: st.DrawFn) -> Props:
    length = draw(st.integers(1, 9))
    return Props(length, draw(propositions(length)))


@st.composite
def heads(draw: st.DrawFn, length: int) -> tuple[int, ...]:
    """A random tree: each token but the root hangs on one that came before it in a random order."""
    order = draw(st.permutations(range(length)))
    found = [-1] * length
    for k in range(1, length):
        found[order[k]] = order[draw(st.integers(0, k - 1))]
    return tuple(found)


@st.composite
def sentences(draw: st.DrawFn, with_props: bool = True) -> Sentence:
    n = draw(st.integers(1, 9))
    column = st.lists(TEXT, min_size=n, max_size=n).map(tuple)
    tags = st.lists(st.sampled_from(("VB", "NN", "IN", ",")), min_size=n, max_size=n).map(tuple)
    upos = st.lists(st.sampled_from(("VERB", "NOUN", "ADP", "PUNCT")), min_size=n, max_size=n).map(tuple)
    relations = st.lists(st.sampled_from(("nsubj", "obj", "conj", "punct", "case")), min_size=n, max_size=n).map(tuple)
    return Sentence(
        words=draw(column),
        lemmas=draw(column),
        upos=draw(upos),
        xpos=draw(tags),
        heads=draw(heads(n)),
        deprels=draw(relations),
        parse=("*",) * n,
        propositions=draw(propositions(n)) if with_props else (),
        sent_id="genre-" + draw(st.text("abc019_", min_size=1, max_size=4)),
    )
