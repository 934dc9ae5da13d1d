"""Role labellers for export: the tensors of a batch are the inputs, the probabilities of the roles the output.

``Labeller.corpus`` makes these tensors from parsed sentences.
"""

from __future__ import annotations

import json

import spen
from spen.export import BATCH, Exportable, Size
from spen.tasks.srl.arcs import ArcBatch, ArcCorpus
from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.features import FeatureSpace
from spen.tasks.srl.grammar.corpus import make_corpus
from spen.tasks.srl.recipes import SrlRecipe

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


def exportable(name: str, recipe: SrlRecipe, model: spen.SPEN, space: FeatureSpace, *, descend: bool) -> Exportable:
    """A trained system for export, traced on sentences of the grammar; without `descend`, Init's answer alone."""
    if recipe.encoder == "contextual":
        kind = "a recurrent encoder that reads every sentence to its own length"
        raise ValueError(f"{name} cannot be exported: its features come from {kind}; export a recipe without one")

    def example(seed: int) -> ArcBatch:
        # All candidates, of which some overlap: those of the rules may not, and the constraint would not be checked.
        corpus = ArcCorpus(make_corpus(3 + seed, seed=seed), CandidateRules(), space)
        return corpus.batch(corpus.usable)[0]

    return Exportable(
        model=model,
        example=example,
        shapes=SHAPES,
        descend=descend,
        metadata={
            "task": "srl",
            "recipe": recipe.name,
            "roles": json.dumps(space.roles),
            "y": "(batch, predicates, candidates, roles): the probability of every role",
        },
    )
