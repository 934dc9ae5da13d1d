"""A trained role labeller: scores on a split, CoNLL-U in and roles out, export, and a batch to time strategies on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from spen.export import Exportable
from spen.models import SavedModel
from spen.tasks.srl.arcs import ArcCorpus
from spen.tasks.srl.build import build
from spen.tasks.srl.corpora import builtin_splits, open_corpus, prepare
from spen.tasks.srl.decoding import Decoder
from spen.tasks.srl.encoding import encode
from spen.tasks.srl.evaluate import evaluate
from spen.tasks.srl.exporting import exportable
from spen.tasks.srl.formats.conllu import read_conllu
from spen.tasks.srl.predict import Format, Labeller, render
from spen.tasks.srl.recipes import find_recipe
from spen.tasks.srl.sentences import write_text
from spen.tasks.task import Opened, Progress, Scores

__all__ = ["RoleLabeller"]

_BATCH = 64
_DECODERS: dict[Decoder, str] = {"argmax": "argmax", "greedy": "+ H", "ad3": "+ AD³"}


class RoleLabeller(Opened):
    """``labeller`` labels sentences; ``model`` is the SPEN behind it."""

    def __init__(self, name: str, labeller: Labeller) -> None:
        self.name, self.labeller, self.model = name, labeller, labeller.model

    @classmethod
    def open(cls, saved: SavedModel, device: str = "cpu") -> RoleLabeller:
        """The model of a folder."""
        return cls(saved.name, Labeller.of(saved, device=device))

    @classmethod
    def fresh(cls, name: str) -> RoleLabeller:
        """A recipe's model with fresh weights, on the built-in corpus."""
        recipe = find_recipe(name)
        data = prepare(builtin_splits(2 * _BATCH), name="builtin", templates=recipe.templates)
        return cls(name, Labeller(recipe, build(recipe, data), data))

    def evaluate(self, split: str, data: str = "", *, progress: Progress | None = None, **options: Any) -> Scores:
        own = self.labeller.data
        name, splits, _ = open_corpus(data or own.name.partition("-")[0])
        sentences = splits[split]
        encoded = {split: encode(sentences, own.rules, own.space)}
        prepared = replace(own, encoded=encoded, splits={split: sentences})
        plain = self.labeller.feedforward
        result = evaluate(self.labeller.model, prepared, split, decoders=tuple(_DECODERS), feedforward=plain)
        lines = [f"{self.name} on {len(sentences)} {split} sentences of {name}, {result.predicates} predicates"]
        for decoder, label in _DECODERS.items():
            p, r, f1 = (part[decoder] for part in (result.precision, result.recall, result.f1))
            lines.append(f"  {label:8s} F1 {f1:6.2f}   precision {p:6.2f}   recall {r:6.2f}")
        lines.append(f"  {result.violations} constraints violated before rounding")
        return Scores({"data": name, "sentences": len(sentences), **result.as_dict()}, tuple(lines))

    def predict(
        self,
        inputs: Sequence[Path],
        out: Path | None,
        *,
        progress: Progress | None = None,
        style: Format = "props",
        **options: Any,
    ) -> Iterator[Path]:
        if len(inputs) != 1:
            raise ValueError(f"roles are labelled one CoNLL-U file at a time, not {len(inputs)}")
        sentences = read_conllu(inputs[0]).sentences
        if not sentences:
            raise ValueError(f"{inputs[0]} holds no sentence; CoNLL-U has a line for each word")
        text = render(sentences, self.labeller(sentences), style)
        predicates = sum(len(s.propositions) for s in sentences)
        if out is None:
            sys.stdout.write(text)
        else:
            write_text(out, text)
        print(f"{len(sentences)} sentences, {predicates} predicates", file=sys.stderr)
        return iter(() if out is None else (out,))

    def exportable(self) -> Exportable:
        return exportable(self.name, self.labeller)

    def batch(self, size: int | None = None, **options: Any) -> Any:
        if self.labeller.feedforward:
            raise ValueError(f"{self.name} has no descent to differentiate; name a model with an energy, srl/spen say")
        wanted, own = size or _BATCH, self.labeller.data
        corpus = ArcCorpus(encode(builtin_splits(2 * wanted)["train"], own.rules, own.space))
        return corpus.batch(np.flatnonzero(corpus.widest > 0)[:wanted])[0]
