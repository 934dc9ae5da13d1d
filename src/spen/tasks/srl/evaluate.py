"""A trained system on a split: the official F1 by decoder, violations before rounding, energy and F1 by iteration."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import spen
from spen.tasks.srl.arcs import ArcCorpus, ArcSource, ArcTarget
from spen.tasks.srl.corpora import Prepared
from spen.tasks.srl.decoding import Decoder, decode_roles, violations
from spen.tasks.srl.encoding import decode
from spen.tasks.srl.metrics import RoleF1
from spen.tasks.srl.score import score
from spen.tasks.srl.sentences import Props, Sentence

__all__ = ["Evaluation", "evaluate", "follow", "label_sentences", "soft_outputs", "throughput"]


@dataclass(frozen=True)
class Evaluation:
    """Figures of one system on one split, and the propositions that were scored."""

    f1: dict[str, float]  # official F1 by decoder
    precision: dict[str, float]
    recall: dict[str, float]
    violations: int  # overlaps and repeats of the plain argmax
    predicates: int
    props: dict[Decoder, list[Props]] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "props"}


def soft_outputs(
    model: spen.SPEN, corpus: ArcCorpus, *, feedforward: bool = False, cells: int = 16_384
) -> Iterator[tuple[ArcTarget, Tensor]]:
    """(target, y_T) of every batch on the CPU; with `feedforward`, Init's answer without descent."""
    model.eval()
    with torch.no_grad():
        for x, target in ArcSource(corpus, cells=cells, shuffle=False).batches():
            yield target.cpu(), (model.feedforward(x) if feedforward else model(x).output).cpu()


def label_sentences(
    model: spen.SPEN,
    corpus: ArcCorpus,
    sentences: Sequence[Sentence],
    data: Prepared,
    decoders: Sequence[Decoder],
    *,
    feedforward: bool = False,
    cells: int = 16_384,
) -> tuple[dict[Decoder, list[Props]], int]:
    """Propositions of every sentence by decoder, and how many constraints were violated before rounding."""
    labels: dict[Decoder, dict[int, NDArray[np.int64]]] = {decoder: {} for decoder in decoders}
    clashes = 0
    for target, y in soft_outputs(model, corpus, feedforward=feedforward, cells=cells):
        clashes += int(violations(y, target, data.core))
        for decoder in decoders:
            found = decode_roles(y, target, data.core, decoder).numpy()
            labels[decoder].update(zip(target.sentence.tolist(), found, strict=True))
    return {d: _props(corpus, sentences, by_sentence, data.roles) for d, by_sentence in labels.items()}, clashes


def evaluate(
    model: spen.SPEN,
    data: Prepared,
    split: str,
    *,
    decoders: Sequence[Decoder] = ("greedy", "ad3"),
    feedforward: bool = False,
    cells: int = 16_384,
) -> Evaluation:
    """Decode a split with every decoder and score it as CoNLL-2005 does."""
    corpus, sentences = data.corpora[split], data.sentences(split)
    props, clashes = label_sentences(model, corpus, sentences, data, decoders, feedforward=feedforward, cells=cells)
    scores = {d: score(sentences, found) for d, found in props.items()}
    return Evaluation(
        f1={d: round(s.f1, 4) for d, s in scores.items()},
        precision={d: round(s.overall.precision, 4) for d, s in scores.items()},
        recall={d: round(s.overall.recall, 4) for d, s in scores.items()},
        violations=clashes,
        predicates=len(corpus.encoded.predicates),
        props=props,
    )


def follow(model: spen.SPEN, data: Prepared, split: str, *, cells: int = 16_384) -> dict[str, list[float]]:
    """Mean energy, F1 (pieces, AD³) and violations of y_0 … y_T: does the descent lower the one and raise the other?"""
    source = ArcSource(data.corpora[split], cells=cells, shuffle=False)
    steps = model.minimizer.rule.steps
    metrics = [RoleF1(data.core, missed=source.missed) for _ in range(steps + 1)]
    energy = torch.zeros(steps + 1, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for x, target in source.batches():
            trajectory = model(x)
            energy += trajectory.energies.double().sum(1).cpu()
            target = target.cpu()
            for metric, y in zip(metrics, [trajectory.start, *trajectory.outputs], strict=True):
                metric.update(y, target)
    return {
        "energy": (energy / max(source.sentences, 1)).tolist(),
        "f1": [float(metric.compute()) for metric in metrics],
        "violations": [int(metric.clashes) for metric in metrics],
    }


def throughput(model: spen.SPEN, data: Prepared, split: str, *, feedforward: bool = False, repeats: int = 3) -> float:
    """Sentences a second from encoded arcs to roles by AD³, the best of a few passes; the first pass warms up."""
    corpus = data.corpora[split]
    best = float("inf")
    for attempt in range(repeats + 1):
        began = time.perf_counter()
        for target, y in soft_outputs(model, corpus, feedforward=feedforward):
            decode_roles(y, target, data.core, "ad3")
        if attempt:
            best = min(best, time.perf_counter() - began)
    return int((corpus.widest > 0).sum()) / best


def _props(
    corpus: ArcCorpus, sentences: Sequence[Sentence], labels: dict[int, NDArray[np.int64]], roles: Sequence[str]
) -> list[Props]:
    """Role indices → propositions; a sentence that no batch had keeps its predicates and gets no argument."""
    props = []
    for i, sentence in enumerate(sentences):
        width = max(1, int(corpus.widest[i]))
        found = labels.get(i, np.zeros((int(corpus.predicates[i]), width), np.int64))
        senses = [p.sense for p in sentence.propositions]
        props.append(decode(corpus.encoded, i, found, roles, senses))
    return props
