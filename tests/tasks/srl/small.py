"""A small prepared corpus, shared by the tests of the systems; made once a process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spen.tasks.srl.arcs import ArcBatch, ArcTarget
from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.corpora import Prepared, builtin_splits, prepare
from spen.tasks.srl.formats.conll2005 import props_text
from spen.tasks.srl.local import Scored
from spen.tasks.srl.sentences import Sentence, write_text


@cache
def prepared(templates: str = "appendix", size: int = 90) -> Prepared:
    data = prepare(builtin_splits(size), name="small", templates=templates)
    data.dimensions = 32
    return data


def batch(size: int = 8) -> tuple[ArcBatch, ArcTarget]:
    corpus = prepared().corpora["train"]
    usable = corpus.usable
    many = usable[np.argsort(-corpus.predicates[usable], kind="stable")]
    # Half with several predicates, half with one, so that there is padding of every kind.
    return corpus.batch(np.concatenate([many[: size // 2], many[-(size - size // 2) :]]))


def scored(size: int = 4, *, roles: int | None = None, words: int = 5, arc: int = 6) -> tuple[Tensor, Scored]:
    """A point y of the simplices and random features, in double precision, around a real batch's masks."""
    x, _ = batch(size)
    generator = torch.Generator().manual_seed(1)
    a = len(prepared().space.roles) if roles is None else roles

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    b, n, k = x.mask.shape
    pairs = torch.rand(b, n, k, k, generator=generator) < 0.3
    both = x.mask[..., :, None] & x.mask[..., None, :]
    conflicts = (pairs | pairs.transpose(2, 3)) & both & ~torch.eye(k, dtype=torch.bool)
    features = Scored(
        scores=draw(b, n, k, a) * x.mask[..., None],
        arc=draw(b, n, k, arc) * x.mask[..., None],
        predicate=draw(b, n, words) * x.predicate_mask[..., None],
        argument=draw(b, n, k, words) * x.mask[..., None],
        mask=x.mask,
        predicate_mask=x.predicate_mask,
        conflicts=conflicts,
        spans=x.spans,
    )
    y = torch.softmax(2 * draw(b, n, k, a), -1)
    empty = torch.zeros(a, dtype=torch.float64)
    empty[0] = 1
    return torch.where(x.mask[..., None], y, empty), features


def count_candidates(sentences: Iterable[Sentence], rules: CandidateRules) -> tuple[int, int, int, int]:
    """Predicates, gold arguments, candidates, and gold arguments that are candidates."""
    pairs = [pair for s in sentences for pair in zip(s.propositions, rules(s), strict=True)]
    arguments = candidates = covered = 0
    for proposition, found in pairs:
        gold, offered = {(a.start, a.end) for a in proposition.arguments}, {c[:2] for c in found}
        arguments, candidates, covered = arguments + len(gold), candidates + len(offered), covered + len(gold & offered)
    return len(pairs), arguments, candidates, covered


def write_columns(path: Path, sentences: Iterable[Sentence], columns: Sequence[str]) -> None:
    """A file of CoNLL-2005 with these fields of the sentences, and `props` last."""
    lines: list[str] = []
    for sentence in sentences:
        table = []
        for name in columns:
            if name == "props":
                table += list(zip(*(row.split() for row in props_text([sentence]).split("\n")[:-2]), strict=True))
            elif name == "heads":
                table.append(tuple(str(head + 1) for head in sentence.heads))
            else:
                table.append(getattr(sentence, {"tags": "xpos", "syntax": "parse"}.get(name, name)))
        lines += ["\t".join(row) for row in zip(*table, strict=True)] + [""]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n".join(lines) + "\n" if lines else "")
