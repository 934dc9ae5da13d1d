"""The English Web Treebank with the trees of a parser instead of gold ones: a harder problem for F(x).

    pip install spacy
    python docs/scripts/predicted_trees.py DIR predicted
    cp -r DIR/embeddings predicted
    spen reproduce table2 --data predicted --out OUT

DIR holds `ewt/`. A training sentence is parsed by a parser that was trained on the other four fifths of the training
sentences, other sentences by one trained on all of them. The parser, spaCy's, reads words and gold tags. Words, tags,
predicates and arguments stay as they are. It prints the share of words with the right head, and with relation and head.
"""

from __future__ import annotations

import gzip
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import spacy
from spacy.tokens import Doc
from spacy.training import Example

from spen.tasks.srl.formats.ewt import SPLITS, read_tsv, tsv_text
from spen.tasks.srl.sentences import ROOT, Sentence

FOLDS = 5
EPOCHS = 4
BATCH = 32
PARSER: dict[str, Any] = {  # spaCy's default, which also reads the tag
    "@architectures": "spacy.TransitionBasedParser.v2",
    "state_type": "parser",
    "extra_state_tokens": False,
    "hidden_width": 64,
    "maxout_pieces": 2,
    "use_upper": True,
    "nO": None,
    "tok2vec": {
        "@architectures": "spacy.Tok2Vec.v2",
        "embed": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": 96,
            "attrs": ["NORM", "PREFIX", "SUFFIX", "TAG"],
            "rows": [5000, 1000, 2500, 200],
            "include_static_vectors": False,
        },
        "encode": {
            "@architectures": "spacy.MaxoutWindowEncoder.v2",
            "width": 96,
            "depth": 4,
            "window_size": 1,
            "maxout_pieces": 3,
        },
    },
}


class Parser:
    """Trained on some sentences, in ``EPOCHS`` epochs from seed 0."""

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        spacy.util.fix_random_seed(0)
        self.language = spacy.blank("en")
        parser: Any = self.language.add_pipe("parser", config={"model": PARSER})
        examples = [Example(self._doc(s), self._doc(s, trees=True)) for s in sentences]
        self.language.initialize(lambda: examples)
        optimizer, order = self.language.create_optimizer(), random.Random(0)
        for _ in range(EPOCHS):
            order.shuffle(examples)
            for first in range(0, len(examples), BATCH):
                parser.update(examples[first : first + BATCH], drop=0.1, sgd=optimizer)

    def __call__(self, sentences: Sequence[Sentence]) -> list[Sentence]:
        """The sentences with the parser's trees."""
        parser: Any = self.language.get_pipe("parser")
        found = []
        for sentence, doc in zip(sentences, parser.pipe(map(self._doc, sentences)), strict=True):
            roots = [word.i for word in doc if word.head.i == word.i]
            # The parser may split a sentence: further roots depend on the first.
            above = {root: roots[0] if k else ROOT for k, root in enumerate(roots)}
            heads = tuple(above.get(word.i, word.head.i) for word in doc)
            names = [word.dep_ if word.i not in above else "parataxis" for word in doc]
            names[roots[0]] = "root"
            found.append(replace(sentence, heads=heads, deprels=tuple(names)))
        return found

    def _doc(self, s: Sentence, *, trees: bool = False) -> Doc:
        known = {}
        if trees:
            known["heads"] = [i if h == ROOT else h for i, h in enumerate(s.heads)]
            known["deps"] = ["ROOT" if h == ROOT else d for h, d in zip(s.heads, s.deprels, strict=True)]
        return Doc(self.language.vocab, words=list(s.words), tags=list(s.xpos), **known)


def agreement(name: str, gold: Sequence[Sentence], found: Sequence[Sentence]) -> str:
    """Attachment scores, punctuation included."""
    pairs = [
        (h == g, h == g and d == e)
        for a, b in zip(found, gold, strict=True)
        for h, g, d, e in zip(a.heads, b.heads, a.deprels, b.deprels, strict=True)
    ]
    head, both = (100 * sum(pair[k] for pair in pairs) / len(pairs) for k in (0, 1))
    return f"{name:5s} {len(gold):6d} sentences, right head {head:.2f} %, right head and relation {both:.2f} %"


def main(source: str, out: str) -> None:
    """Write the three splits."""
    gold = {split: read_tsv(Path(source) / "ewt" / f"ewt-srl.{split}.tsv.gz") for split in SPLITS}
    folder = Path(out) / "ewt"
    folder.mkdir(parents=True, exist_ok=True)
    parsed: dict[int, Sentence] = {}
    for fold in range(FOLDS):
        numbers = range(fold, len(gold["train"]), FOLDS)
        parser = Parser([s for i, s in enumerate(gold["train"]) if i % FOLDS != fold])
        parsed |= dict(zip(numbers, parser([gold["train"][i] for i in numbers]), strict=True))
    parser = Parser(gold["train"])
    found = {"train": [parsed[i] for i in range(len(gold["train"]))], "dev": parser(gold["dev"])}
    found["test"] = parser(gold["test"])
    for split, sentences in found.items():
        with gzip.open(folder / f"ewt-srl.{split}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write(tsv_text(sentences))
        print(agreement(split, gold[split], sentences), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
