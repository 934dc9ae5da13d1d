"""A trained role labeller: scores on a split, CoNLL-U in and roles out, export, and a batch to time strategies on."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from spen.export import Exportable
from spen.models import SavedModel
from spen.tasks.simple import check_targets
from spen.tasks.srl.build import build
from spen.tasks.srl.corpora import builtin_splits, open_corpus, prepare
from spen.tasks.srl.decoding import Decoder
from spen.tasks.srl.evaluate import evaluate
from spen.tasks.srl.exporting import exportable
from spen.tasks.srl.formats.conllu import parse_conllu
from spen.tasks.srl.predict import Format, Labeller, render
from spen.tasks.srl.recipes import find_recipe
from spen.tasks.srl.sentences import read_text, write_text
from spen.tasks.task import Opened, Progress, Scores

__all__ = ["RoleLabeller"]

_BATCH = 64
_ENDINGS: dict[Format, str] = {"props": "props", "json": "json", "pretty": "txt"}
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
        name, splits, _ = open_corpus(data or re.sub(r"-(whole|without-.*)$", "", own.name), (split,))
        sentences = splits[split]
        encoded = self.labeller.corpus(sentences).encoded
        prepared = replace(own, encoded={split: encoded}, splits={split: sentences})
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
        files = [f for path in inputs for f in (sorted(path.glob("*.conllu*")) if path.is_dir() else [path])]
        if not files:
            raise ValueError(f"{inputs[0]} holds no file *.conllu; `spen predict` reads parsed sentences in CoNLL-U")
        several = len(files) > 1 or inputs[0].is_dir()
        targets = [out / f"{_stem(file)}.{_ENDINGS[style]}" if several else out for file in files] if out else []
        if out is not None:
            check_targets(files, targets, [p for path in inputs if path.is_dir() for p in path.iterdir()])
        texts = [parse_conllu(read_text(file), str(file)) for file in files]
        if [] in texts:
            raise ValueError(f"{files[texts.index([])]} holds no sentence; CoNLL-U has a line for each word")
        every = [sentence for sentences in texts for sentence in sentences]
        found = self.labeller(every)
        print(f"{len(every)} sentences, {sum(len(s.propositions) for s in every)} predicates", file=sys.stderr)
        if out is None:
            sys.stdout.write(render(every, found, style))
            return
        rest = iter(found)
        for target, sentences in zip(targets, texts, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text(target, render(sentences, list(islice(rest, len(sentences))), style))
            yield target

    def exportable(self) -> Exportable:
        return exportable(self.name, self.labeller)

    def batch(self, size: int | None = None, **options: Any) -> Any:
        if self.labeller.feedforward:
            raise ValueError(f"{self.name} has no descent to differentiate; name a model with an energy, srl/spen say")
        wanted = size or _BATCH
        corpus = self.labeller.corpus(builtin_splits(2 * wanted)["train"])
        return corpus.batch(np.flatnonzero(corpus.widest > 0)[:wanted])[0]


def _stem(file: Path) -> str:
    return file.name.removesuffix(".gz").removesuffix(".conllu")
