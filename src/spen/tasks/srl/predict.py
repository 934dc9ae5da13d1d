"""Parsed text in, roles out: a run folder, or a shipped model, labels CoNLL-U.

python -m spen.tasks.srl.predict MODEL sentences.conllu --format props|json|pretty -o out.props
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

import spen
from spen.pretrained import is_pretrained, read_config
from spen.tasks.shipped import about, check_model
from spen.tasks.srl.arcs import ArcCorpus
from spen.tasks.srl.conll2005 import props_text
from spen.tasks.srl.conllu import read_conllu
from spen.tasks.srl.corpora import Prepared, rules_from_json
from spen.tasks.srl.decoding import DECODERS, Decoder
from spen.tasks.srl.encoding import encode
from spen.tasks.srl.evaluate import label_sentences
from spen.tasks.srl.features import FeatureSpace
from spen.tasks.srl.recipes import SrlRecipe
from spen.tasks.srl.sentences import Argument, Props, Sentence, write_text
from spen.tasks.srl.systems import build
from spen.tasks.srl.training import recipe_of
from spen.training import Run, load_weights

__all__ = ["FORMATS", "Labeller", "main", "render"]

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
        """The system of a run folder, or a model shipped with the package."""
        held = _of_run(model) if Path(model).is_dir() else _of_package(str(model))
        data = Prepared(
            name=held.data,
            rules=rules_from_json(json.dumps(held.rules)),
            space=FeatureSpace.from_json(json.dumps(held.space)),
            encoded={},
            word_vectors=None,
            device=torch.device(device),
            dimensions=held.weights["features.words.table.weight"].shape[1],
        )
        built = build(held.recipe, data)
        built.load_state_dict(held.weights)
        return cls(held.recipe, built.to(data.device).eval(), data)

    @property
    def feedforward(self) -> bool:
        """Does the system answer with Init alone?"""
        return self.recipe.objective in ("local", "structured")

    def __call__(self, sentences: Sequence[Sentence], *, decoder: Decoder = "ad3") -> list[Props]:
        """The propositions of every sentence; its predicates are given, its arguments found."""
        corpus = ArcCorpus(encode(sentences, self.data.rules, self.data.space), self.data.device)
        return label_sentences(
            self.model,
            corpus,
            sentences,
            self.data.roles,
            self.data.core,
            decoder=decoder,
            feedforward=self.feedforward,
        )


class _Held(NamedTuple):
    """What it takes to build a trained system again."""

    recipe: SrlRecipe
    data: str
    space: dict[str, Any]
    rules: Any
    weights: dict[str, Tensor]


def _of_run(folder: Path | str) -> _Held:
    if is_pretrained(folder):
        return _of_pretrained(folder)
    run = Run.open(folder)
    path = run.folder / "srl.json"
    if not path.is_file():
        raise ValueError(f"{folder} has no srl.json beside its weights, so its features cannot be read; train it again")
    held, description = json.loads(path.read_text(encoding="utf-8")), run.description()["recipe"]
    return _Held(recipe_of(description), str(description.get("data", "")), held["space"], held["rules"], run.load())


def _of_pretrained(folder: Path | str) -> _Held:
    config = read_config(folder)
    if config["builder"] != "srl":
        raise ValueError(f"{folder} holds a model of the task {config['builder']!r}, not of role labelling")
    held = config["settings"]
    weights = load_weights(Path(folder) / "model.safetensors")
    return _Held(SrlRecipe.from_description(held["recipe"]), held["data"], held["space"], held["rules"], weights)


def _of_package(name: str) -> _Held:
    check_model(name)
    held = about(name)
    if held["task"] != "srl":
        raise ValueError(f"{name} is a model of the task {held['task']!r}, not of role labelling")
    with resources.as_file(resources.files("spen") / "weights" / f"{name}.safetensors") as path:
        weights = load_weights(path)
    recipe = recipe_of({"task": "srl", **held["recipe"]})
    return _Held(recipe, held["data"], held["space"], held["rules"], weights)


def render(sentences: Sequence[Sentence], found: Sequence[Props], style: Format = "props") -> str:
    """Propositions as a CoNLL-2005 props file, as JSON, or for the eye."""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; errors are one line and status 2."""
    parser = argparse.ArgumentParser(prog="python -m spen.tasks.srl.predict", description="Label parsed text.")
    parser.add_argument("run", type=Path)
    parser.add_argument("input", type=Path, help="CoNLL-U, gzipped or not")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--format", choices=FORMATS, default="props")
    parser.add_argument("--decoder", choices=DECODERS, default="ad3")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(arguments)
    try:
        labeller = Labeller.open(given.run, device=given.device)
        sentences = read_conllu(given.input).sentences
        text = render(sentences, labeller(sentences, decoder=given.decoder), given.format)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    predicates = sum(len(s.propositions) for s in sentences)
    print(f"{len(sentences)} sentences, {predicates} predicates", file=sys.stderr)
    if given.out is None:
        sys.stdout.write(text)
    else:
        write_text(given.out, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
