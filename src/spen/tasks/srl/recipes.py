"""Recipes: every system of the table as a typed value, with the paper's numbers beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from spen.tasks import options

TERMS = ("argument_set", "label_histogram", "argument_count", "label_coherence", "topical_coherence")
Update = Literal["logits", "through_logits", "mirror", "projected"]
GONE = ("attention", "context_dropout")
"""Options of earlier versions, which change nothing where they are off."""


@dataclass(frozen=True)
class Figures:
    """F1 in the paper on WSJ dev, WSJ test and Brown; None where it gives none."""

    dev: float | None = None
    test: float | None = None
    out_of_domain: float | None = None


@dataclass(frozen=True, kw_only=True)
class SrlRecipe:
    """A system: its F(x), its energy, its descent and how it is trained. The defaults are the paper's."""

    name: str
    about: str
    paper: dict[str, Figures] = field(default_factory=dict)  # by decoder
    # F(x)
    templates: Literal["appendix", "all"] = "appendix"
    encoder: Literal["arcs", "contextual"] = "arcs"
    width: int = 300  # of an arc's embedded features
    word_dimensions: int = 0  # number of principal components of the word vectors; 0: all dimensions
    encoder_width: int = 200  # of the contextual encoder, in each direction
    encoder_layers: int = 2
    encoder_dropout: float = 0.4
    dropout: float = 0.5
    feature_dropout: float = 0.0
    role_paths: bool = False  # an argument has only roles that its path has in training
    # E(y; F(x))
    terms: tuple[str, ...] = TERMS
    hidden: int = 50
    convex: bool = False
    nonnegative: bool = False  # with convex: all weights on y are ≥ 0, not only those after the softplus
    constraints: bool = True
    constraint_weight: float = 3.0
    entropy: float = 1.0
    pairs: int = 0  # heads of the energy of pairs of arcs for each relation of the two; 0: no such energy
    # the descent
    update: Update = "logits"
    steps: int = 10
    rate: float = 0.2
    stop: float = 0.0  # relative change of y at which the descent of a sentence ends; 0: all steps
    # training
    objective: Literal["local", "structured", "end_to_end", "ssvm"] = "end_to_end"
    base: str | None = "local"  # the recipe whose trained F(x) replaces the pretraining
    pretrain_epochs: int = 16
    clamped_epochs: int = 3
    joint_epochs: int = 12
    patience: int = 5
    pretrain_rate: float = 1e-3
    decay: float = 0.1  # the learning rate falls to this fraction over pretraining, and again over the joint stage
    clamped_rate: float = 1e-3
    joint_rate: float = 3e-4
    violation_weight: float = 0.0
    weight_decay: float = 0.0
    cells: int = 1024

    def __post_init__(self) -> None:
        if self.pairs < 0:
            raise ValueError(f"pairs is {self.pairs} but must be 0 or more")
        if self.pairs and self.convex:
            raise ValueError("an energy of pairs of arcs is not convex in y: leave out pairs or convex")

    def describe(self) -> dict[str, Any]:
        """The recipe as JSON can hold it, without its description, which may be reworded."""
        values = asdict(self)
        del values["about"], values["paper"]
        return values

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> SrlRecipe:
        """The inverse of `describe`, of earlier versions too."""
        unknown = values.keys() - {option.name for option in fields(cls)}
        if refused := [key for key in sorted(unknown) if values[key] or key not in GONE]:
            claim = f"the recipe has the option {refused[0]!r}, which this version of spen does not know"
            raise ValueError(f"{claim}: open the model with the version that trained it")
        values = {key: value for key, value in values.items() if key not in unknown}
        known = (RECIPES | ABLATIONS).get(values["name"].partition(":")[0])
        about = known.about if known else values["name"]
        return cls(about=about, **{**values, "terms": tuple(values["terms"])})

    def quick(self) -> SrlRecipe:
        """The same system with fewer epochs and smaller batches, for `--quick`."""
        return replace(self, pretrain_epochs=5, clamped_epochs=1, joint_epochs=2, patience=3, cells=256)


