"""Role labellers for export: the tensors of a batch are the inputs, the probabilities of the roles the output.

``spen.tasks.srl.encoding`` makes these tensors from parsed sentences; random ones of the same kinds are traced.
"""

from __future__ import annotations

import json

import torch

import spen
from spen.export import BATCH, Exportable, Size
from spen.tasks.srl.arcs import ArcBatch
from spen.tasks.srl.features import SLOTS, WORD_SLOTS, FeatureSpace
from spen.tasks.srl.recipes import SrlRecipe

__all__ = ["exportable", "random_batch"]

TOKENS, PREDICATES, CANDIDATES = Size("tokens"), Size("predicates"), Size("candidates")
_TOKEN, _PREDICATE, _ARC = (BATCH, TOKENS), (BATCH, PREDICATES), (BATCH, PREDICATES, CANDIDATES)
SHAPES = {
    "words": _TOKEN,
    "tags": _TOKEN,
    "deprels": _TOKEN,
    "heads": _TOKEN,
    "token_mask": _TOKEN,
    "predicates": _PREDICATE,
    "predicate_mask": _PREDICATE,
    "features": _ARC,
    "arc_words": _ARC,
    "spans": _ARC,
    "argument_heads": _ARC,
    "mask": _ARC,
    "conflicts": (*_ARC, CANDIDATES),
}
_SIZES = ((2, 9, 3, 5), (3, 14, 2, 7), (1, 6, 4, 3))  # batch, tokens, predicates, candidates


def exportable(name: str, recipe: SrlRecipe, model: spen.SPEN, space: FeatureSpace, *, descend: bool) -> Exportable:
    """A trained system for export; without `descend`, Init's answer alone."""
    if recipe.encoder == "contextual":
        kind = "a recurrent encoder that reads every sentence to its own length"
        raise ValueError(f"{name} cannot be exported: its features come from {kind}; export a recipe without one")
    return Exportable(
        model=model,
        example=lambda seed: random_batch(space, *_SIZES[seed % len(_SIZES)], seed=seed),
        shapes=SHAPES,
        descend=descend,
        metadata={
            "task": "srl",
            "recipe": recipe.name,
            "roles": json.dumps(space.roles),
            "y": "(batch, predicates, candidates, roles): the probability of every role",
        },
    )


def random_batch(
    space: FeatureSpace, batch: int, tokens: int, predicates: int, candidates: int, *, seed: int = 0
) -> ArcBatch:
    """Sentences of no meaning, with padding of every kind."""
    generator = torch.Generator().manual_seed(seed)

    def draw(most: int, *shape: int, least: int = 0) -> torch.Tensor:
        return torch.randint(least, most, shape, generator=generator)

    arc = (batch, predicates, candidates)
    token_mask = torch.arange(tokens) < draw(tokens + 1, batch, 1, least=tokens // 2 + 1)
    predicate_mask = torch.arange(predicates) < draw(predicates + 1, batch, 1, least=1)
    mask = (torch.arange(candidates) < draw(candidates + 1, batch, predicates, 1, least=1)) & predicate_mask[..., None]
    length = token_mask.sum(1)[:, None, None]
    start = draw(10**6, *arc) % length
    end = start + 1 + draw(10**6, *arc) % (length - start)
    start, end = start * mask, end * mask
    overlap = (start[..., :, None] < end[..., None, :]) & (start[..., None, :] < end[..., :, None])
    return ArcBatch(
        words=draw(len(space.words), batch, tokens, least=1) * token_mask,
        tags=draw(len(space.tags), batch, tokens, least=1) * token_mask,
        deprels=draw(len(space.deprels), batch, tokens, least=1) * token_mask,
        heads=torch.where(token_mask, draw(10**6, batch, tokens) % length[:, 0] - 1, -1),
        token_mask=token_mask,
        predicates=draw(10**6, batch, predicates) % length[:, 0] * predicate_mask,
        predicate_mask=predicate_mask,
        features=(draw(space.size, *arc, SLOTS) * mask[..., None]).int(),
        arc_words=(draw(len(space.words), *arc, len(WORD_SLOTS)) * mask[..., None]).int(),
        spans=torch.stack([start, end], -1),
        argument_heads=(start + end) // 2,
        mask=mask,
        conflicts=overlap & ~torch.eye(candidates, dtype=torch.bool),
    )
