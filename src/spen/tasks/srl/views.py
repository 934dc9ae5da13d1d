"""Contents of the role labelling tab: arcs with probabilities, broken constraints in red, the rounded answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from importlib import resources
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from spen.tasks.charts import draw_lines
from spen.tasks.srl.arcs import ArcBatch, ArcCorpus, ArcTarget
from spen.tasks.srl.decoding import Decoder, decode_roles, violations
from spen.tasks.srl.drawing import PLAIN, WRONG, Arc, draw_arcs, draw_proposition
from spen.tasks.srl.formats.conllu import conllu_text, parse_conllu
from spen.tasks.srl.grammar.corpus import GENRES, make_sentence
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.sentences import Proposition, Props, Sentence
from spen.viewer.iterates import SMALL, note, with_slider

MAX_CHARACTERS, MAX_TOKENS = 40_000, 150
FAINT = 0.05
"""Arcs whose probability to be an argument is below this are left out."""

# Not a seed of training. In most of these the local answer breaks a constraint, which the descent corrects.
_SEED, _NUMBERS = 77, (469, 105, 537, 454, 385, 354, 28, 515)

_DECODED = {"argmax": "argmax", "greedy": "the greedy heuristic", "ad3": "AD³", "ilp": "an integer programme"}


@dataclass(frozen=True)
class Followed:
    """The descent on one sentence: y_0 … y_T by arc, with the data to decode and draw them."""

    sentence: Sentence
    corpus: ArcCorpus
    target: ArcTarget
    outputs: list[Tensor]  # (1, n, K, A) each
    energies: list[float]  # T + 1, or none
    roles: tuple[str, ...]
    core: tuple[int, ...]


@lru_cache(maxsize=1)
def examples() -> dict[str, Sentence]:
    """Sentences to begin with, by their text: of the built-in grammar, with gold, then two of plain English."""
    drawn = [make_sentence(_SEED, number, GENRES[number % len(GENRES)]) for number in _NUMBERS]
    path = resources.files("spen.tasks.srl") / "sentences.conllu"
    written = parse_conllu(path.read_text(encoding="utf-8"), path.name)
    return {_title(sentence): sentence for sentence in (*drawn, *written)}


def _title(sentence: Sentence) -> str:
    return " ".join(sentence.words).replace(" ,", ",").removesuffix(" .") + "."


def read(conllu: str) -> Sentence:
    """The one sentence of the text; an unchanged example has its gold roles."""
    if len(conllu) > MAX_CHARACTERS:
        raise ValueError(f"the text has {len(conllu):,} characters, and one sentence has at most {MAX_CHARACTERS:,}")
    sentences = parse_conllu(conllu, "pasted text")
    if len(sentences) != 1:
        raise ValueError(f"paste one sentence in CoNLL-U; there are {len(sentences)} in the text")
    (sentence,) = sentences
    if len(sentence) > MAX_TOKENS:
        raise ValueError(f"the sentence has {len(sentence)} words, and the page draws at most {MAX_TOKENS}")
    if not sentence.propositions:
        raise ValueError("the sentence has no verb (a tag VB…, or VERB), so there is nothing to label")
    for known in examples().values():
        if conllu.strip() == conllu_text(known).strip():
            return known
    return sentence


def follow(labeller: Labeller, sentence: Sentence) -> Followed:
    """All iterates of the descent on one sentence; a system without a descent has y_0 alone."""
    corpus, x, target = batch(labeller, sentence)
    energies: list[float] = []
    with torch.no_grad():
        if labeller.feedforward:
            outputs = [labeller.model.feedforward(x)]
        else:
            trajectory = labeller.model(x)
            outputs = [trajectory.start, *trajectory.outputs]
            energies = trajectory.energies[:, 0].tolist()
    return Followed(sentence, corpus, target, outputs, energies, corpus.space.roles, corpus.space.core)


def batch(labeller: Labeller, sentence: Sentence) -> tuple[ArcCorpus, ArcBatch, ArcTarget]:
    """The sentence encoded for the model, and its batch."""
    corpus = labeller.corpus([sentence])
    return corpus, *corpus.batch(np.array([0]))


def broken(labels: Sequence[int], spans: Sequence[tuple[int, int]], core: Sequence[int]) -> dict[int, str]:
    """Which of a predicate's candidates break a constraint, and how: overlapping arguments, a core role twice."""
    found: dict[int, str] = {}
    for i, j in combinations([k for k, label in enumerate(labels) if label > 0], 2):
        if spans[i][0] < spans[j][1] and spans[j][0] < spans[i][1]:
            found |= {k: "overlap" for k in (i, j) if k not in found}
        if labels[i] == labels[j] and labels[i] in core:
            found |= dict.fromkeys((i, j), "repeat")
    return found


