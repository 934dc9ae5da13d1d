"""A trained role labeller: parsed sentences in, roles out; its scores on a split, its export, a batch to time."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

import spen
from spen.export import Exportable
from spen.models import SavedModel, find_model
from spen.pretrained import complete, fitting
from spen.tasks.simple import check_targets
from spen.tasks.srl.arcs import ArcCorpus
from spen.tasks.srl.build import build
from spen.tasks.srl.corpora import Prepared, builtin_splits, open_corpus, prepare
from spen.tasks.srl.decoding import Decoder
from spen.tasks.srl.evaluate import evaluate, label_sentences
from spen.tasks.srl.exporting import exportable
from spen.tasks.srl.formats.conll2005 import props_text
from spen.tasks.srl.formats.conllu import as_sentences, read_conllu
from spen.tasks.srl.recipes import SrlRecipe, find_recipe
from spen.tasks.srl.sentences import Argument, Props, Sentence, write_text
from spen.tasks.task import Opened, Progress, Scores

Format = Literal["props", "json", "pretty"]
_ENDINGS: dict[Format, str] = {"props": "props", "json": "json", "pretty": "txt"}
_DECODERS: dict[Decoder, str] = {"argmax": "argmax", "greedy": "+ H", "ad3": "+ AD³"}
_BATCH = 64
_FEW = 0.02
"""Up to this share of words may have an unknown relation without a warning."""


@dataclass(frozen=True)
class Labeller(Opened):
    """A trained system, ready for sentences with trees."""

    name: str
    recipe: SrlRecipe
    model: spen.SPEN
    data: Prepared

    @classmethod
    def open(cls, model: Path | str | SavedModel, *, device: torch.device | str = "cpu") -> Labeller:
        """A model shipped with the package by name, or the system of a run folder or a saved model."""
        saved = model if isinstance(model, SavedModel) else find_model(model)
        if saved.task != "srl":
            raise ValueError(f"{saved.name} is a model of the task {saved.task!r}, not of role labelling")
        with complete(saved.folder):
            recipe = SrlRecipe.from_description(saved.settings["recipe"])
            names = ("data", "space", "rules", "dimensions")
            data = Prepared.from_settings(**{name: saved.settings[name] for name in names}, device=device)
        built = build(recipe, data)
        with fitting(saved.folder):
            built.load_state_dict(saved.weights())
        return cls(saved.name, recipe, built.to(data.device).eval(), data)

    @classmethod
    def fresh(cls, name: str) -> Labeller:
        """A recipe's model with fresh weights, on the built-in corpus."""
        recipe = find_recipe(name)
        data = prepare(builtin_splits(2 * _BATCH), name="builtin", templates=recipe.templates)
        return cls(name, recipe, build(recipe, data), data)

    @property
    def feedforward(self) -> bool:
        """Whether the system predicts with Init alone."""
        return self.recipe.objective in ("local", "structured")

    def __call__(self, parsed: Any, *, decoder: Decoder = "ad3") -> list[Props]:
        """The propositions of every sentence; its predicates are given, its arguments found.

        `parsed` is what `as_sentences` takes: sentences, spaCy Docs, or TokenLists of the library conllu.
        """
        sentences = as_sentences(parsed)
        if doubt := self.other_relations(sentences):
            warnings.warn(doubt, stacklevel=2)
        return self._label(sentences, decoder)

    def _label(self, sentences: Sequence[Sentence], decoder: Decoder = "ad3") -> list[Props]:
        corpus = self.corpus(sentences)
        return label_sentences(self.model, corpus, (decoder,), feedforward=self.feedforward)[0][decoder]

    def other_relations(self, sentences: Sequence[Sentence]) -> str:
        """A sentence on relations that the model was not trained on, if more than 2 % of the words have one, or "".

        A subtype of a known relation (``nmod:poss`` of ``nmod``) is not counted.
        """
        known = {relation.partition(":")[0] for relation in self.data.space.deprels}
        words = [relation for sentence in sentences for relation in sentence.deprels]
        found = Counter(relation for relation in words if relation.partition(":")[0] not in known)
        if found.total() <= _FEW * len(words):
            return ""
        names = [relation for relation, _ in found.most_common()]
        some = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        universal = " (Universal Dependencies: Stanza or UDPipe)" if {"nsubj", "obj", "obl"} <= known else ""
        return (
            f"{self.name} was not trained on the relations {some}, which {found.total()} of {len(words)} words have, "
            f"and misses their arguments: use the parser of its training{universal}, or train a model on such parses"
        )

    def corpus(self, sentences: Sequence[Sentence]) -> ArcCorpus:
        """Sentences encoded for the model."""
        return ArcCorpus(sentences, self.data.rules, self.data.space, self.data.device)

    def evaluate(self, split: str, data: str = "", *, progress: Progress | None = None, **options: Any) -> Scores:
        name, splits, _ = open_corpus(data or re.sub(r"-(whole|without-.*)$", "", self.data.name), (split,))
        sentences = splits[split]
        self._say_other_relations(sentences)
        found, _ = evaluate(self.model, self.corpus(sentences), feedforward=self.feedforward)
        lines = [f"{self.name} on {len(sentences)} {split} sentences of {name}, {found['predicates']} predicates"]
        for decoder, label in _DECODERS.items():
            p, r, f1 = (found[key][decoder] for key in ("precision", "recall", "f1"))
            lines.append(f"  {label:8s} F1 {f1:6.2f}   precision {p:6.2f}   recall {r:6.2f}")
        lines.append(f"  {found['violations']} constraints violated before rounding")
        return Scores({"data": name, "sentences": len(sentences), **found}, tuple(lines))

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
        targets = []
        if out is not None:
            several = len(files) > 1 or inputs[0].is_dir()
            stems = [file.name.removesuffix(".gz").removesuffix(".conllu") for file in files]
            targets = [out / f"{stem}.{_ENDINGS[style]}" if several else out for stem in stems]
            check_targets(files, targets, [p for path in inputs if path.is_dir() for p in path.iterdir()])
        texts = [read_conllu(file) for file in files]
        if [] in texts:
            raise ValueError(f"{files[texts.index([])]} holds no sentence; CoNLL-U has a line for each word")
        every = [sentence for sentences in texts for sentence in sentences]
        self._say_other_relations(every)
        found = self._label(every)
        print(f"{len(every)} sentences, {sum(len(s.propositions) for s in every)} predicates", file=sys.stderr)
        if out is None:
            sys.stdout.write(render(every, found, style))
        remaining = iter(found)
        for target, sentences in zip(targets, texts, strict=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text(target, render(sentences, list(islice(remaining, len(sentences))), style))
            yield target

    def _say_other_relations(self, sentences: Sequence[Sentence]) -> None:
        if doubt := self.other_relations(sentences):
            print(doubt, file=sys.stderr)

    def exportable(self) -> Exportable:
        return exportable(self.name, self.recipe, self.model, self.data.space, descend=not self.feedforward)

    def batch(self, size: int | None = None, **options: Any) -> Any:
        if self.feedforward:
            raise ValueError(f"{self.name} has no descent to differentiate; name a model with an energy, srl/spen say")
        wanted = size or _BATCH
        corpus = self.corpus(builtin_splits(2 * wanted)["train"])
        return corpus.batch(corpus.usable[:wanted])[0]


def render(sentences: Sequence[Sentence], found: Sequence[Props], style: Format = "props") -> str:
    """Propositions as a CoNLL-2005 props file, as JSON, or as bracketed text (pretty)."""
    if style == "props":
        return props_text(found)
    if style == "json":
        pairs = zip(sentences, found, strict=True)
        return json.dumps([_as_json(s, p) for s, p in pairs], ensure_ascii=False, indent=1) + "\n"
    if style != "pretty":
        raise ValueError(f"no format is called {style!r}; choose from {', '.join(_ENDINGS)}")
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
