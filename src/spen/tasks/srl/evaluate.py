"""A trained system on a split: the official F1 by decoder, violations before rounding, energy and F1 by iteration."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import spen
from spen.tasks.srl.arcs import ArcBatch, ArcCorpus, ArcSource, ArcTarget, scatter_labels
from spen.tasks.srl.corpora import Prepared
from spen.tasks.srl.decoding import Decoder, decode_roles, violations
from spen.tasks.srl.encoding import decode
from spen.tasks.srl.metrics import RoleF1
from spen.tasks.srl.score import score
from spen.tasks.srl.sentences import Props, Sentence

__all__ = ["Descent", "Evaluation", "evaluate", "follow", "label_sentences", "soft_outputs", "throughput"]


@dataclass(frozen=True)
class Evaluation:
    """Figures of one system on one split."""

    f1: dict[str, float]  # official F1 by decoder
    precision: dict[str, float]
    recall: dict[str, float]
    violations: int  # overlaps and repeats of the plain argmax
    predicates: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Descent:
    """Means over a split for t = 0 … T."""

    energy: list[float]
    f1: list[float]  # pieces, AD³
    violations: list[int]


def soft_outputs(
    model: spen.SPEN, source: ArcSource, *, feedforward: bool = False
) -> Iterator[tuple[ArcBatch, ArcTarget, Tensor]]:
    """(x, target, y_T) of every batch; with `feedforward`, Init's answer without descent."""
    model.eval()
    with torch.no_grad():
        for x, target in source.batches():
            yield x, target, model.feedforward(x) if feedforward else model(x).output


def evaluate(
    model: spen.SPEN,
    data: Prepared,
    split: str,
    *,
    decoders: Sequence[Decoder] = ("greedy", "ad3"),
    feedforward: bool = False,
    cells: int = 16_384,
    found: dict[Decoder, list[Props]] | None = None,
) -> Evaluation:
    """Decode a split with every decoder and score it as CoNLL-2005 does. `found` collects the propositions."""
    corpus = data.corpora[split]
    source = ArcSource(corpus, cells=cells, shuffle=False)
    labels: dict[Decoder, dict[int, NDArray[np.int64]]] = {decoder: {} for decoder in decoders}
    clashes = 0
    for _, target, y in soft_outputs(model, source, feedforward=feedforward):
        target, y = target.cpu(), y.cpu()
        clashes += int(violations(y, target, data.core))
        for decoder in decoders:
            labels[decoder].update(_by_sentence(decode_roles(y, target, data.core, decoder), target))
    sentences = data.sentences(split)
    answers = {d: _props(corpus, sentences, by_sentence, data.roles) for d, by_sentence in labels.items()}
    if found is not None:
        found.update(answers)
    scores = {d: score(sentences, props) for d, props in answers.items()}
    return Evaluation(
        f1={d: round(s.f1, 4) for d, s in scores.items()},
        precision={d: round(s.overall.precision, 4) for d, s in scores.items()},
        recall={d: round(s.overall.recall, 4) for d, s in scores.items()},
        violations=clashes,
        predicates=len(corpus.encoded.predicates),
    )


def label_sentences(
    model: spen.SPEN,
    corpus: ArcCorpus,
    sentences: Sequence[Sentence],
    roles: Sequence[str],
    core: tuple[int, ...],
    *,
    decoder: Decoder = "ad3",
    feedforward: bool = False,
    cells: int = 16_384,
) -> list[Props]:
    """Propositions of every sentence of a corpus, in its order."""
    found: dict[int, NDArray[np.int64]] = {}
    for _, target, y in soft_outputs(model, ArcSource(corpus, cells=cells, shuffle=False), feedforward=feedforward):
        target, y = target.cpu(), y.cpu()
        found.update(_by_sentence(decode_roles(y, target, core, decoder), target))
    return _props(corpus, sentences, found, roles)


def follow(model: spen.SPEN, data: Prepared, split: str, *, cells: int = 16_384) -> Descent:
    """Energy, F1 and violations of y_0 … y_T: does the descent lower the one and raise the other?"""
    source = ArcSource(data.corpora[split], cells=cells, shuffle=False)
    steps = model.minimizer.rule.steps
    metrics = [RoleF1(data.core, missed=source.missed) for _ in range(steps + 1)]
    energy, sentences = torch.zeros(steps + 1, dtype=torch.float64), 0
    model.eval()
    with torch.no_grad():
        for x, target in source.batches():
            trajectory = model(x)
            energy += trajectory.energies.double().sum(1).cpu()
            sentences, target = sentences + len(target.sentence), target.cpu()
            for metric, y in zip(metrics, [trajectory.start, *trajectory.outputs], strict=True):
                metric.update(y, target)
    return Descent(
        energy=(energy / max(sentences, 1)).tolist(),
        f1=[float(metric.compute()) for metric in metrics],
        violations=[int(metric.clashes) for metric in metrics],
    )


def throughput(
    model: spen.SPEN,
    data: Prepared,
    split: str,
    *,
    decoder: Decoder = "ad3",
    feedforward: bool = False,
    cells: int = 16_384,
    repeats: int = 3,
) -> float:
    """Sentences a second from encoded arcs to roles, the best of a few passes; the first pass warms up."""
    source = ArcSource(data.corpora[split], cells=cells, shuffle=False)
    best = float("inf")
    for attempt in range(repeats + 1):
        began = time.perf_counter()
        for _, target, y in soft_outputs(model, source, feedforward=feedforward):
            decode_roles(y.cpu(), target.cpu(), data.core, decoder)
        if attempt:
            best = min(best, time.perf_counter() - began)
    return source.sentences / best


def _by_sentence(labels: Tensor, target: ArcTarget) -> dict[int, NDArray[np.int64]]:
    return dict(zip(target.sentence.tolist(), labels.cpu().numpy(), strict=True))


def _props(
    corpus: ArcCorpus, sentences: Sequence[Sentence], labels: dict[int, NDArray[np.int64]], roles: Sequence[str]
) -> list[Props]:
    """Role indices → propositions; a sentence that no batch had keeps its predicates and gets no argument."""
    props = []
    for i, sentence in enumerate(sentences):
        width = max(1, int(corpus.widest[i]))
        found = labels.get(i, np.zeros((int(corpus.predicates[i]), width), np.int64))
        senses = [p.sense for p in sentence.propositions]
        props.append(decode(corpus.encoded, i, scatter_labels(corpus, i, found), roles, senses))
    return props
