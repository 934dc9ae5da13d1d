"""The bootstrap against every resample there is, and against resampling in plain Python."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spen.tasks.srl.compare import compare, compare_all, counts_of, draw, resampled_f1
from spen.tasks.srl.formats.conll2005 import write_props
from spen.tasks.srl.grammar.corpus import make_corpus
from spen.tasks.srl.score import score
from spen.tasks.srl.sentences import Props, Sentence
from tests.cli.world import spen

GOLD = make_corpus(40, seed=3)


def wrong(sentences: list[Sentence], every: int, shift: int = 0) -> list[Props]:
    """The sentences with the last argument of every so many propositions missing."""
    found, count = [], shift
    for sentence in sentences:
        props = []
        for proposition in sentence.propositions:
            count += 1
            cut = count % every == 0 and len(proposition.pieces) > 1
            props.append(replace(proposition, pieces=proposition.pieces[: -1 if cut else None]))
        found.append(Props(len(sentence), tuple(props)))
    return found


def resample(picked: tuple[int, ...] | np.ndarray, gold: list[Sentence], found: list[Props]) -> float:
    return score([gold[i] for i in picked], [found[i] for i in picked]).f1


def test_every_resample_of_four_sentences() -> None:
    gold = [s for s in GOLD if len(s.propositions) > 1][:4]
    a, b = wrong(gold, 5), wrong(gold, 2)
    every = list(itertools.product(range(4), repeat=4))
    drawn = np.array([np.bincount(picked, minlength=4) for picked in every], float)
    exact = [resample(picked, gold, a) - resample(picked, gold, b) for picked in every]
    runs = [counts_of(gold, a)], [counts_of(gold, b)]
    ours = (resampled_f1(runs[0], drawn) - resampled_f1(runs[1], drawn))[:, 0]
    np.testing.assert_allclose(ours, exact, atol=1e-10)
    found = compare(*runs, resamples=20_000)
    assert found.difference == pytest.approx(score(gold, a).f1 - score(gold, b).f1)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(exact, (0.025, 0.975))), abs=0.8)
    assert found.p == pytest.approx(2 * np.mean(np.array(exact) <= 0), abs=0.02)


def test_the_same_draws_in_plain_python() -> None:
    """Two seeds: the interval and p of the differences that plain Python computes on the same draws."""
    a, b = [wrong(GOLD, 4), wrong(GOLD, 5)], [wrong(GOLD, 3), wrong(GOLD, 4, shift=1)]
    runs = [[counts_of(GOLD, found) for found in system] for system in (a, b)]
    found = compare(*runs, resamples=60, seed=7)
    assert found.by_seed == pytest.approx([score(GOLD, x).f1 - score(GOLD, y).f1 for x, y in zip(a, b, strict=True)])
    chosen = np.random.default_rng([7, 1]).integers(0, 2, (60, 2))
    differences = []
    for row, seeds in zip(draw(len(GOLD), 60, [7, 0]).astype(int), chosen, strict=True):
        picked = np.repeat(np.arange(len(GOLD)), row)
        differences.append(np.mean([resample(picked, GOLD, a[s]) - resample(picked, GOLD, b[s]) for s in seeds]))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(differences, (0.025, 0.975))))
    tail = min(sum(d <= 0 for d in differences), sum(d >= 0 for d in differences))
    assert found.p == pytest.approx(min(1, 2 * (tail + 1) / 61))


def test_a_system_against_itself_and_the_size_of_draws() -> None:
    runs = [counts_of(GOLD, wrong(GOLD, 3))]
    same = compare(runs, runs, resamples=1200)
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)
    assert draw(5, 3).sum(1).tolist() == [5, 5, 5]
    assert not np.array_equal(draw(5, 30, 0), draw(5, 30, 1))
    assert str(same) == "+0.00 F1, 95 % interval +0.00 to +0.00, p = 1.0000"


def test_what_cannot_be_compared_is_refused() -> None:
    runs = [counts_of(GOLD, wrong(GOLD, 3))]
    with pytest.raises(ValueError, match="b has another number of runs or sentences; runs are compared seed by seed"):
        compare_all({"a": runs, "b": [*runs, *runs]})
    with pytest.raises(ValueError, match="40 gold sentences but 39 predicted"):
        counts_of(GOLD, wrong(GOLD, 3)[1:])
    with pytest.raises(ValueError, match="there is no sentence to compare the systems on"):
        compare([counts_of([], [])], [counts_of([], [])])


def test_the_command(tmp_path: Path) -> None:
    names = {"gold": GOLD, "a0": wrong(GOLD, 4), "a1": wrong(GOLD, 5), "b0": wrong(GOLD, 2), "b1": wrong(GOLD, 3)}
    files = {name: str(tmp_path / f"{name}.props") for name in names}
    for name, sentences in names.items():
        write_props(files[name], sentences)
    one = spen("score", files["gold"], files["a0"], "--compare", files["b0"], "--resamples", "200")
    expected = score(GOLD, names["a0"]).f1 - score(GOLD, names["b0"]).f1
    assert one.out.startswith(f"{expected:+.2f} F1, 95 % interval +")
    two = spen(
        "score", files["gold"], files["a0"], files["a1"], "--compare", files["b0"], "--compare", files["b1"], "--json"
    )
    found = json.loads(two.out)
    assert len(found["by_seed"]) == 2
    assert found["low"] < found["difference"] < found["high"]
    assert (found["sentences"], found["resamples"]) == (40, 10_000)
    for arguments, line in (
        ((files["a0"], files["a1"]), "one file is scored at a time, not 2; with --compare two systems are compared"),
        (
            (files["a0"], files["a1"], "--compare", files["b0"]),
            "2 files against 1; give one of each system for every s",
        ),
    ):
        refused = spen("score", files["gold"], *arguments)
        assert refused.status == 2
        assert line in refused.err
