"""Recipes for label sets, as typed values with the published figures beside them. Imports nothing heavy."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from spen.tasks.options import changed

if TYPE_CHECKING:
    from spen.model import SPEN
    from spen.training import Stage

WAYS: dict[str, str] = {
    "feedforward": "Init(F(x)) alone, log loss",
    "feedforward-f1": "Init(F(x)) alone, soft F1",
    "end-to-end": "back-propagation through the descent, soft F1 on every iterate",
    "last-iterate": "the same with the loss on the last iterate alone",
    "truncated": "the last iterate, differentiated through the last step alone",
    "implicit": "the implicit function theorem at the minimum",
    "structured-hinge": "structured SVM, Δ the Hamming distance",
    "deep-value": "deep value network: sigmoid(−E) is the F1 of y",
    "contrastive-langevin": "contrastive divergence, ten Langevin steps from the truth",
    "contrastive-hamiltonian": "contrastive divergence, one Hamiltonian move of ten leapfrog steps",
    "score-matching": "denoising score matching in logits",
    "inference-network": "Init(F(x)) plays against the energy, anchored by the log loss",
    "direct-loss": "direct loss minimisation, Δ the soft F1 cost, away from worse answers",
}
"""Every way to learn an energy, in a sentence; `ways.WAYS` holds what each one does."""


@dataclass(frozen=True, kw_only=True)
class MultilabelRecipe:
    """F and Init are pretrained on the log loss; then ``way`` trains everything, or the energy alone for a while."""

    name: str
    way: str
    data: str = "bibtex"
    """A name or the path of a file."""
    targets: tuple[str, ...] = ()
    """The columns that are labels, where the file does not say it."""
    published: float | None = None
    """Example-averaged test F1 of the same kind of system in the literature, percent."""

    # F(x)
    hidden: tuple[int, ...] = (1000,)
    radius: float | None = 10.0
    standardize: bool = False
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
    learning_rate: float | None = None
    """None: the way's own, 1e-3 or, for densities, 1e-4; for the feed-forward baseline ``pretrain_rate``."""
    pretrain_rate: float = 1e-3
    decay_to: float | None = None
    """None: the way's own, 0.02 or, for the feed-forward baseline, 1."""
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

    @property
    def about(self) -> str:
        """The way, in a sentence."""
        return WAYS[self.way]

    def model(self, inputs: int, labels: int) -> SPEN:
        """An untrained model."""
        from spen.tasks.multilabel.build import build_model  # torch comes when something is built
        from spen.tasks.multilabel.tables import Schema

        return build_model(self, Schema.numbered(inputs, labels))

    def stages(self) -> list[Stage]:
        """Pretraining, then the way; the feed-forward baseline is pretraining alone, for as many epochs in all."""
        from spen.tasks.multilabel.build import build_stages

        return build_stages(self)

    def describe(self) -> dict[str, Any]:
        """As plain values, for the run's folder."""
        return {"task": "multilabel", **asdict(self)}

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> MultilabelRecipe:
        """The inverse of `describe`."""
        if values.get("task") != "multilabel":
            raise ValueError(f"the run is of task {values.get('task')!r}, not of label sets")
        given: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in values.items() if key != "task"
        }
        return cls(**given)

    def with_options(self, **options: str) -> MultilabelRecipe:
        """Some values changed by text (`--set key=value`); an unknown key is named."""
        return changed(self, options, fixed=("name", "way", "data", "targets", "published"))

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

# For a table of any kind: F sees standardised inputs, and training ends when the development part no longer gains.
LABELS = MultilabelRecipe(
    name="labels",
    way="end-to-end",
    data="",
    radius=None,
    standardize=True,
    hidden=(200,),
    network=(50,),
    input_dropout=0.0,
    dropout=0.5,
    log_weight=0.05,
    pretrain_rate=3e-3,
    pretrain_epochs=20,
    learning_rate=3e-3,
    epochs=40,
    patience=15,
    clip=5.0,
    batch_size=32,
)

RECIPES: dict[str, MultilabelRecipe] = {"labels": LABELS, **BIBTEX, **DELICIOUS}
"""Every recipe of this task, by name."""


def find_recipe(name: str) -> MultilabelRecipe:
    """A recipe by its name; a wrong name gets the list."""
    if name not in RECIPES:
        raise ValueError(f"there is no multilabel recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def parse_targets(text: str) -> tuple[str, ...]:
    """The names of --targets; one with a comma in it stands in double quotes."""
    return tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip())
