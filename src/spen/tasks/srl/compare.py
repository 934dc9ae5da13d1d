"""F1(A) − F1(B) on the same sentences, with a bootstrap interval and a p-value.

A resample draws as many sentences as there are, with replacement, and where systems have several seeds as many seeds; A
and B get the same draws. The interval holds the middle 95 % of the resampled differences. p is two-sided,
2 · min(P(d ≤ 0), P(d ≥ 0)), with one added to the counts of both probabilities, so that p is never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spen.tasks.srl.score import score
from spen.tasks.srl.sentences import Props, Sentence

Counts = NDArray[np.float64]  # (sentences, 2): correct arguments, and predicted + gold ones


@dataclass(frozen=True)
class Comparison:
    """F1(A) − F1(B) in points: the mean over seeds, each seed, the 95 % interval and p."""

    difference: float
    by_seed: tuple[float, ...]
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        seeds = f", by seed {', '.join(f'{d:+.2f}' for d in self.by_seed)}" if len(self.by_seed) > 1 else ""
        return f"{self.difference:+.2f} F1, 95 % interval {self.low:+.2f} to {self.high:+.2f}, p = {self.p:.4f}{seeds}"


def counts_of(gold: Iterable[Sentence | Props], predicted: Iterable[Sentence | Props]) -> Counts:
    """The terms of F1 = 2 · correct / (predicted + gold), sentence by sentence."""
    golds, predictions = list(gold), list(predicted)
    score(golds, predictions)  # raises if these are not the same sentences
    tallies = [score([g], [p]).overall for g, p in zip(golds, predictions, strict=True)]
    return np.array([(t.correct, 2 * t.correct + t.excess + t.missed) for t in tallies], float).reshape(-1, 2)


def draw(sentences: int, resamples: int, seed: int | list[int] = 0) -> NDArray[np.float64]:  # (resamples, sentences)
    """How often each sentence is drawn."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(sentences, np.full(sentences, 1 / sentences), size=resamples).astype(float)


def resampled_f1(runs: Sequence[Counts], drawn: NDArray[np.float64]) -> NDArray[np.float64]:  # (resamples, seeds)
    """F1 in percent of every run on every resample; 0 where a resample has no argument at all."""
    totals = np.stack([drawn @ counts for counts in runs], 1)
    return 200 * totals[..., 0] / np.maximum(totals[..., 1], 1)


def compare(a: Sequence[Counts], b: Sequence[Counts], *, resamples: int = 10_000, seed: int = 0) -> Comparison:
    """Runs of two systems with the same seeds on the same sentences."""
    return compare_all({"a": a, "b": b}, resamples=resamples, seed=seed)["a", "b"]


def compare_all(
    systems: Mapping[str, Sequence[Counts]], *, resamples: int = 10_000, seed: int = 0
) -> dict[tuple[str, str], Comparison]:
    """Every pair of systems, all on the same draws."""
    first = next(iter(systems.values()))
    for name, runs in systems.items():
        if len(runs) != len(first) or any(len(counts) != len(first[0]) for counts in runs):
            raise ValueError(f"{name} has another number of runs or sentences; runs are compared seed by seed")
    n, seeds = len(first[0]), len(first)
    if not n:
        raise ValueError("there is no sentence to compare the systems on")
    # In chunks: the draws of 10,000 resamples of a large corpus would take gigabytes.
    sizes = [min(500, resamples - start) for start in range(0, resamples, 500)]
    every = [counts for runs in systems.values() for counts in runs]
    flat = np.concatenate([resampled_f1(every, draw(n, size, [seed, k])) for k, size in enumerate(sizes)])
    f1 = {name: flat[:, k * seeds : (k + 1) * seeds] for k, name in enumerate(systems)}
    plain = {name: resampled_f1(runs, np.ones((1, n)))[0] for name, runs in systems.items()}
    chosen = np.random.default_rng([seed, len(sizes)]).integers(0, seeds, (resamples, seeds))
    names = list(systems)
    return {
        (a, b): _summary(plain[a] - plain[b], np.take_along_axis(f1[a] - f1[b], chosen, 1).mean(1))
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }


def _summary(by_seed: NDArray[np.float64], differences: NDArray[np.float64]) -> Comparison:
    low, high = np.quantile(differences, (0.025, 0.975))
    tail = min((differences <= 0).sum(), (differences >= 0).sum())
    p = min(1.0, 2 * (tail + 1) / (len(differences) + 1))
    return Comparison(float(by_seed.mean()), tuple(by_seed.tolist()), float(low), float(high), float(p))
