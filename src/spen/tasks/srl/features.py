"""Discrete features of an arc (predicate p, candidate argument a), after FitzGerald et al. (2015) and the appendix.

An arc is a row of integers. `features` are slots of one table (every template has its own rows of it, one of them for
values unseen in training): their embeddings are summed, which is the paper's linear map. `words` are slots of the word
vocabulary, kept apart because their embeddings start from pretrained vectors. Index 0 is padding in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from spen.tasks.srl.candidates import Candidate, CandidateRules, Tree
from spen.tasks.srl.sentences import EMPTY, ROOT, Sentence, find_roles, is_core

PADDING, UNKNOWN = "<pad>", "<unk>"
_BAG = 4

# One value each, in this order; the two bags at the end hold up to _BAG values under one template.
_SINGLE = (
    "p.word", "p.lemma", "p.tag", "p.relation", "p.voice", "p.frame", "p.parent", "p.before", "p.after", "p.marker",
    "a.lemma", "a.tag", "a.upos", "a.relation", "a.marker", "a.first", "a.last", "a.first.tag", "a.last.tag",
    "a.before", "a.after", "a.length", "a.left", "a.right",
    "path", "route", "route.length", "distance", "position", "verbs.between", "voice+position",
    "voice+position+relation", "lemma+path", "lemma+relation", "lemma+relation+marker", "lemma+a.lemma",
    "tag+route", "a.tag+route", "a.lemma+relation", "a.lemma+marker", "relation+marker", "frame+relation",
    "first+last+route", "lemma+voice+position",
)  # fmt: skip
_BAGS = ("p.dependent", "a.dependent")
TEMPLATES = _SINGLE + _BAGS
SIMPLE_TEMPLATES = tuple(name for name in TEMPLATES if "+" not in name)
SLOTS = len(_SINGLE) + _BAG * len(_BAGS)
WORD_SLOTS = ("predicate", "head", "first", "last", "before", "after", "marker", "left", "right", "parent")
PATH = _SINGLE.index("path")
"""The slot, and the template, of the path from the predicate to the argument."""
_SLOT_TEMPLATE = [*range(len(_SINGLE)), *(len(_SINGLE) + i for i in range(len(_BAGS)) for _ in range(_BAG))]
_NONE = ""


class ArcFeatures(NamedTuple):
    """One arc: a value (or none) per slot, and a token index (or −1) per word slot."""

    values: list[str]
    words: list[int]


class _Context:
    """The columns of a sentence and its tree, prepared for the features of its arcs."""

    def __init__(self, sentence: Sentence) -> None:
        self.sentence, self.tree = sentence, Tree.of(sentence)
        n = len(sentence)
        self.forms = [word.lower() for word in sentence.words]
        self.lemmas = [x.lower() for x in sentence.lemmas] if sentence.lemmas else self.forms
        self.tags = sentence.xpos or ("_",) * n
        self.upos = sentence.upos or self.tags
        self.deprels = sentence.deprels
        self.markers = [self._marker(i) for i in range(n)]
        verbs = [0]
        for tag in self.tags:
            verbs.append(verbs[-1] + tag.startswith("VB"))
        self.verbs_before = verbs
        self.ancestors: dict[int, list[int]] = {}

    def _marker(self, token: int) -> int:
        """The preposition, subordinator or infinitival `to` that introduces the token; −1 for none."""
        for child in self.tree.children[token]:
            if self.deprels[child] in ("case", "mark"):
                return child
        return -1

    def up(self, token: int) -> list[int]:
        """The token and its ancestors, root last."""
        if token not in self.ancestors:
            head = self.sentence.heads[token]
            self.ancestors[token] = [token] if head == ROOT else [token, *self.up(head)]
        return self.ancestors[token]

    def tag(self, i: int) -> str:
        return self.tags[i] if 0 <= i < len(self.tags) else "<edge>"

    def form(self, i: int) -> str:
        return self.forms[i] if 0 <= i < len(self.forms) else "<edge>"

    def predicate(self, p: int) -> tuple[list[str], list[str]]:
        """The values of the templates `p.…` and the bag of dependents, which all arcs of a predicate share."""
        children = self.tree.children[p]
        relations = [self.deprels[c] for c in children]
        passive = any(r in ("aux:pass", "nsubj:pass", "auxpass", "nsubjpass", "csubj:pass") for r in relations)
        bare = self.tags[p] == "VBN" and not any(r.startswith("aux") for r in relations)
        voice = "passive" if passive else "participle" if bare else "active"
        frame = ".".join(r for r in relations if r != "punct" and not r.startswith("aux"))
        head, marker = self.sentence.heads[p], self.markers[p]
        values = [
            self.forms[p], self.lemmas[p], self.tags[p], self.deprels[p], voice, frame,
            f"{self.lemmas[head]}/{self.tags[head]}" if head != ROOT else "<root>",
            f"{self.tag(p - 2)}.{self.tag(p - 1)}", f"{self.tag(p + 1)}.{self.tag(p + 2)}",
            self.lemmas[marker] if marker >= 0 else _NONE,
        ]  # fmt: skip
        # With the preposition of a dependent, since `obl:with` changes the role of the object.
        named = [c for c in children if self.deprels[c] != "punct"]
        bag = [
            f"{self.deprels[c]}:{self.lemmas[self.markers[c]] if self.markers[c] >= 0 else ''}" for c in named[:_BAG]
        ]
        return values, bag + [_NONE] * (_BAG - len(bag))

    def route(self, p: int, a: int) -> tuple[str, int]:
        """Relations from p up to the common ancestor and down to a, and their number."""
        ups, downs = self.up(p), self.up(a)
        i, j = len(ups), len(downs)
        while i and j and ups[i - 1] == downs[j - 1]:
            i, j = i - 1, j - 1
        rising = "".join("^" + self.deprels[t] for t in ups[:i])
        falling = "".join("v" + self.deprels[t] for t in reversed(downs[:j]))
        return rising + falling, i + j


def arc_features(sentence: Sentence, candidates: Sequence[Sequence[Candidate]]) -> Iterator[ArcFeatures]:
    """Features of every arc: propositions in order, and the candidates of each."""
    if not sentence.propositions:
        return
    context = _Context(sentence)
    for proposition, found in zip(sentence.propositions, candidates, strict=True):
        values, bag = context.predicate(proposition.predicate)
        for candidate in found:
            yield _arc(context, proposition.predicate, values, bag, candidate)


def _arc(c: _Context, p: int, shared: list[str], bag: list[str], a: Candidate) -> ArcFeatures:
    start, end, h, path = a
    _, p_lemma, p_tag, _, voice, frame, *_ = shared
    lemma, tag, relation = c.lemmas[h], c.tags[h], c.deprels[h]
    mark = c.markers[h]
    if not start <= mark < end:
        mark = -1
    marker = c.lemmas[mark] if mark >= 0 else _NONE
    before = "<" if end <= p else ">"
    inside = [k for k in c.tree.children[h] if start <= k < end and c.deprels[k] != "punct"]
    left = next((k for k in inside if k < h and k != mark), -1)
    right = next((k for k in reversed(inside) if k > h), -1)
    route, steps = c.route(p, h)
    gap = p - end if end <= p else start - p - 1
    low, high = (end, p) if end <= p else (p + 1, start)
    between = c.verbs_before[max(low, high)] - c.verbs_before[low]
    position = voice + before
    values = [
        *shared,
        lemma, tag, c.upos[h], relation, marker, c.forms[start], c.forms[end - 1], c.tags[start], c.tags[end - 1],
        f"{c.tag(start - 1)}:{c.form(start - 1)}", f"{c.tag(end)}:{c.form(end)}", _bucket(end - start),
        f"{c.deprels[left]}:{c.lemmas[left]}" if left >= 0 else _NONE,
        f"{c.deprels[right]}:{c.lemmas[right]}" if right >= 0 else _NONE,
        path, route, _bucket(steps), before + _bucket(gap), before, _bucket(between), position,
        position + relation, f"{p_lemma} {path}", f"{p_lemma} {relation}", f"{p_lemma} {relation} {marker}",
        f"{p_lemma} {lemma}", f"{p_tag} {route}", f"{tag} {route}", f"{lemma} {relation}", f"{lemma} {marker}",
        f"{relation} {marker}", f"{frame} {relation}", f"{c.tags[start]} {c.tags[end - 1]} {route}",
        f"{p_lemma} {position}",
    ]  # fmt: skip
    dependents = [f"{c.deprels[k]}:{c.tags[k]}" for k in inside[:_BAG]]
    values += [*bag, *dependents, *[_NONE] * (_BAG - len(dependents))]
    n, head = len(c.forms), c.sentence.heads[p]
    words = [
        p, h, start, end - 1, start - 1, end if end < n else -1, mark, left, right, head if head != ROOT else -1,
    ]  # fmt: skip
    return ArcFeatures(values, words)


def _bucket(size: int) -> str:
    return next((str(edge) for edge in (0, 1, 2, 3, 4, 6, 9, 14, 24) if size <= edge), "25")


@dataclass(frozen=True)
class FeatureSpace:
    """The integers of roles, words, tags, relations and features, fixed on the training sentences."""

    roles: tuple[str, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...]
    upos: tuple[str, ...]
    deprels: tuple[str, ...]
    features: tuple[tuple[str, ...], ...]  # values of each template, unknown first
    _indices: dict[str, dict[str, int]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def fit(
        cls,
        sentences: Iterable[Sentence],
        rules: CandidateRules,
        *,
        min_count: int = 3,
        extra_words: Iterable[str] = (),
        templates: Collection[str] = TEMPLATES,
    ) -> FeatureSpace:
        """Values seen `min_count` times or more keep a row of their own; the others share their template's unknown.

        `extra_words` (those of the pretrained vectors) enter the word vocabulary however often they occur. Slots of
        templates that are not in `templates` stay padding: SIMPLE_TEMPLATES is the appendix without conjunctions.
        """
        if unknown := set(templates) - set(TEMPLATES):
            raise ValueError(f"no template is called {', '.join(sorted(unknown))}; TEMPLATES lists them all")
        sentences = list(sentences)
        counts: list[Counter[str]] = [Counter() for _ in TEMPLATES]
        words, tags, upos, deprels = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        for sentence in sentences:
            words.update(word.lower() for word in sentence.words)
            tags.update(sentence.xpos)
            upos.update(sentence.upos)
            deprels.update(sentence.deprels)
            for arc in arc_features(sentence, rules(sentence)):
                for template, value in zip(_SLOT_TEMPLATE, arc.values, strict=True):
                    if value:
                        counts[template][value] += 1
        known = [word for word, _ in words.most_common()]
        vocabulary = dict.fromkeys([PADDING, UNKNOWN, *known, *(word.lower() for word in extra_words)])
        return cls(
            roles=find_roles(sentences),
            words=tuple(vocabulary),
            tags=(PADDING, UNKNOWN, *sorted(tags)),
            upos=(PADDING, UNKNOWN, *sorted(upos)),
            deprels=(PADDING, UNKNOWN, *sorted(deprels)),
            features=tuple(
                (UNKNOWN, *sorted(v for v, n in c.items() if n >= min_count)) if name in templates else ()
                for name, c in zip(TEMPLATES, counts, strict=True)
            ),
        )

    @property
    def size(self) -> int:
        """Rows of the feature table, padding included."""
        return 1 + sum(map(len, self.features))

    @property
    def core(self) -> tuple[int, ...]:
        """Indices of the roles that a predicate takes at most once."""
        return tuple(i for i, role in enumerate(self.roles) if is_core(role))

    def index(self, column: str) -> Mapping[str, int]:
        """Value → integer of roles, words, tags, upos or deprels."""
        if column not in self._indices:
            self._indices[column] = {value: i for i, value in enumerate(getattr(self, column))}
        return self._indices[column]

    def first_row(self, template: int) -> int:
        """The first row of a template in the feature table."""
        return 1 + sum(map(len, self.features[:template]))

    def feature_indices(self) -> list[tuple[dict[str, int], int]]:
        """For each slot: value → row of the table, and the row of its template's unknown."""
        tables = []
        for template, values in enumerate(self.features):
            first = self.first_row(template)
            tables.append(({value: first + i for i, value in enumerate(values)}, first if values else 0))
        return [tables[template] for template in _SLOT_TEMPLATE]

    def to_dict(self) -> dict[str, Any]:
        """Everything needed to encode again, as JSON can hold it."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.compare}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FeatureSpace:
        """The inverse of to_dict."""
        if len(data["features"]) != len(TEMPLATES) or data["roles"][0] != EMPTY:
            found = len(data["features"])
            raise ValueError(f"the feature space has {found} templates, not {len(TEMPLATES)}; fit it again")
        plain: dict[str, Any] = {name: tuple(values) for name, values in data.items()}
        return cls(**plain | {"features": tuple(tuple(values) for values in data["features"])})
