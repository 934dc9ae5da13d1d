"""Parsed text in, roles out: a trained model labels sentences with trees."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import spen
from spen.models import SavedModel, find_model
from spen.pretrained import complete, fitting
from spen.tasks.srl.arcs import ArcCorpus
from spen.tasks.srl.build import build
from spen.tasks.srl.corpora import Prepared
from spen.tasks.srl.decoding import Decoder
from spen.tasks.srl.encoding import encode
from spen.tasks.srl.evaluate import label_sentences
from spen.tasks.srl.formats.conll2005 import props_text
from spen.tasks.srl.formats.conllu import as_sentences
from spen.tasks.srl.recipes import SrlRecipe
from spen.tasks.srl.sentences import Argument, Props, Sentence

__all__ = ["FORMATS", "Format", "Labeller", "render"]

Format = Literal["props", "json", "pretty"]
FORMATS: tuple[Format, ...] = ("props", "json", "pretty")


@dataclass(frozen=True)
class Labeller:
    """A trained system, ready for sentences with trees."""

    recipe: SrlRecipe
    model: spen.SPEN
    data: Prepared

    @classmethod
    def open(cls, model: Path | str, *, device: torch.device | str = "cpu") -> Labeller:
        """A model shipped with the package by name, or the system of a run folder or a saved model."""
        return cls.of(find_model(model), device=device)

    @classmethod
    def of(cls, saved: SavedModel, *, device: torch.device | str = "cpu") -> Labeller:
        """The system of a folder."""
        if saved.task != "srl":
            raise ValueError(f"{saved.name} is a model of the task {saved.task!r}, not of role labelling")
        with complete(saved.folder):
            recipe = SrlRecipe.from_description(saved.settings["recipe"])
            names = ("data", "space", "rules", "dimensions")
            data = Prepared.from_settings(**{name: saved.settings[name] for name in names}, device=device)
        built = build(recipe, data)
        with fitting(saved.folder):
            built.load_state_dict(saved.weights())
        return cls(recipe, built.to(data.device).eval(), data)

    @property
    def feedforward(self) -> bool:
        """Does the system answer with Init alone?"""
        return self.recipe.objective in ("local", "structured")

    def __call__(self, parsed: Any, *, decoder: Decoder = "ad3") -> list[Props]:
        """The propositions of every sentence; its predicates are given, its arguments found.

        `parsed` is what `as_sentences` takes: sentences, spaCy Docs, or TokenLists of the library conllu.
        """
        sentences = as_sentences(parsed)
        plain, corpus = self.feedforward, self.corpus(sentences)
        return label_sentences(self.model, corpus, sentences, self.data, (decoder,), feedforward=plain)[0][decoder]

    def corpus(self, sentences: Sequence[Sentence]) -> ArcCorpus:
        """Sentences as the model reads them."""
        return ArcCorpus(encode(sentences, self.data.rules, self.data.space), self.data.device)


def render(sentences: Sequence[Sentence], found: Sequence[Props], style: Format = "props") -> str:
    """Propositions as a CoNLL-2005 props file, as JSON, or as bracketed text (pretty)."""
    if style == "props":
        return props_text(found)
    if style == "json":
        pairs = zip(sentences, found, strict=True)
        return json.dumps([_as_json(s, p) for s, p in pairs], ensure_ascii=False, indent=1) + "\n"
    if style != "pretty":
        raise ValueError(f"no format is called {style!r}; choose from {', '.join(FORMATS)}")
    blocks = [
        "\n".join([" ".join(sentence.words), *(f"  {_bracketed(sentence, p.pieces)}" for p in props.propositions)])
        for sentence, props in zip(sentences, found, strict=True)
    ]
    return "\n\n".join(blocks) + "\n"


def _as_json(sentence: Sentence, props: Props) -> dict[str, Any]:
    return {
        "id": sentence.sent_id,
        "words": list(sentence.words),
        "predicates": [
            {
                "token": p.predicate,
                "word": sentence.words[p.predicate],
                "sense": p.sense,
                "arguments": [
                    {"role": a.role, "start": a.start, "end": a.end, "text": " ".join(sentence.words[a.start : a.end])}
                    for a in p.arguments
                ],
            }
            for p in props.propositions
        ],
    }


def _bracketed(sentence: Sentence, pieces: Collection[Argument]) -> str:
    """The dog [V chased] [A1 the cat]"""
    words = list(sentence.words)
    for piece in pieces:
        words[piece.start] = f"[{piece.role} {words[piece.start]}"
        words[piece.end - 1] += "]"
    return " ".join(words)
