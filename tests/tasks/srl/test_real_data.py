"""The figures of the real corpora; skipped where they are not at hand."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

import pytest

from spen.tasks.locations import find_data
from spen.tasks.srl.candidates import CandidateRules
from spen.tasks.srl.constituents import dependencies, parse_bits, parse_brackets
from spen.tasks.srl.formats.conll2005 import props_text, read_props
from spen.tasks.srl.formats.ewt import SPLITS, benchmark, make_ewt, read_tsv, tsv_text
from spen.tasks.srl.formats.folder import read_splits
from spen.tasks.srl.obtain import JOINED, check_ewt, find_archives
from spen.tasks.srl.score import score_files, score_table
from spen.tasks.srl.sentences import Sentence, check_tree, find_roles, is_core
from spen.tasks.srl.vectors import read_vectors

from .small import count_candidates


def need(*parts: str) -> Path:
    try:
        return find_data(*parts)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@cache
def join(folder: Path) -> tuple[dict[str, list[Sentence]], list[str]] | None:
    """The corpus made from the raw archives, where they are at hand."""
    archives = find_archives(folder / "raw")
    return make_ewt(*archives.values()) if len(archives) == 2 else None


@pytest.fixture(scope="module")
def ewt() -> dict[str, list[Sentence]]:
    folder = need("srl", "ewt")
    joined = join(folder)  # read already, and the same: a test compares checksums
    splits = read_splits(folder) if joined is None else joined[0]
    return {split: [s if joined is None else benchmark(s) for s in sentences] for split, sentences in splits.items()}


def test_the_official_table_to_the_byte() -> None:
    folder = need("srl", "eval_fixture")
    table = score_table(score_files(folder / "gold.props.gz", folder / "pred.props.gz"))
    assert table.encode() == (folder / "srl-eval.out").read_bytes()
    for name in ("gold", "pred"):
        path = folder / f"{name}.props.gz"
        assert props_text(read_props(path)).encode() == gzip.decompress(path.read_bytes())


def test_the_join_is_the_prepared_corpus_to_the_byte() -> None:
    folder = need("srl", "ewt")
    joined = join(folder)
    if joined is None:
        pytest.skip("the raw archives are not there")
    splits, dropped = joined
    assert sum(map(len, splits.values())) == 16_552
    assert len(dropped) == 70
    check_ewt(splits, folder)
    for split in SPLITS:
        text = gzip.decompress((folder / f"ewt-srl.{split}.tsv.gz").read_bytes())
        assert hashlib.sha256(text).hexdigest() == JOINED[split]


def test_the_tsv_round_trips_to_the_byte() -> None:
    path = need("srl", "ewt") / "ewt-srl.dev.tsv.gz"
    assert tsv_text(read_tsv(path)).encode() == gzip.decompress(path.read_bytes())


def test_the_benchmark_s_counts(ewt: dict[str, list[Sentence]]) -> None:
    propositions = [[p for s in ewt[split] for p in s.propositions] for split in SPLITS]
    assert [len(ewt[split]) for split in SPLITS] == [12_526, 1_968, 2_058]
    assert [len(found) for found in propositions] == [26_569, 3_237, 3_115]
    assert [sum(len(p.arguments) for p in found) for found in propositions] == [67_497, 7_878, 7_659]
    assert len(find_roles(ewt["train"])) == 54
    assert {s.genre for s in ewt["train"]} == {"weblog", "email", "newsgroup", "answers", "reviews"}
    for sentence in ewt["dev"]:
        for proposition in sentence.propositions:
            core = [a.role for a in proposition.arguments if is_core(a.role)]
            assert len(core) == len(set(core))


def test_candidates_reach_95_percent(ewt: dict[str, list[Sentence]]) -> None:
    rules = CandidateRules.fit(ewt["train"])
    for split in ("dev", "test"):
        predicates, arguments, candidates, covered = count_candidates(ewt[split], rules)
        assert covered / arguments > 0.975
        assert covered / candidates > 0.5
        assert candidates / predicates < 5
    _, arguments, _, covered = count_candidates(ewt["dev"], CandidateRules())
    assert covered / arguments > 0.985


def test_phrases_give_trees(ewt: dict[str, list[Sentence]]) -> None:
    same = tokens = 0
    for sentence in ewt["dev"]:
        words = [w.replace("(", "-LRB-").replace(")", "-RRB-") for w in sentence.words]
        rows = zip(sentence.parse, sentence.xpos, words, strict=True)
        text = " ".join(bit.replace("*", f"({tag} {word})") for bit, tag, word in rows)
        ((_, tree),) = parse_brackets(f"( {text} )", "dev")
        assert parse_bits(tree) == sentence.parse
        heads, _ = dependencies(tree)
        check_tree(heads, "dev", range(len(sentence)))
        same += sum(a == b for a, b in zip(heads, sentence.heads, strict=True))
        tokens += len(sentence)
    assert same / tokens > 0.7


def test_the_embeddings() -> None:
    vectors = read_vectors(need("srl", "embeddings"))
    assert vectors.matrix.shape == (23_211, 300)
    assert vectors.words[:3] == ("the", ".", ",")
