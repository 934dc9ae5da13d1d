"""Cross-fitted scores: each training arc is scored by a Local that was trained without its sentence.

A trained F(x) has nearly memorised its training sentences. Its scores there are better than on new sentences, so that
the global energy finds nothing to repair in them. The clamped stage can train on cross-fitted scores instead.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import spen
from spen.protocols import Objective
from spen.storage import load_weights, save_weights
from spen.tasks.srl.arcs import ArcBatch, ArcCorpus, ArcSource, ArcTarget
from spen.tasks.srl.local import Scored
from spen.training.processes import is_main_process

__all__ = ["CrossFitted", "cross_fitted_scores"]

CELLS = 16_384
TrainFold = Callable[[ArcSource, Path, float | None], nn.Module | None]
"""(training sentences, run folder, seconds) -> the trained F, or None if the time ran out."""


class CrossFitted(Objective):
    """An objective for a stage in which F is fixed, with a table's scores in place of those of F(x)."""

    def __init__(self, objective: Objective, corpus: ArcCorpus, scores: Tensor) -> None:  # (arcs, roles)
        self.objective, self._corpus, self.scores = objective, corpus, scores

    def __call__(self, model: spen.SPEN, x: ArcBatch, target: ArcTarget) -> Tensor:
        scores = self._corpus.padded(self.scores, target.sentence, x.mask)
        features = _Scores(model.features, scores)
        fitted = spen.SPEN(features=features, init=model.init, energy=model.energy, minimizer=model.minimizer)
        return self.objective(fitted, x, target)


class _Scores(nn.Module):
    def __init__(self, features: nn.Module, scores: Tensor) -> None:
        super().__init__()
        self.features, self.scores = features, scores

    def forward(self, x: ArcBatch) -> Scored:
        scored: Scored = self.features(x)
        return scored._replace(scores=self.scores.to(scored.scores.dtype))


def cross_fitted_scores(
    corpus: ArcCorpus, roles: int, folder: Path, train: TrainFold, *, folds: int, seed: int, seconds: float | None
) -> Tensor | None:  # (arcs, roles)
    """The scores of every arc, or None if the time ran out; stored in ``folder``, where the folds are trained too.

    ``train`` is called for each fold with a source of all other sentences.
    """
    path, began = folder / "scores.safetensors", time.monotonic()
    if path.is_file():
        return load_weights(path)["scores"].to(corpus.device)
    scores = torch.zeros(len(corpus.encoded.arcs), roles, device=corpus.device)
    for k, held_out in enumerate(split(corpus, folds, seed)):
        left = None if seconds is None else seconds - (time.monotonic() - began)
        if left is not None and left <= 0:
            return None
        others = ArcSource(corpus, cells=1024, seed=seed, only=np.setdiff1d(corpus.usable, held_out))
        features = train(others, folder / f"fold-{k}", left)
        if features is None:
            return None
        _score(features.to(corpus.device).eval(), corpus, held_out, scores)
    if is_main_process():
        save_weights({"scores": scores}, path)
        for k in range(folds):
            shutil.rmtree(folder / f"fold-{k}", ignore_errors=True)
    return scores


def split(corpus: ArcCorpus, folds: int, seed: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The usable sentences in random parts."""
    if not 2 <= folds <= len(corpus.usable):
        raise ValueError(f"cross_fit is a number of folds from 2 to {len(corpus.usable)} sentences, not {folds}")
    order = np.random.default_rng([seed, folds]).permutation(corpus.usable)
    return [np.sort(part) for part in np.array_split(order, folds)]


@torch.no_grad()
def _score(features: nn.Module, corpus: ArcCorpus, sentences: np.ndarray[Any, Any], scores: Tensor) -> None:
    places = torch.arange(len(scores), device=scores.device)
    for x, target in ArcSource(corpus, cells=CELLS, shuffle=False, only=sentences).batches():
        arc = corpus.padded(places, target.sentence, x.mask)
        scores[arc[x.mask]] = features(x).scores[x.mask]
