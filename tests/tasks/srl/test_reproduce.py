"""The whole of Table 2 in small: train, resume, evaluate, report, predict."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spen.models import open_model
from spen.tasks.srl import corpora
from spen.tasks.srl import reproduce as module
from spen.tasks.srl.corpora import builtin_splits, prepare, without_genre
from spen.tasks.srl.formats.conll2005 import read_props
from spen.tasks.srl.predict import Labeller, render
from spen.tasks.srl.recipes import SrlRecipe
from spen.tasks.srl.reproduce import RESULT, Job, Table, reproduce
from spen.tasks.srl.score import score
from spen.tasks.srl.table import rows_of
from spen.tasks.srl.task import TASK, changed_row
from spen.tasks.task import ReproduceOrder
from tests.tasks.srl.test_vectors import write_vectors

QUICK = SrlRecipe.quick


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """A small network for two epochs at most, on a tiny corpus."""
    shrink = {"pretrain_epochs": 2, "clamped_epochs": 1, "joint_epochs": 1, "width": 32, "hidden": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SrlRecipe, "quick", lambda self: replace(QUICK(self), **shrink))
        patch.setattr(corpora, "builtin_splits", lambda size: builtin_splits(90))
        yield


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> ReproduceOrder:
    """local and spen, trained with a genre left out as well."""
    out = tmp_path_factory.mktemp("table2")
    order = ReproduceOrder(out, rows=("spen",), quick=True, device="cpu", options={"genre": "court"})
    assert not reproduce(replace(order, seconds=0.0)).finished, "no time, no result"
    done = reproduce(order)
    assert done.finished
    assert done.report == out / "builtin" / "report.html"
    return order


@pytest.fixture
def run(order: ReproduceOrder) -> Path:
    return order.out / "builtin" / "spen" / "seed-0"


def table(out: Path, *rows: str, **changes: Any) -> Table:
    return Table(ReproduceOrder(out, rows=rows, device="cpu", **changes))


def test_bases_come_first() -> None:
    found = table(Path("x"), "spen-best", "convex", seeds=(0, 1), options={"genre": "court"}).jobs()
    assert found[:4] == [Job(row, 0) for row in ("best-local", "spen-best", "local", "convex")]
    assert len(found) == 16


def test_folders_are_those_of_table_1() -> None:
    runs = table(Path("x"), data="here/mine")
    assert runs.run(Job("spen:steps=5", 2)) == Path("x/mine/spen,steps=5/seed-2")
    assert runs.run(Job("local", 0, "without-court")) == Path("x/mine/without-court/local/seed-0")


def test_results_and_report(order: ReproduceOrder) -> None:
    results = json.loads((order.out / "builtin" / "results.json").read_text())
    rows = {(r["row"], r["decoder"]): r for r in results["rows"]}
    assert set(rows) == {(s, d) for s in ("local", "spen") for d in ("greedy", "ad3")}
    assert rows["spen", "ad3"]["test"]["paper"] == 80.7
    for row in rows.values():
        for column in ("dev", "test", "out_of_domain"):
            assert row[column]["seeds"] == 1
            assert 0 < row[column]["mean"] <= 100
        assert row["train_seconds"] > 0
        assert row["sentences_per_second"] > 0
    run = next(r for r in results["runs"] if r["row"] == "spen" and r["corpus"] == "whole")
    assert [len(run["descent"][key]) for key in ("energy", "f1", "violations")] == [11, 11, 11]
    assert run["descent"]["energy"][-1] < run["descent"]["energy"][0]
    assert run["sentences_per_second"] > 0
    assert len(run["rates"]) == 10
    assert run["rates"] != pytest.approx([0.1] * 10, abs=1e-6), "the rates are learned"
    (pair,) = results["pairs"]
    assert (pair["a"], pair["b"], pair["split"], pair["seeds"]) == ("local", "spen", "test", 1)
    means = [rows[name, "ad3"]["test"]["mean"] for name in ("local", "spen")]
    assert pair["difference"] == pytest.approx(means[0] - means[1], abs=1e-3)
    assert pair["low"] <= pair["difference"] <= pair["high"]
    page = (order.out / "builtin" / "report.html").read_text()
    assert f"<td>local − spen</td><td>{pair['difference']:+.2f}</td>" in page
    for text in ("spen + AD³", "<svg", "violations", "80.7", "trained without court"):
        assert text in page
    assert "http" not in page, "the page stands alone"


def test_the_written_propositions_have_the_reported_score(run: Path) -> None:
    dev = builtin_splits(90)["dev"]
    result, found = json.loads((run / RESULT).read_text()), read_props(run / "dev.props.gz")
    assert score(dev, found).f1 == pytest.approx(result["dev"]["f1"]["ad3"], abs=1e-3)
    assert Labeller.open(run)(dev) == found


def test_a_finished_table_is_not_trained_again(order: ReproduceOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "train", lambda *_: pytest.fail("there is nothing left to train"))
    assert reproduce(order).finished


def test_finished_runs_are_merged(order: ReproduceOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "train", lambda *_: pytest.fail("there is nothing left to train"))
    assert reproduce(replace(order, out=tmp_path, merge=(order.out,))).finished
    assert (tmp_path / "builtin" / "without-court" / "spen" / "seed-0" / RESULT).is_file()
    with pytest.raises(ValueError, match="absent is no folder to merge"):
        reproduce(replace(order, merge=(tmp_path / "absent",)))


CONLLU = "\n".join(
    "\t".join(row)
    for row in (
        ("1", "The", "the", "DET", "DT", "_", "2", "det", "_", "_"),
        ("2", "dog", "dog", "NOUN", "NN", "_", "3", "nsubj", "_", "_"),
        ("3", "chased", "chase", "VERB", "VBD", "_", "0", "root", "_", "_"),
        ("4", "the", "the", "DET", "DT", "_", "5", "det", "_", "_"),
        ("5", "goat", "goat", "NOUN", "NN", "_", "3", "obj", "_", "_"),
    )
)


def test_a_table_of_another_size_is_not_continued(order: ReproduceOrder) -> None:
    for other in (replace(order, quick=False), replace(order, options={"sentences": 5})):
        with pytest.raises(ValueError, match="builtin holds results of other data or another size; give another fol"):
            reproduce(other)


def test_what_was_tuned_gains_its_test_column_without_training(
    order: ReproduceOrder, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--dev-only leaves the test data alone; the same table without it adds the column."""
    tuning, job = replace(order, dev_only=True, options={}), Job("spen", 0)
    before = json.loads((run / RESULT).read_text())
    data = Table(tuning).prepared(job)
    result = Table(tuning).evaluate(job, replace(data, corpora={"dev": data.corpora["dev"]}))
    assert "test" not in result
    (row, _) = rows_of([result])
    assert row["test"]["mean"] is None
    assert row["dev"]["mean"] > 0
    (run / RESULT).write_text(json.dumps(result))
    monkeypatch.setattr(module, "train", lambda *_, **__: pytest.fail("it is trained"))
    assert reproduce(tuning).finished
    assert "test" not in json.loads((run / RESULT).read_text())
    assert reproduce(replace(order, options={})).finished
    after = json.loads((run / RESULT).read_text())
    assert after["test"]["f1"] == before["test"]["f1"]
    assert after["train_seconds"] == before["train_seconds"]