LOCAL = SrlRecipe(
    name="local",
    about="The arc-factored classifier of the appendix.",
    paper={"greedy": Figures(78.0, 79.7, 69.7), "ad3": Figures(78.2, 80.0, 69.9)},
    objective="local",
    base=None,
    terms=(),
    constraints=False,
)
SPEN = SrlRecipe(
    name="spen",
    # The paper's loss has no hinge; spen-no-hinge is without it.
    about="Local energy, five global terms and soft constraints, trained end to end with a hinge on violations.",
    paper={"greedy": Figures(79.0, 80.7, 69.3), "ad3": Figures(79.0, 80.7, 69.4)},
    # The gradient of a constraint is at most its weight, so 10 outweighs scores that differ by less, and a smaller rate
    # keeps the descent from oscillating. Violations left: a thirtieth of Local's, against a ninth with weight 6.
    constraint_weight=10.0,
    rate=0.1,
    violation_weight=6.0,
    # The pretrained F(x) has nearly memorised the training sentences. At 5e-4 the joint stage lost the gain of the
    # clamped stage on dev (83.4 → 83.2, Local 82.9), so most epochs are clamped and the joint learning rate is small.
    clamped_epochs=6,
    clamped_rate=2e-3,
    joint_epochs=5,
    joint_rate=1e-4,
    cells=2048,
)
CONVEX = replace(
    SPEN,
    name="convex",
    about="The SPEN with an energy convex in y (ICNN).",
    paper={"ad3": Figures(test=80.3)},
    convex=True,
)
SSVM = replace(
    SPEN,
    name="ssvm",
    about="The SPEN's energy trained with the structured hinge; the paper could not beat Local with it.",
    paper={},
    objective="ssvm",
    joint_rate=1e-4,
)
STRUCTURED = replace(
    LOCAL,
    name="structured",
    about="The local scores trained with the log loss of the constrained problem (dynamic programme).",
    paper={"ad3": Figures(78.6, 79.9, 71.3)},  # Täckström et al. 2015, Structured
    objective="structured",
)
BEST_LOCAL = replace(
    LOCAL,
    name="best-local",
    about="The contextual F(x) of spen-best on its own.",
    paper={},
    templates="all",
    encoder="contextual",
    feature_dropout=0.2,
    pretrain_epochs=20,
)
BEST = replace(
    SPEN,
    name="spen-best",
    about="A BiLSTM over words, tags and tree, every feature template, and an energy of pairs of arcs.",
    paper={},
    templates="all",
    encoder="contextual",
    feature_dropout=0.2,
    # The five terms were not tried beside the pairs.
    terms=(),
    pairs=4,
    clamped_rate=5e-3,
    base="best-local",
)

RECIPES: dict[str, SrlRecipe] = {r.name: r for r in (LOCAL, SPEN, CONVEX, SSVM, STRUCTURED, BEST_LOCAL, BEST)}


def _ablation(suffix: str, about: str, **changes: Any) -> SrlRecipe:
    return replace(SPEN, name=f"spen-{suffix}", about=about, paper={}, **changes)


ABLATIONS: dict[str, SrlRecipe] = {
    r.name: r
    for r in (
        *(
            _ablation(f"no-{t.replace('_', '-')}", f"The SPEN without {t}.", terms=tuple(x for x in TERMS if x != t))
            for t in TERMS
        ),
        _ablation("no-global", "The SPEN with constraints alone.", terms=()),
        _ablation("no-constraints", "No soft constraints, nor their hinge.", constraints=False, violation_weight=0.0),
        _ablation("pairs", "The SPEN with an energy of pairs of arcs besides.", pairs=4, clamped_rate=5e-3),
        _ablation("no-hinge", "The loss of the paper: no hinge on violated constraints.", violation_weight=0.0),
        _ablation("nonnegative", "The convex SPEN with all weights on y ≥ 0.", convex=True, nonnegative=True),
        _ablation("steps-20-rate-0.2", "The SPEN with T = 20 and rates that start at 0.2.", steps=20, rate=0.2),
        _ablation("stop", "A sentence's descent ends when y changes by less than 0.3 %.", stop=3e-3),
        _ablation("no-entropy", "The SPEN without entropy smoothing.", entropy=0.0),
        _ablation("through-logits", "The gradient taken through the softmax.", update="through_logits"),
        _ablation("mirror", "Entropic mirror descent.", update="mirror"),
        _ablation("projected", "Euclidean projection onto the simplex.", update="projected", rate=0.1),
        *(_ablation(f"steps-{t}", f"The SPEN with T = {t}.", steps=t) for t in (1, 3, 5, 20)),
    )
}


def find_recipe(name: str) -> SrlRecipe:
    """A recipe by name, with changes behind it if any: `spen`, `spen:steps=5:convex=true`.

    A base may be changed too, with + for its colons: `spen-best:encoder_width=300:base=best-local+encoder_width=300`.
    """
    base, *changes = name.split(":")
    everything = RECIPES | ABLATIONS
    if base not in everything:
        raise ValueError(f"no recipe is called {base!r}; choose from {', '.join(everything)}")
    return changed(everything[base], changes) if changes else everything[base]


def changed(recipe: SrlRecipe, changes: Sequence[str]) -> SrlRecipe:
    """The recipe with `key=value` options changed and added to its name, without the paper's numbers."""
    for change in changes:
        if "=" not in change:
            raise ValueError(f"{recipe.name}: {change!r} does not read as key=value")
    pairs = dict(change.split("=", 1) for change in changes)
    base = pairs.pop("base", None)
    new = options.changed(recipe, pairs, fixed=("name", "about", "paper"))
    if base is not None:
        new = replace(new, base=base.replace("+", ":") or None)
    return replace(new, name=":".join([recipe.name, *changes]), paper={})
