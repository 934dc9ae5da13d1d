"""Recipe → model and stages."""

from __future__ import annotations

from dataclasses import replace

from spen.builders import Origin
from spen.descent.convergence import RelativeChange
from spen.domains import Box, Simplex
from spen.minimizer import Minimizer
from spen.model import SPEN
from spen.objectives import binary_log_loss
from spen.rules import GradientDescent
from spen.tasks.multilabel.energy import LabelNetwork, label_energy
from spen.tasks.multilabel.features import LabelMLP, ScoresAsLogits
from spen.tasks.multilabel.objectives import build_gradient, build_objective, on_present
from spen.tasks.multilabel.recipes import WAYS, MultilabelRecipe
from spen.tasks.multilabel.tables import Schema
from spen.training import Stage, pretrain


def build_model(recipe: MultilabelRecipe, schema: Schema, threshold: float = 0.5) -> SPEN:
    """An untrained model of a recipe for tables of a schema; ``threshold`` is saved with it for ``spen predict``."""
    converges, labels = WAYS[recipe.way].converges, len(schema.targets)
    mlp = LabelMLP(
        schema.width,
        labels,
        recipe.hidden,
        radius=recipe.radius,
        standardize=recipe.standardize,
        input_dropout=recipe.input_dropout,
        dropout=recipe.dropout,
    )
    network = LabelNetwork(labels, recipe.network, context=recipe.hidden[-1] if recipe.context else 0)
    # The implicit function theorem holds at a minimum: the descent runs until y no longer changes, at fixed rates.
    rule = GradientDescent(300 if converges else recipe.steps, recipe.rate, learn_rates=not converges)
    model = SPEN(
        features=mlp,
        init=ScoresAsLogits(pairs=recipe.pairs),
        energy=label_energy(network, entropy=recipe.entropy, pairs=recipe.pairs),
        minimizer=Minimizer(
            Simplex() if recipe.pairs else Box("logits"),
            rule,
            build_gradient(recipe.way),
            RelativeChange(1e-4) if converges else None,
        ),
    )
    settings = {"recipe": recipe.describe(), "schema": schema.describe(), "threshold": threshold}
    model.origin = Origin("multilabel", settings)
    return model


def build_stages(recipe: MultilabelRecipe) -> list[Stage]:
    """Pretraining, then the way; the feed-forward baseline is pretraining alone, for as many epochs in all."""
    own, alone = WAYS[recipe.way], recipe.way == "feedforward"
    rates = (recipe.learning_rate, own.learning_rate, recipe.pretrain_rate)
    way = Stage(
        name=recipe.way,
        objective=build_objective(recipe.way, recipe.log_weight, recipe.pairs),
        epochs=recipe.epochs + (recipe.pretrain_epochs + recipe.clamped_epochs if alone else 0),
        learning_rate=next(rate for rate in rates if rate is not None),
        decay_to=own.decay_to if recipe.decay_to is None else recipe.decay_to,
        weight_decay=recipe.weight_decay,
        patience=recipe.patience,
        clip=recipe.clip,
        keep_start=False,
    )
    stages = [way]
    if recipe.clamped_epochs and not alone:
        stages.insert(0, replace(way, name="clamped", epochs=recipe.clamped_epochs, clamp=("features.*", "init.*")))
    if recipe.pretrain_epochs and not alone:
        log = on_present(binary_log_loss, recipe.pairs)
        stages.insert(0, pretrain(log, epochs=recipe.pretrain_epochs, learning_rate=recipe.pretrain_rate))
    return stages
