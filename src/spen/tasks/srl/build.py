"""A recipe and data → a SPEN and the stages that train it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import spen
from spen.builders import Origin
from spen.domains import Simplex
from spen.energies import Energy, EntropySmoothed, Linear, Sum
from spen.gradients import Written
from spen.objectives import EndToEnd, StructuredHinge
from spen.protocols import Objective
from spen.rules import GradientDescent
from spen.tasks.srl.contextual import ArcPairs, SentenceEncoder
from spen.tasks.srl.corpora import Prepared
from spen.tasks.srl.energy import (
    ArgumentCount,
    ArgumentSet,
    LabelCoherence,
    LabelHistogram,
    MaskedArcs,
    Network,
    TopicalCoherence,
    overlap_constraint,
    repeat_constraint,
)
from spen.tasks.srl.features import PATH
from spen.tasks.srl.local import ArcInit, ArcScorer, WordTable
from spen.tasks.srl.metrics import ConstrainedLoss, arc_cost, arc_log_loss
from spen.tasks.srl.recipes import SrlRecipe
from spen.tasks.srl.structured import ConstrainedLogLoss
from spen.training import Stage, clamped, pretrain


def build(recipe: SrlRecipe, data: Prepared, *, seed: int = 0) -> spen.SPEN:
    """The model of a recipe, its parameters drawn from `seed`."""
    roles = len(data.space.roles)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        words = WordTable(_principal(data.word_table(), recipe.word_dimensions))
        encoder = None
        if recipe.encoder == "contextual":
            encoder = SentenceEncoder(
                words,
                len(data.space.tags),
                len(data.space.deprels),
                width=recipe.encoder_width,
                layers=recipe.encoder_layers,
                dropout=recipe.encoder_dropout,
            )
        features = ArcScorer(
            data.space.size,
            roles,
            words,
            width=recipe.width,
            dropout=recipe.dropout,
            feature_dropout=recipe.feature_dropout,
            encoder=encoder,
            role_paths=data.role_paths() if recipe.role_paths else None,
            first_path=data.space.first_row(PATH),
        )
        sizes = {"words": words.dimensions, "arc": features.hidden.out_features}
        energy = build_energy(recipe, roles=roles, core=data.space.core, **sizes)
        rule = GradientDescent(recipe.steps, recipe.rate, learn_rates=True)
        stop = spen.RelativeChange(recipe.stop) if recipe.stop else None
        minimizer = spen.Minimizer(Simplex(recipe.update), rule, Written(), stop)
        model = spen.SPEN(features=features, init=ArcInit(), energy=energy, minimizer=minimizer)
    model.origin = Origin("srl", lambda: {"recipe": recipe.describe(), **data.settings(words.dimensions)})
    return model


def rebuild(recipe: dict[str, Any], **settings: Any) -> spen.SPEN:
    """The model of a recipe with fresh weights, from the settings in the config.json of a saved model."""
    return build(SrlRecipe.from_description(recipe), Prepared.from_settings(**settings))


def _principal(table: Tensor, dimensions: int) -> Tensor:  # (words, D) → (words, dimensions)
    """The principal components of the vectors, at the scale of the table; padding stays 0."""
    if not 0 < dimensions < table.shape[1]:
        return table
    centred = table - table[1:].mean(0)
    _, vectors = torch.linalg.eigh(centred[1:].T @ centred[1:])  # ascending
    kept = centred @ vectors[:, -dimensions:]
    kept = kept * (table[1:].std() / kept[1:].std())
    kept[0] = 0
    return kept


def build_energy(recipe: SrlRecipe, *, roles: int, core: tuple[int, ...], words: int, arc: int) -> MaskedArcs:
    """−⟨s, y⟩ + global terms + constraints − τ H(y), on valid arcs only."""
    hidden, convex = recipe.hidden, recipe.convex
    available: dict[str, Callable[[], Energy]] = {
        "argument_set": lambda: ArgumentSet(words, hidden=hidden, convex=convex),
        "label_histogram": lambda: LabelHistogram(roles, words, hidden=hidden, convex=convex),
        "argument_count": lambda: ArgumentCount(words),
        "label_coherence": lambda: LabelCoherence(roles, hidden=hidden, convex=convex),
        "topical_coherence": lambda: TopicalCoherence(arc, hidden=hidden, convex=convex),
    }
    if unknown := set(recipe.terms) - set(available):
        raise ValueError(f"no global term is called {', '.join(sorted(unknown))}; there are {', '.join(available)}")
    parts: dict[str, nn.Module] = {"local": Linear(lambda features: features.scores)}
    parts |= {name: available[name]() for name in recipe.terms}
    if recipe.pairs:
        parts["pairs"] = ArcPairs(roles, arc, heads=recipe.pairs)
    if recipe.constraints:
        weight = recipe.constraint_weight
        parts |= {"overlap": overlap_constraint(weight=weight), "repeat": repeat_constraint(core, weight=weight)}
    total: nn.Module = Sum(**parts)
    if recipe.nonnegative:
        for network in [module for module in total.modules() if isinstance(module, Network)]:
            network.restrict()
    return MaskedArcs(EntropySmoothed(total, recipe.entropy) if recipe.entropy else total)


def stages(recipe: SrlRecipe, roles: int, core: tuple[int, ...]) -> list[Stage]:
    """Pretrain → clamped → joint (Sec. 5); a local system ends after the first."""
    first = pretrain(
        arc_log_loss,
        epochs=recipe.pretrain_epochs,
        learning_rate=recipe.pretrain_rate,
        patience=recipe.patience,
    )
    # The learning rate decays here too, so that the baseline is trained as well as what is built on it.
    first = replace(first, decay_to=recipe.decay)
    if recipe.objective == "structured":
        return [replace(first, name="structured", objective=ConstrainedLogLoss(core))]
    if recipe.objective == "local":
        return [first]
    objective: Objective
    if recipe.objective == "ssvm":
        objective = StructuredHinge(arc_cost, truth=lambda target: target.one_hot(roles))
    else:
        objective = EndToEnd(ConstrainedLoss(core, recipe.violation_weight))
    last = Stage(
        name="joint",
        objective=objective,
        epochs=recipe.joint_epochs,
        learning_rate=recipe.joint_rate,
        clip=1.0,
        patience=recipe.patience,
        decay_to=recipe.decay,
        weight_decay=recipe.weight_decay,
        keep_start=True,
    )
    second = clamped(
        objective,
        epochs=recipe.clamped_epochs,
        learning_rate=recipe.clamped_rate,
        clamp=("features.*", "init.*"),
        keep_start=False,
    )
    return [first, replace(second, decay_to=recipe.decay), last]
