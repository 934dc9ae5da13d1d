"""Everything a system is trained and tested on: splits as arc corpora, the feature space and the word vectors.

Candidates, feature space and encodings are computed once and stored in a cache folder that many runs share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spen.storage import replacing
from spen.tasks.srl.arcs import ArcCorpus
from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.encoding import Encoded, encode
from spen.tasks.srl.features import PATH, SIMPLE_TEMPLATES, TEMPLATES, FeatureSpace
from spen.tasks.srl.formats.folder import NAMES, SPLITS, Splits, locate, read_splits
from spen.tasks.srl.grammar.corpus import GENRES, make_corpus
from spen.tasks.srl.vectors import WordVectors, read_vectors

APPENDIX_TEMPLATES = tuple(name for name in SIMPLE_TEMPLATES if name != "p.frame")
"""Words, tags and dependents of predicate and argument, path and distance. Conjunctions are left to the network, and
so is p.frame, since the list of all dependents of a verb is a conjunction too."""

TEMPLATE_SETS: Mapping[str, tuple[str, ...]] = {"appendix": APPENDIX_TEMPLATES, "all": TEMPLATES}
_VERSION = 4


@dataclass
class Prepared:
    """The data of one experiment: how sentences are encoded, and the encoded splits."""

    name: str
    rules: CandidateRules
    space: FeatureSpace
    corpora: dict[str, ArcCorpus]
    word_vectors: WordVectors | None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dimensions: int = 300  # of the word embeddings where no vectors are given

    @classmethod
    def from_settings(
        cls,
        data: str,
        space: dict[str, Any],
        rules: list[str] | None,
        dimensions: int,
        device: torch.device | str = "cpu",
    ) -> Prepared:
        """The data of a saved model: enough to encode other sentences."""
        known, paths = FeatureSpace.from_dict(space), None if rules is None else frozenset(rules)
        return cls(data, CandidateRules(paths), known, {}, None, torch.device(device), dimensions)

    def settings(self, dimensions: int) -> dict[str, Any]:
        """The inverse of from_settings."""
        space, rules = self.space.to_dict(), self.rules.to_list()
        return {"data": self.name, "space": space, "rules": rules, "dimensions": dimensions}

    def role_paths(self) -> Tensor:  # (paths, roles) bool
        """Which roles the arguments of each path have in training; the empty label always. Rare paths share a row."""
        allowed = torch.zeros(len(self.space.features[PATH]), len(self.space.roles), dtype=torch.bool)
        allowed[:, 0] = True
        if "train" in self.corpora:  # a saved model has this table among its weights
            encoded = self.corpora["train"].encoded
            rows = (encoded.arc_features[:, PATH] - self.space.first_row(PATH)).clip(min=0)  # as ArcScorer reads them
            allowed[rows, encoded.arcs[:, 4]] = True
        return allowed

    def word_table(self) -> Tensor:  # (words, D)
        """Initial word embeddings."""
        if self.word_vectors is not None:
            return self.word_vectors.table(self.space.words)
        table = torch.randn(len(self.space.words), self.dimensions, generator=torch.Generator().manual_seed(0))
        table[0] = 0
        return table


def builtin_splits(size: int = 900, *, seed: int = 0) -> Splits:
    """The grammar's corpus: train, dev and test of `size`, a third and a third sentences."""
    part = max(1, size // 3)
    corpus = make_corpus(size + 2 * part, seed=seed, genres=GENRES)
    return {"train": corpus[:size], "dev": corpus[size : size + part], "test": corpus[size + part :]}


def open_corpus(data: str, wanted: Sequence[str] = SPLITS, *, size: int = 3000) -> tuple[str, Splits, Path | None]:
    """(name, splits, word vectors) of ``builtin`` (`size` training sentences), ``ewt``, ``conll2005`` or a folder."""
    folder = locate(data)
    if folder is None:
        return "builtin", builtin_splits(size), None
    vectors = folder / "embeddings"
    name = data if data in NAMES else str(folder)
    return name, read_splits(folder, wanted), vectors if vectors.is_dir() else None


def without_genre(splits: Splits, genre: str) -> Splits:
    """Train and dev without the genre; test holds the sentences of the genre from every split."""
    genres = sorted({sentence.genre for part in splits.values() for sentence in part})
    if genre not in genres:
        raise ValueError(f"no sentence is of genre {genre!r}; there are {', '.join(genres)}")
    others = {name: [s for s in splits[name] if s.genre != genre] for name in ("train", "dev")}
    return {**others, "test": [s for part in splits.values() for s in part if s.genre == genre]}


def prepare(
    splits: Splits,
    *,
    name: str,
    templates: str = "appendix",
    vectors: Path | None = None,
    cache: Path | None = None,
    device: torch.device | str = "cpu",
) -> Prepared:
    """Fit candidates and features on `train` and encode every split; the result is stored in `cache` by content."""
    if templates not in TEMPLATE_SETS:
        raise ValueError(f"no template set is called {templates!r}; choose from {', '.join(TEMPLATE_SETS)}")
    words = read_vectors(vectors) if vectors is not None else None
    file = f"srl-{Path(name).name}-{templates}-{_digest(splits, templates, words)}.npz"
    path = None if cache is None else cache / file
    if path is not None and path.is_file():
        rules, space, encoded = _load(path, list(splits))
    else:
        rules = CandidateRules.fit(splits["train"])
        extra = words.words if words is not None else ()
        space = FeatureSpace.fit(splits["train"], rules, templates=TEMPLATE_SETS[templates], extra_words=extra)
        encoded = {split: encode(sentences, rules, space) for split, sentences in splits.items()}
        if path is not None:
            _save(path, rules, space, encoded)
    place = torch.device(device)
    corpora = {split: ArcCorpus(splits[split], rules, space, place, found) for split, found in encoded.items()}
    return Prepared(name, rules, space, corpora, words, place)


def _digest(splits: Splits, templates: str, words: WordVectors | None) -> str:
    digest = hashlib.sha256("\n".join([str(_VERSION), templates, *(words.words if words else ())]).encode())
    for name, sentences in splits.items():
        digest.update(name.encode())
        for sentence in sentences:
            digest.update(repr(sentence).encode())
    return digest.hexdigest()[:16]


def _save(path: Path, rules: CandidateRules, space: FeatureSpace, encoded: Mapping[str, Encoded]) -> None:
    text = json.dumps({"rules": rules.to_list(), "space": space.to_dict()}).encode()
    arrays: dict[str, Any] = {f"{split}.{name}": a for split, e in encoded.items() for name, a in vars(e).items()}
    with replacing(path) as temporary:
        np.savez_compressed(temporary, text=np.frombuffer(text, np.uint8), **arrays)


def _load(path: Path, splits: Sequence[str]) -> tuple[CandidateRules, FeatureSpace, dict[str, Encoded]]:
    with np.load(path, allow_pickle=False) as archive:
        text = json.loads(archive["text"].tobytes())
        names = [f.name for f in fields(Encoded)]
        encoded = {split: Encoded(**{name: archive[f"{split}.{name}"] for name in names}) for split in splits}
    return CandidateRules(frozenset(text["rules"])), FeatureSpace.from_dict(text["space"]), encoded
