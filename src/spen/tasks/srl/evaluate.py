"""A trained system on a corpus: the official F1 by decoder, violations before rounding, energy and F1 by iteration."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import spen
from spen.tasks.srl.arcs import ArcCorpus, ArcSource, ArcTarget
from spen.tasks.srl.decoding import Decoder, decode_roles, violations
from spen.tasks.srl.metrics import RoleF1
from spen.tasks.srl.score import score
from spen.tasks.srl.sentences import Props

CELLS = {"cuda": 16_384, "cpu": 1024}
"""Padded arcs in a batch: a GPU wants many, and those of a CPU should stay in its cache."""


def _in_order(corpus: ArcCorpus) -> ArcSource:
    return ArcSource(corpus, cells=CELLS["cpu" if corpus.device.type == "cpu" else "cuda"], shuffle=False)


def soft_outputs(model: spen.SPEN, corpus: ArcCorpus, feedforward: bool) -> Iterator[tuple[ArcTarget, Tensor]]:
    """(target, y_T) of every batch on the CPU; with `feedforward`, Init's answer without descent."""
    model.eval()
    with torch.no_grad():
        for x, target in _in_order(corpus).batches():
            yield target.cpu(), (model.feedforward(x) if feedforward else model(x).output).cpu()


def label_sentences(
    model: spen.SPEN, corpus: ArcCorpus, decoders: Sequence[Decoder], *, feedforward: bool = False
) -> tuple[dict[Decoder, list[Props]], int]:
    """Propositions of every sentence by decoder, and how many constraints were violated before rounding."""
    labels: dict[Decoder, dict[int, NDArray[np.int64]]] = {decoder: {} for decoder in decoders}
    clashes, core = 0, corpus.space.core
    for target, y in soft_outputs(model, corpus, feedforward):
        clashes += int(violations(y, target, core))
        for decoder in decoders:
            found = decode_roles(y, target, core, decoder).numpy()
            labels[decoder].update(zip(target.sentence.tolist(), found, strict=True))
    nothing = np.zeros((0, 0), np.int64)  # of a sentence without arcs, which no batch has
    every = range(len(corpus.sentences))
    return {d: [corpus.decode(i, found.get(i, nothing)) for i in every] for d, found in labels.items()}, clashes


def evaluate(
    model: spen.SPEN,
    corpus: ArcCorpus,
    *,
    decoders: Sequence[Decoder] = ("argmax", "greedy", "ad3"),
    feedforward: bool = False,
) -> tuple[dict[str, Any], dict[Decoder, list[Props]]]:
    """Decode a corpus with every decoder and score it as CoNLL-2005 does: figures, and propositions by decoder."""
    props, clashes = label_sentences(model, corpus, decoders, feedforward=feedforward)
    scores = {d: score(corpus.sentences, found) for d, found in props.items()}
    figures = {
        "f1": {d: round(s.f1, 4) for d, s in scores.items()},
        "precision": {d: round(s.overall.precision, 4) for d, s in scores.items()},
        "recall": {d: round(s.overall.recall, 4) for d, s in scores.items()},
        "violations": clashes,
        "predicates": len(corpus.encoded.predicates),
    }
    return figures, props


def follow(model: spen.SPEN, corpus: ArcCorpus) -> dict[str, Any]:
    """Mean energy, F1 (pieces, AD³) and violations of y_0 … y_T, and the mean number of steps."""
    source = _in_order(corpus)
    steps = model.minimizer.rule.steps
    metrics = [RoleF1(corpus.space.core, missed=source.missed) for _ in range(steps + 1)]
    energy = torch.zeros(steps + 1, dtype=torch.float64)
    used = 0
    model.eval()
    with torch.no_grad():
        for x, target in source.batches():
            trajectory = model(x)
            energy += trajectory.energies.double().sum(1).cpu()
            used += int(trajectory.steps_used.sum())
            target = target.cpu()
            for metric, y in zip(metrics, [trajectory.start, *trajectory.outputs], strict=True):
                metric.update(y, target)
    return {
        "energy": (energy / max(source.sentences, 1)).tolist(),
        "f1": [float(metric.compute()) for metric in metrics],
        "violations": [int(metric.clashes) for metric in metrics],
        "steps_used": used / max(source.sentences, 1),
    }


def throughput(model: spen.SPEN, corpus: ArcCorpus, *, feedforward: bool = False, repeats: int = 2) -> float:
    """Sentences per second from encoded arcs to roles by AD³, the best of a few passes after one to warm up."""
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        for target, y in soft_outputs(model, corpus, feedforward):
            decode_roles(y, target, corpus.space.core, "ad3")
        seconds.append(time.perf_counter() - began)
    return len(corpus.usable) / min(seconds[1:])
