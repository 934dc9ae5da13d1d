"""Recipes for label sets, as typed values with the published figures beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from spen.descent.convergence import RelativeChange
from spen.descent.minimizer import Minimizer
from spen.domains import Box, Simplex
from spen.model import SPEN
from spen.objectives import binary_log_loss
from spen.rules import GradientDescent
from spen.tasks.multilabel.energy import LabelNetwork, label_energy
from spen.tasks.multilabel.features import LabelMLP, ScoresAsLogits
from spen.tasks.multilabel.ways import WAYS, Way, on_present
from spen.training import Stage, pretrain


@dataclass(frozen=True, kw_only=True)
class MultilabelRecipe:
    """F and Init are pretrained on the log loss; then ``way`` trains everything, or the energy alone for a while."""

    name: str
    way: str
    data: str = "bibtex"
    published: float | None = None
    """Example-averaged test F1 of the same kind of system in the literature, percent."""

    # F(x)
    hidden: tuple[int, ...] = (1000,)
    radius: float | None = 10.0
    input_dropout: float = 0.2
    dropout: float = 0.6
    # E(y; F(x))
    network: tuple[int, ...] = (200,)
    context: bool = True
    """Whether the global network sees F's hidden layer beside y."""
    entropy: float = 1.0
    # the descent
    domain: Literal["box", "simplex"] = "box"
    steps: int = 5
    rate: float = 0.3
    # learning
    log_weight: float = 0.01
    pretrain_epochs: int = 10
    clamped_epochs: int = 0
    epochs: int = 6
    learning_rate: float = 1e-3
    pretrain_rate: float = 1e-3
    decay_to: float = 0.02
    weight_decay: float = 0.0
    patience: int | None = None
    clip: float | None = None
    batch_size: int = 64
    dev: float = 0.1

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"there is no way {self.way!r} to learn an energy; choose one of {', '.join(WAYS)}")
        if self.domain not in ("box", "simplex"):
            raise ValueError(f'domain must be "box" or "simplex", not {self.domain!r}')

    @property
    def pairs(self) -> bool:
        """Outputs are (B, L, 2) over (absent, present)."""
        return self.domain == "simplex"

    def model(self, inputs: int, labels: int) -> SPEN:
        """An untrained model."""
        way: Way = WAYS[self.way]
        mlp = LabelMLP(
            inputs, labels, self.hidden, radius=self.radius, input_dropout=self.input_dropout, dropout=self.dropout
        )
        network = LabelNetwork(labels, self.network, context=self.hidden[-1] if self.context else 0)
        # The theorem holds at a minimum, so its descent goes on until y rests; the rates have no part in it.
        rule = (
            GradientDescent(300, self.rate)
            if way.converges
            else GradientDescent(self.steps, self.rate, learn_rates=True)
        )
        return SPEN(
            features=mlp,
            init=ScoresAsLogits(pairs=self.pairs),
            energy=label_energy(network, entropy=self.entropy, pairs=self.pairs),
            minimizer=Minimizer(
                Simplex() if self.pairs else Box("logits"),
                rule,
                way.gradient(),
                RelativeChange(1e-4) if way.converges else None,
            ),
        )

    def stages(self) -> list[Stage]:
        """Pretraining, then the way; the feed-forward baseline is pretraining alone, for as many epochs in all."""
        log = on_present(binary_log_loss, self.pairs)
        if self.way == "feedforward":
            epochs = self.pretrain_epochs + self.clamped_epochs + self.epochs
            return [replace(pretrain(log, epochs=epochs, learning_rate=self.pretrain_rate), name=self.way)]
        way = Stage(
            name=self.way,
            objective=WAYS[self.way].objective(self.log_weight, self.pairs),
            epochs=self.epochs,
            learning_rate=WAYS[self.way].learning_rate or self.learning_rate,
            decay_to=self.decay_to,
            weight_decay=self.weight_decay,
            patience=self.patience,
            clip=self.clip,
        )
        stages = [way]
        if self.clamped_epochs:
            stages.insert(0, replace(way, name="clamped", epochs=self.clamped_epochs, clamp=("features.*", "init.*")))
        if self.pretrain_epochs:
            stages.insert(0, pretrain(log, epochs=self.pretrain_epochs, learning_rate=self.pretrain_rate))
        return stages

    def with_changes(self, **changes: Any) -> MultilabelRecipe:
        """The same recipe with some values changed."""
        return replace(self, **changes)


_PUBLISHED = {
    "feedforward": 38.9,  # MLP, as reported by Gygli, Norouzi and Angelova (2017)
    "structured-hinge": 42.2,  # SPEN with a structured SVM, Belanger and McCallum (2016)
    "deep-value": 44.7,  # deep value network, Gygli, Norouzi and Angelova (2017)
}

# Over pairs the tangents of the simplex rescale the entropy's Hessian to the identity, which conjugate gradients need.
_CHANGES: dict[str, dict[str, Any]] = {"implicit": {"domain": "simplex"}}

BIBTEX = {
    f"bibtex-{way}": MultilabelRecipe(
        name=f"bibtex-{way}", way=way, published=_PUBLISHED.get(way), **_CHANGES.get(way, {})
    )
    for way in WAYS
}

# Nineteen labels an example make the log loss eight times that of Bibtex; 12,920 examples need less dropout.
_DELICIOUS: dict[str, Any] = {
    "data": "delicious",
    "batch_size": 128,
    "dropout": 0.4,
    "input_dropout": 0.1,
    "log_weight": 0.001,
    "epochs": 4,
}
DELICIOUS = {
    recipe.name: recipe
    for recipe in (
        MultilabelRecipe(name="delicious-feedforward", way="feedforward", published=37.8, **_DELICIOUS),
        MultilabelRecipe(name="delicious-end-to-end", way="end-to-end", **_DELICIOUS),
    )
}

RECIPES: dict[str, MultilabelRecipe] = {**BIBTEX, **DELICIOUS}
"""Every recipe of this task, by name."""
