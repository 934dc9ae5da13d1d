"""Problems so small that launching kernels is what takes the time: role labelling and label sets."""

from __future__ import annotations

import torch
from torch import Tensor

import spen
from benchmarks.problems import Problem
from spen.domains import Simplex
from spen.gradients import Exact
from spen.rules import GradientDescent
from spen.tasks.multilabel.build import build_model, build_stages
from spen.tasks.multilabel.recipes import RECIPES as LABEL_SETS
from spen.tasks.multilabel.tables import Schema
from spen.tasks.srl.arcs import ArcBatch, ArcTarget
from spen.tasks.srl.build import build_energy, stages
from spen.tasks.srl.features import SLOTS, WORD_SLOTS
from spen.tasks.srl.local import ArcInit, ArcScorer, WordTable
from spen.tasks.srl.recipes import RECIPES as ROLES


def srl(
    device: str,
    *,
    batch: int = 64,
    predicates: int = 3,
    candidates: int = 12,
    roles: int = 54,
    words: int = 300,
    vocabulary: int = 20_000,
) -> Problem:
    """The recipe `spen`: F, five global terms, soft constraints, entropy, ten steps with learned rates.

    Sentences are random: indices of features and words, spans, and which arcs are valid.
    """
    recipe, core = ROLES["spen"], tuple(range(1, 7))
    torch.manual_seed(0)
    x, target = _sentences(batch, predicates, candidates, roles, vocabulary)
    features = ArcScorer(vocabulary, roles, WordTable(0.3 * torch.randn(vocabulary, words)), dropout=0.0)
    energy = build_energy(recipe, roles=roles, core=core, words=words, arc=features.hidden.out_features)
    rule = GradientDescent(recipe.steps, recipe.rate, learn_rates=True)
    minimizer = spen.Minimizer(Simplex(recipe.update), rule, Exact())
    model = spen.SPEN(features=features, init=ArcInit(), energy=energy, minimizer=minimizer)
    sizes = {"batch": batch, "steps": recipe.steps, "predicates": predicates, "candidates": candidates, "roles": roles}
    return Problem(
        "SRL",
        sizes,
        model.to(device).eval(),
        stages(recipe, roles, core)[-1].objective.loss,  # type: ignore[attr-defined]
        ArcBatch(*(t.to(device) for t in x)),
        ArcTarget(*(t.to(device) for t in target)),
        squash=_softmax,
    )


def _sentences(batch: int, n: int, k: int, roles: int, vocabulary: int, length: int = 24) -> tuple[ArcBatch, ArcTarget]:
    arcs = (batch, n, k)
    mask = torch.rand(arcs) < 0.7
    mask[..., 0] = True
    start = torch.randint(0, length - 4, arcs) * mask
    end = (start + torch.randint(1, 5, arcs)) * mask
    overlap = (start[..., :, None] < end[..., None, :]) & (start[..., None, :] < end[..., :, None])
    spans = torch.stack([start, end], -1)
    x = ArcBatch(
        words=torch.randint(1, vocabulary, (batch, length)),
        tags=torch.randint(1, 40, (batch, length)),
        deprels=torch.randint(1, 40, (batch, length)),
        heads=torch.randint(0, length, (batch, length)),
        token_mask=torch.ones(batch, length, dtype=torch.bool),
        predicates=torch.randint(0, length, (batch, n)),
        predicate_mask=torch.ones(batch, n, dtype=torch.bool),
        features=torch.randint(1, vocabulary, (*arcs, SLOTS), dtype=torch.int32) * mask[..., None],
        arc_words=torch.randint(1, vocabulary, (*arcs, len(WORD_SLOTS)), dtype=torch.int32) * mask[..., None],
        spans=spans,
        argument_heads=start,
        mask=mask,
        conflicts=overlap & ~torch.eye(k, dtype=torch.bool),
    )
    pairs = (mask[..., :, None] & mask[..., None, :]).triu(1)
    known = {
        "gold": torch.randint(0, roles, arcs) * mask,
        "mask": mask,
        "spans": spans,
        "pairs": pairs,
        "overlaps": overlap & pairs,
        "uncovered": torch.zeros(batch, n, dtype=torch.long),
        "sentence": torch.arange(batch),
    }
    return x, ArcTarget(**{name: known[name] for name in ArcTarget._fields})


def label_sets(device: str, *, batch: int = 64, inputs: int = 1836, labels: int = 159) -> Problem:
    """The recipe `bibtex-end-to-end`: an MLP, a global network on all labels, entropy, five steps in logits."""
    recipe = LABEL_SETS["bibtex-end-to-end"]
    torch.manual_seed(0)
    model = build_model(recipe, Schema.numbered(inputs, labels)).to(device).eval()
    x = (torch.rand(batch, inputs) < 0.04).float()
    target = (torch.rand(batch, labels) < 2.4 / labels).float()
    target[:, 0] = 1.0  # nobody is without a label
    sizes = {"batch": batch, "steps": recipe.steps, "inputs": inputs, "labels": labels}
    return Problem(
        "label sets",
        sizes,
        model,
        build_stages(recipe)[-1].objective.loss,  # type: ignore[attr-defined]
        x.to(device),
        target.to(device),
        squash=torch.sigmoid,
    )


def _softmax(z: Tensor) -> Tensor:
    return torch.softmax(z, -1)
