"""Recipes for label sets, as typed values with the published figures beside them. Imports nothing heavy."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from typing import Any, Literal

from spen.tasks.options import changed


@dataclass(frozen=True)
class Way:
    """A way to learn an energy: an objective, in a sentence, and the options of training that it needs."""

    about: str
    learning_rate: float | None = 1e-3
    """Smaller for objectives that would undo the pretraining of F; None: the rate of pretraining."""
    decay_to: float = 0.02
    converges: bool = False
    """The descent must reach its minimum: many steps and a stopping rule."""


WAYS: dict[str, Way] = {
    "feedforward": Way("Init(F(x)) alone, log loss", learning_rate=None, decay_to=1.0),
    "feedforward-f1": Way("Init(F(x)) alone, soft F1"),
    "end-to-end": Way("back-propagation through the descent, soft F1 on every iterate"),
    "last-iterate": Way("the same with the loss on the last iterate alone"),
    "truncated": Way("the last iterate, differentiated through the last step alone"),
    "implicit": Way("the implicit function theorem at the minimum", converges=True),
    "structured-hinge": Way("structured SVM, Δ the Hamming distance"),
    "deep-value": Way("deep value network: sigmoid(−E) is the F1 of y"),
    "contrastive-langevin": Way("contrastive divergence, ten Langevin steps from the truth", 1e-4),
    "contrastive-hamiltonian": Way("contrastive divergence, one Hamiltonian move of ten leapfrog steps", 1e-4),
    "score-matching": Way("denoising score matching in logits", 1e-4),
    "inference-network": Way("Init(F(x)) plays against the energy, anchored by the log loss"),
    "direct-loss": Way("direct loss minimisation, Δ the soft F1 cost, away from worse answers"),
}
"""Every way to learn an energy, by the name that recipes and ``spen compare`` use."""


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

    def describe(self) -> dict[str, Any]:
        """As plain values, for the run folder."""
        return {"task": "multilabel", **asdict(self)}

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> MultilabelRecipe:
        """The inverse of `describe`."""
        if values.get("task") != "multilabel":
            raise ValueError(f"the run is of task {values.get('task')!r}, not of label sets")
        plain = {key: value for key, value in values.items() if key != "task"}
        plain |= {key: tuple(value) for key, value in plain.items() if isinstance(value, list)}
        return cls(**plain)

    def with_options(self, **options: str) -> MultilabelRecipe:
        """A copy with values changed by text (`--set key=value`)."""
        return changed(self, options, fixed=("name", "way", "data", "targets", "published"))


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
    """A recipe by its name; the error for an unknown name lists all."""
    if name not in RECIPES:
        raise ValueError(f"there is no multilabel recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def parse_targets(text: str) -> tuple[str, ...]:
    """The names of --targets; a name that contains a comma is given in double quotes."""
    return tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip())
