"""A seeded grammar of English-like sentences with trees, tags and roles, for machines that have no corpus.

It has passives, subject and object control, relative clauses, coordination, raising of quotations (which splits an
argument), modals, negation and adjuncts. Three of its rules cannot be decided arc by arc:

- *contrast*: `at the reception` is a time where the clause names a place, and a place where it names a time;
- *prominence*: of the two nouns around `puzzle`, the one higher in human > animal > thing feels (A0), on either side;
- *content*: the object of `load` is the goal where `with` brings the goods, and the goods where `onto` brings the goal.

Gold keeps the constraints: no overlap and no repeated core role in a proposition.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from spen.tasks.srl.grammar.nodes import Frame, Node, finish
from spen.tasks.srl.sentences import Sentence

GENRES = ("farm", "court", "harbour")
_HUMANS = {
    "farm": ("farmer", "shepherd", "baker", "neighbor"),
    "court": ("lawyer", "judge", "witness", "clerk"),
    "harbour": ("sailor", "captain", "diver", "merchant"),
}
_ANIMALS = ("dog", "horse", "goat", "parrot")
_THINGS = ("letter", "basket", "lantern", "report", "barrel")
_PLACES = ("market", "bridge", "garden", "cellar")
_TIMES = ("dawn", "noon", "midnight", "dusk")
_BOTH = ("reception", "session", "rehearsal", "auction")  # a place or a time, by contrast alone
_RANK = {noun: rank for rank, nouns in enumerate((_THINGS, _ANIMALS, sum(_HUMANS.values(), ()))) for noun in nouns}
# lemma → past, participle
_FORMS = {
    "chase": ("chased", "chased"), "find": ("found", "found"), "paint": ("painted", "painted"),
    "break": ("broke", "broken"), "sink": ("sank", "sunk"), "puzzle": ("puzzled", "puzzled"),
    "startle": ("startled", "startled"), "load": ("loaded", "loaded"), "stuff": ("stuffed", "stuffed"),
    "give": ("gave", "given"), "send": ("sent", "sent"), "promise": ("promised", "promised"),
    "persuade": ("persuaded", "persuaded"), "want": ("wanted", "wanted"), "sleep": ("slept", "slept"),
    "sing": ("sang", "sung"), "say": ("said", "said"), "claim": ("claimed", "claimed"),
}  # fmt: skip
_TRANSITIVE, _BOTH_WAYS = ("chase", "find", "paint"), ("break", "sink")
_PROMINENT, _CONTENT = ("puzzle", "startle"), ("load", "stuff")
_DATIVE, _INTRANSITIVE, _QUOTING = ("give", "send"), ("sleep", "sing"), ("say", "claim")


class _Writer:
    """The state of one sentence under construction."""

    def __init__(self, rng: random.Random, genre: str) -> None:
        self.rng, self.genre = rng, genre
        self.frames: list[Frame] = []

    # words and phrases

    def noun(self, *pools: tuple[str, ...]) -> Node:
        lemma = self.rng.choice(self.rng.choice(pools))
        node = Node(lemma, lemma, "NOUN", "NN")
        article = self.rng.choice(("the", "the", "a"))
        adjective = self.rng.choice(("old", "quiet", "tall", "famous")) if self.rng.random() < 0.3 else ""
        form = "an" if article == "a" and (adjective or lemma)[0] in "aeiou" else article
        node.attach(Node(form, article, "DET", "DT"), "det", left=True)
        if adjective:
            node.attach(Node(adjective, adjective, "ADJ", "JJ"), "amod", left=True)
        return node

    def human(self) -> Node:
        return self.noun(_HUMANS[self.genre])

    def being(self) -> Node:
        return self.noun(_HUMANS[self.genre], _HUMANS[self.genre], _ANIMALS)

    def with_case(self, node: Node, preposition: str) -> Node:
        case = Node(preposition, preposition, "ADP", "IN" if preposition != "to" else "TO")
        case.deprel = "case"
        node.left.insert(0, case)
        return node

    def verb(self, lemma: str, form: str) -> Node:
        past, participle = _FORMS[lemma]
        word = {"VBD": past, "VBN": participle, "VB": lemma}[form]
        return Node(word, lemma, "VERB", form)

    # clauses

    def subject(self, verb: Node, noun: Node, *, passive: bool = False) -> Node:
        noun.deprel = "nsubj:pass" if passive else "nsubj"
        verb.left.insert(0, noun)
        return noun

    def auxiliaries(self, verb: Node, frame: Frame) -> None:
        """A modal or `did not` in front of a finite active verb, which then stands in its base form."""
        choice = self.rng.random()
        if choice < 0.15:
            modal = self.rng.choice(("may", "will", "could"))
            frame.add("AM-MOD", verb.attach(Node(modal, modal, "AUX", "MD"), "aux", left=True))
        elif choice < 0.25:
            verb.attach(Node("did", "do", "AUX", "VBD"), "aux", left=True)
        else:
            return
        if choice >= 0.15 or self.rng.random() < 0.3:
            frame.add("AM-NEG", verb.attach(Node("not", "not", "PART", "RB"), "advmod", left=True))
        verb.word, verb.xpos = verb.lemma, "VB"

    def adjuncts(self, verb: Node, frame: Frame, *, front: bool) -> None:
        """At most a place, a time and a manner; a noun that may be either is what the other one is not.

        With `front` one of several may open the clause, far from the one it explains.
        """
        r = self.rng
        place, time = r.random() < 0.4, r.random() < 0.4
        contrast = (place != time) and r.random() < 0.85
        found: list[tuple[str, Node, str]] = []
        if place:
            found.append(("AM-LOC", self.with_case(self.noun(_PLACES), r.choice(("near", "at"))), "obl"))
        if time:
            moment = r.choice(_TIMES)
            found.append(("AM-TMP", self.with_case(Node(moment, moment, "NOUN", "NN"), "at"), "obl"))
        if contrast or (not place and not time and r.random() < 0.15):
            # Alone it is a place or a time by the genre: courts sit, farms and harbours gather.
            role = "AM-TMP" if (place or (not time and self.genre == "court")) else "AM-LOC"
            found.append((role, self.with_case(self.noun(_BOTH), "at"), "obl"))
        if r.random() < 0.15:
            manner = r.choice(("slowly", "gladly", "secretly"))
            found.append(("AM-MNR", Node(manner, manner, "ADV", "RB"), "advmod"))
        r.shuffle(found)
        if front and len(found) > 1 and r.random() < 0.7:
            role, node, relation = found.pop()
            verb.left.insert(0, Node(",", ",", "PUNCT", ",", "punct"))
            verb.left.insert(0, node)
            node.deprel = relation
            frame.add(role, node)
        for role, node, relation in found:
            frame.add(role, verb.attach(node, relation))

    def clause(self, subject: Node | None = None, *, form: str = "VBD", depth: int = 0) -> tuple[Node, Frame]:
        """A clause around one verb; an inherited subject (control, coordination) has its role but not its place."""
        kinds: list[Callable[[Node | None, str, int], tuple[Node, Frame]]] = [
            self.transitive, self.transitive, self.alternating, self.prominent, self.prominent, self.prominent,
            self.content, self.dative, self.intransitive,
        ]  # fmt: skip
        if depth < 2:
            kinds += [self.control, self.control]
        return self.rng.choice(kinds)(subject, form, depth)

    def start(self, lemma: str, form: str) -> tuple[Node, Frame]:
        verb = self.verb(lemma, form)
        frame = Frame(verb)
        self.frames.append(frame)
        return verb, frame

    def place_subject(self, verb: Node, subject: Node | None, fresh: Node) -> Node:
        return self.subject(verb, fresh) if subject is None else subject

    def complete(self, verb: Node, frame: Frame, subject: Node | None) -> tuple[Node, Frame]:
        if subject is None and verb.xpos == "VBD":
            self.auxiliaries(verb, frame)
        self.adjuncts(verb, frame, front=subject is None)
        return verb, frame

    def transitive(self, subject: Node | None, form: str, depth: int) -> tuple[Node, Frame]:
        verb, frame = self.start(self.rng.choice(_TRANSITIVE), form)
        if subject is None and form == "VBD" and self.rng.random() < 0.35:
            return self.passive(verb, frame)
        frame.add("A0", self.place_subject(verb, subject, self.being()))
        patient = verb.attach(self.noun(_ANIMALS, _THINGS, _HUMANS[self.genre]), "obj")
        frame.add("A1", patient)
        if depth < 1 and self.rng.random() < 0.35:
            self.relative(patient)
        return self.complete(verb, frame, subject)

    def passive(self, verb: Node, frame: Frame) -> tuple[Node, Frame]:
        verb.word, verb.xpos = _FORMS[verb.lemma][1], "VBN"
        frame.add("A1", self.subject(verb, self.noun(_ANIMALS, _THINGS, _HUMANS[self.genre]), passive=True))
        verb.attach(Node("was", "be", "AUX", "VBD"), "aux:pass", left=True)
        if self.rng.random() < 0.6:
            # `by` introduces the agent or the place, which only the noun decides.
            agent = self.rng.random() < 0.7
            by = self.with_case(self.being() if agent else self.noun(_PLACES), "by")
            frame.add("A0" if agent else "AM-LOC", verb.attach(by, "obl:agent" if agent else "obl"))
        if frame.roles[-1][0] != "AM-LOC":
            self.adjuncts(verb, frame, front=True)
        return verb, frame

    def alternating(self, subject: Node | None, form: str, depth: int) -> tuple[Node, Frame]:
        """`The sailor sank the barrel` (A0, A1) but `the barrel sank` (A1)."""
        verb, frame = self.start(self.rng.choice(_BOTH_WAYS), form)
        causative = self.rng.random() < 0.5
        first = self.place_subject(verb, subject, self.being() if causative else self.noun(_THINGS, _ANIMALS))
        frame.add("A0" if causative else "A1", first)
        if causative:
            frame.add("A1", verb.attach(self.noun(_THINGS), "obj"))
        return self.complete(verb, frame, subject)

    def prominent(self, subject: Node | None, form: str, depth: int) -> tuple[Node, Frame]:
        verb, frame = self.start(self.rng.choice(_PROMINENT), form)
        pools = (_THINGS, _ANIMALS, _HUMANS[self.genre])
        first = self.place_subject(verb, subject, self.noun(*pools))
        second = verb.attach(self.noun(*pools), "obj")
        inverse = _RANK[second.lemma] > _RANK[first.lemma]
        frame.add("A1" if inverse else "A0", first)
        frame.add("A0" if inverse else "A1", second)
        return self.complete(verb, frame, subject)

    def content(self, subject: Node | None, form: str, depth: int) -> tuple[Node, Frame]:
        verb, frame = self.start(self.rng.choice(_CONTENT), form)
        frame.add("A0", self.place_subject(verb, subject, self.human()))
        goal_first = self.rng.random() < 0.5
        frame.add("A2" if goal_first else "A1", verb.attach(self.noun(_THINGS), "obj"))
        other = self.with_case(self.noun(_THINGS), "with" if goal_first else "onto")
        frame.add("A1" if goal_first else "A2", verb.attach(other, "obl"))
        return self.complete(verb, frame, subject)

    def dative(self, subject: Node | None, form: str, depth: int) -> tuple[Node, Frame]:
        verb, frame = self.start(self.rng.choice(_DATIVE), form)
        frame.add("A0", self.place_subject(verb, subject, self.human()))
        thing, recipient = self.noun(_THINGS, _ANIMALS), self.being()
        if self.rng.random() < 0.5:
            frame.add("A2", verb.attach(recipient, "iobj"))
            frame.add("A1", verb.attach(thing, "obj"))
        else:
            frame.add("A1", verb.attach(thing, "obj"))
            frame.add("A2", verb.attach(self.with_case(recipient, "to"), "obl"))
        return self.complete(verb, frame, subject)

    def intransitive(self, subject: Node | None, form: str, depth: int) -> tuple[Node, Frame]:
        verb, frame = self.start(self.rng.choice(_INTRANSITIVE), form)
        frame.add("A0", self.place_subject(verb, subject, self.being()))
        return self.complete(verb, frame, subject)

    def control(self, subject: Node | None, form: str, depth: int) -> tuple[Node, Frame]:
        """`promise` hands its subject down, `persuade` its object, `want` either."""
        lemma = self.rng.choice(("promise", "persuade", "want", "want"))
        verb, frame = self.start(lemma, form)
        owner = self.place_subject(verb, subject, self.human())
        frame.add("A0", owner)
        controller = owner
        other: Node | None = None
        if lemma in ("promise", "persuade") or self.rng.random() < 0.5:
            other = verb.attach(self.human(), "obj")
            controller = owner if lemma == "promise" else other
        if subject is None and form == "VBD":
            self.auxiliaries(verb, frame)
        below, _ = self.clause(controller, form="VB", depth=depth + 1)
        verb.attach(below, "xcomp")
        below.left.insert(0, Node("to", "to", "PART", "TO", "mark"))
        if other is not None and lemma == "want":
            frame.add("A1", other)
            frame.add("C-A1", below)
        else:
            if other is not None:
                frame.add("A2" if lemma == "promise" else "A1", other)
            frame.add("A2" if lemma == "persuade" else "A1", below)
        return verb, frame

    def relative(self, noun: Node) -> None:
        """`the goat that chased the dog`, `the goat that the dog chased`: the noun and `that` share a role."""
        verb, frame = self.start(self.rng.choice(_TRANSITIVE), "VBD")
        that = Node("that", "that", "PRON", "WDT")
        of_subject = self.rng.random() < 0.5
        if of_subject:
            self.subject(verb, that)
            other = verb.attach(self.noun(_ANIMALS, _THINGS), "obj")
        else:
            other = self.subject(verb, self.being())
            that.deprel = "obj"
            verb.left.insert(0, that)
        noun.attach(verb, "acl:relcl")
        role, rest = ("A0", "A1") if of_subject else ("A1", "A0")
        frame.add(role, noun, verb)
        frame.add(f"R-{role}", that)
        frame.add(rest, other)

    def sentence(self, number: int) -> Sentence:
        root, _ = self.clause()
        subject = next(node for node in root.left if node.deprel.startswith("nsubj"))
        if self.rng.random() < 0.25:
            self.coordinate(root, subject)
        elif self.rng.random() < 0.15 and subject is root.left[0]:
            self.quotation(root, subject)
        elif self.rng.random() < 0.15:
            self.relative(subject)
        root.attach(Node(".", ".", "PUNCT", "."), "punct")
        return finish(root, self.frames, f"{self.genre}-{number:05d}")

    def coordinate(self, root: Node, subject: Node) -> None:
        """`… and slept`: the second verb shares the subject, unless that is a passive one and no agent."""
        shared = subject if subject.deprel == "nsubj" else None
        second, _ = self.clause(shared, depth=1)
        second.left.insert(0, Node("and", "and", "CCONJ", "CC", "cc"))
        root.attach(second, "conj")

    def quotation(self, root: Node, subject: Node) -> None:
        """`The barrel , the judge said , sank .`: the quotation's parts are A1 and C-A1 of what is said."""
        verb, frame = self.start(self.rng.choice(_QUOTING), "VBD")
        speaker = self.subject(verb, self.human())
        verb.left.insert(0, Node(",", ",", "PUNCT", ",", "punct"))
        verb.attach(Node(",", ",", "PUNCT", ","), "punct")
        root.left.insert(1, verb)
        verb.deprel = "parataxis"
        frame.add("A1", subject)
        frame.add("A0", speaker)
        frame.add("C-A1", root, subject, verb)


def make_sentence(seed: int, number: int, genre: str) -> Sentence:
    """One sentence, a function of its arguments alone."""
    if genre not in GENRES:
        raise ValueError(f"the grammar has no genre {genre!r}; choose from {', '.join(GENRES)}")
    return _Writer(random.Random(f"{seed}/{number}/{genre}"), genre).sentence(number)


def make_corpus(size: int, *, seed: int = 0, genres: tuple[str, ...] = GENRES) -> list[Sentence]:
    """`size` sentences, the genres in turn; equal seeds give equal corpora, other seeds other sentences."""
    if not genres:
        raise ValueError(f"a corpus needs a genre; choose from {', '.join(GENRES)}")
    return [make_sentence(seed, i, genres[i % len(genres)]) for i in range(size)]