def test_parsed_text_is_labelled(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.conllu"
    source.write_text(CONLLU + "\n\n" + CONLLU + "\n")
    target = tmp_path / "out.props"
    opened = open_model(run)
    assert list(opened.predict([source], target)) == [target]
    assert "2 sentences, 2 predicates" in capsys.readouterr().err
    props = read_props(target)
    assert [p.length for p in props] == [5, 5]
    assert props[0].propositions[0].predicate == 2
    assert props[0] == props[1]
    assert list(opened.predict([source], None, style="json")) == []
    (first, _) = json.loads(capsys.readouterr().out)
    assert first["predicates"][0]["sense"] == "chase"
    assert list(opened.predict([source], None, style="pretty")) == []
    assert "[V chased]" in capsys.readouterr().out


def test_a_file_that_is_no_conllu_is_refused(run: Path, tmp_path: Path) -> None:
    source = tmp_path / "bad.conllu"
    source.write_text("1\tOnly\n")
    with pytest.raises(ValueError, match="2 columns where id, words, lemmas"):
        list(open_model(run).predict([source], None))
    with pytest.raises(ValueError, match="no format is called 'xml'"):
        render([], [], "xml")  # type: ignore[arg-type]


def test_the_cache_gives_back_what_it_was_given(tmp_path: Path) -> None:
    splits = builtin_splits(30)
    first = prepare(splits, name="a", cache=tmp_path)
    second = prepare(splits, name="a", cache=tmp_path)
    assert first.space == second.space
    assert first.rules == second.rules
    for split in splits:
        pairs = zip(*(vars(data.corpora[split].encoded).values() for data in (first, second)), strict=True)
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    assert len(list(tmp_path.iterdir())) == 1
    assert prepare(splits, name="a", templates="all", cache=tmp_path).space.size > first.space.size
    with pytest.raises(ValueError, match="no template set is called 'some'"):
        prepare(splits, name="a", templates="some")
    assert torch.equal(first.word_table(), second.word_table())


def test_the_cache_knows_other_word_vectors(tmp_path: Path) -> None:
    for name in ("alpha", "gamma"):
        write_vectors(tmp_path / name, (name,), vectors=np.ones((1, 2)))
    splits, cache = builtin_splits(30), tmp_path / "cache"
    prepare(splits, name="a", vectors=tmp_path / "alpha", cache=cache)
    words = prepare(splits, name="a", vectors=tmp_path / "gamma", cache=cache).space.words
    assert "gamma" in words
    assert "alpha" not in words


def finish(runs: Table, job: Job) -> dict[str, object]:
    runs.run(job).mkdir(parents=True)
    (runs.run(job) / RESULT).write_text("{}")
    return {"dev": {"f1": {"greedy": 1, "ad3": 2}, "violations": 3}, "train_seconds": 4, "sentences_per_second": 5}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers as threads, which see what a test replaces."""
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda count, *_: ThreadPoolExecutor(count))
    monkeypatch.setattr(Table, "prepared", lambda *_: None)


@pytest.mark.usefixtures("threads")
def test_in_parallel_bases_first_and_the_longest_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []
    runs = table(tmp_path, "structured", "spen", "spen-best", dev_only=True)
    monkeypatch.setattr(module, "_work", lambda job, _: started.append(job.row) or finish(runs, job))
    assert module._in_parallel(runs, runs.jobs(), None)
    assert started == ["best-local", "local", "spen-best", "spen", "structured"]
    line = "whole spen seed 0: dev greedy 1.00, dev ad3 2.00, 3 violations, trained in 4 s, 5 sentences a second"
    assert line in capsys.readouterr().out


@pytest.mark.usefixtures("threads")
def test_in_parallel_a_failure_is_named_and_stops_what_is_built_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = table(tmp_path, "spen", "structured", jobs=2)

    def work(job: Job, _: float | None) -> dict[str, object]:
        if job.row == "local":
            raise RuntimeError("out of memory")
        return finish(runs, job)

    monkeypatch.setattr(module, "_work", work)
    assert not module._in_parallel(runs, runs.jobs(), None)
    assert "whole local seed 0 failed: RuntimeError: out of memory\n" in capsys.readouterr().out
    assert not runs.run(Job("spen", 0)).exists()
    assert (runs.run(Job("structured", 0)) / RESULT).exists()


@pytest.mark.usefixtures("threads")
def test_in_parallel_nothing_begins_shortly_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_work", lambda *_: pytest.fail("too late to begin"))
    runs = table(tmp_path, "local", seeds=(0, 1), jobs=2)
    assert not module._in_parallel(runs, runs.jobs(), time.time() + 5)


def test_a_worker_stops_in_time_to_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float | None] = []
    monkeypatch.setattr(Table, "train", lambda self, job, seconds: seen.append(seconds))
    module._start(ReproduceOrder(tmp_path, device="cpu"), torch.get_num_threads())
    module._work(Job("local", 0), time.time() + 100)
    module._work(Job("local", 0), None)
    assert seen == [pytest.approx(90, abs=1), None]


def test_a_genre_is_left_out_whole() -> None:
    splits = builtin_splits(30)
    left = without_genre(splits, "court")
    assert {s.genre for s in [*left["train"], *left["dev"]]} == {"farm", "harbour"}
    assert {s.genre for s in left["test"]} == {"court"}
    assert sum(map(len, left.values())) == 50 - sum(s.genre != "court" for s in splits["test"])
    with pytest.raises(ValueError, match="no sentence is of genre 'moon'; there are court, farm, harbour"):
        without_genre(splits, "moon")


def test_settings_hold_for_every_row_or_for_one() -> None:
    settings = {"steps": "5", "spen:rate": "0.1"}
    assert changed_row("spen", settings) == "spen:steps=5:rate=0.1"
    assert changed_row("local", settings) == "local:steps=5"
    order = ReproduceOrder(Path("unused"), rows=("local",), settings={"spen:rate": "0.1"})
    with pytest.raises(ValueError, match="no row among local takes the option 'spen:rate'"):
        TASK.reproduce(order)
