"""A small prepared corpus, shared by the tests of the systems; made once a process."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from spen.tasks.srl.arcs import ArcBatch, ArcTarget
from spen.tasks.srl.corpora import Prepared, builtin_splits, prepare
from spen.tasks.srl.local import Scored


@cache
def prepared(templates: str = "appendix", size: int = 90) -> Prepared:
    data = prepare(builtin_splits(size), name="small", templates=templates)
    data.dimensions = 32
    return data


def batch(size: int = 8) -> tuple[ArcBatch, ArcTarget]:
    corpus = prepared().corpora["train"]
    usable = np.flatnonzero(corpus.widest > 0)
    many = usable[np.argsort(-corpus.predicates[usable], kind="stable")]
    # Half with several predicates, half with one, so that there is padding of every kind.
    return corpus.batch(np.concatenate([many[: size // 2], many[-(size - size // 2) :]]))


def scored(size: int = 4, *, roles: int | None = None, words: int = 5, arc: int = 6) -> tuple[Tensor, Scored]:
    """A point y of the simplices and random features, in double precision, around a real batch's masks."""
    x, _ = batch(size)
    generator = torch.Generator().manual_seed(1)
    a = len(prepared().roles) if roles is None else roles

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    b, n, k = x.mask.shape
    pairs = torch.rand(b, n, k, k, generator=generator) < 0.3
    both = x.mask[..., :, None] & x.mask[..., None, :]
    conflicts = (pairs | pairs.transpose(2, 3)) & both & ~torch.eye(k, dtype=torch.bool)
    features = Scored(
        scores=draw(b, n, k, a) * x.mask[..., None],
        arc=draw(b, n, k, arc) * x.mask[..., None],
        predicate=draw(b, n, words) * x.predicate_mask[..., None],
        argument=draw(b, n, k, words) * x.mask[..., None],
        mask=x.mask,
        predicate_mask=x.predicate_mask,
        conflicts=conflicts,
    )
    y = torch.softmax(2 * draw(b, n, k, a), -1)
    empty = torch.zeros(a, dtype=torch.float64)
    empty[0] = 1
    return torch.where(x.mask[..., None], y, empty), features