def decoded(followed: Followed, t: int, decoder: Decoder) -> Props:
    """The propositions that rounding y_t gives."""
    labels = decode_roles(followed.outputs[t], followed.target, followed.core, decoder)[0].cpu().numpy()
    return followed.corpus.decode(0, labels)


def arcs(followed: Followed, t: int, predicate: int) -> list[Arc]:
    """The arcs of one predicate (by its number) at iterate t, broken constraints in red."""
    mask = followed.target.mask[0, predicate]
    spans = [(int(a), int(b)) for a, b in followed.target.spans[0, predicate][mask].tolist()]
    y = followed.outputs[t][0, predicate][mask]  # (candidates, A)
    clashes = broken(y.argmax(-1).tolist() if len(y) else [], spans, followed.core)
    drawn = []
    for k, (start, end) in enumerate(spans):
        argument = 1 - float(y[k, 0])
        if argument < FAINT and k not in clashes:
            continue
        best = int(y[k, 1:].argmax()) + 1
        likely = y[k].topk(min(4, y.shape[-1]))
        lines = [f"breaks a constraint: {clashes[k]}"] if k in clashes else []
        lines.append(" ".join(followed.sentence.words[start:end]))
        lines += [f"{p:.3f} {followed.roles[r]}" for p, r in zip(*(x.tolist() for x in likely), strict=True)]
        label = f"{followed.roles[best]} {_share(float(y[k, best]))}"
        drawn.append(Arc(start, end, label, WRONG if k in clashes else PLAIN, min(1.0, argument), "\n".join(lines)))
    return drawn


def show(followed: Followed, decoder: Decoder) -> str:
    """A panel for each predicate with its arcs and their rounding, then the curves."""
    last = len(followed.outputs) - 1
    annotated = {a.role for p in followed.sentence.propositions for a in p.arguments}
    gold = bool(annotated) and annotated <= set(followed.roles)  # a system may know roles by other names
    rounded = [decoded(followed, t, decoder).propositions for t in range(last + 1)]
    counts = [int(violations(y, followed.target, followed.core)) for y in followed.outputs]
    panels = [
        _panel(followed, number, proposition, [props[number] for props in rounded], decoder, gold)
        for number, proposition in enumerate(followed.sentence.propositions)
    ]
    key = "grey: an arc, as strong as it is likely; red: two arcs that may not stand together; "
    key += "rounded: green as annotated, red not" if gold else "rounded: the arguments that keep the constraints"
    return with_slider(
        [_status(counts), *panels, note(key), f'<div class="charts">{_charts(followed, counts)}</div>'], last
    )


def _status(counts: Sequence[int]) -> str:
    return "".join(
        f'<p class="status{" bad" if n else ""}" data-t="{t}">'
        f"{n or 'no'} {'constraint is' if n == 1 else 'constraints are'} violated before rounding</p>"
        for t, n in enumerate(counts)
    )


def _panel(
    followed: Followed,
    number: int,
    proposition: Proposition,
    rounded: Sequence[Proposition],
    decoder: Decoder,
    gold: bool,
) -> str:
    sentence, last = followed.sentence, len(followed.outputs) - 1
    soft = draw_arcs(sentence, proposition.predicate, [arcs(followed, t, number) for t in range(last + 1)])
    hard = "".join(
        f'<div data-t="{t}">{draw_proposition(sentence, found, proposition if gold else None)}</div>'
        for t, found in enumerate(rounded)
    )
    if not last:  # one frame is drawn without a group of its own
        hard = hard.replace('<div data-t="0">', "<div>")
    verb = escape(sentence.words[proposition.predicate])
    return (
        f'<section class="predicate"><div class="wide"><h4>{verb}</h4>{soft}</div>'
        f'<div class="wide"><h5>rounded by {_DECODED[decoder]}</h5>{hard}</div></section>'
    )


def _charts(followed: Followed, counts: Sequence[int]) -> str:
    if not followed.energies:
        return ""
    sure = [float(y[0][followed.target.mask[0]].amax(-1).mean()) for y in followed.outputs]
    return "".join(
        [
            draw_lines("energy", {"energy": followed.energies}, cursor=True, size=SMALL),
            draw_lines("constraints violated", {"violated": [float(c) for c in counts]}, cursor=True, size=SMALL),
            draw_lines("probability of the likeliest role", {"probability": sure}, cursor=True, size=SMALL),
        ]
    )


def _share(probability: float) -> str:
    return f"{probability:.2f}".removeprefix("0")
