"""The whole of Table 2 in small: train, resume, evaluate, report, predict."""

from __future__ import annotations

import json
import time
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
from spen.tasks.srl.reproduce import Job, Settings, jobs, reproduce
from spen.tasks.srl.score import score
from spen.tasks.srl.sentences import write_text
from spen.tasks.srl.table import summarise
from spen.tasks.srl.task import TASK, changed_row
from spen.tasks.task import ReproduceOrder

QUICK = SrlRecipe.quick


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """local and spen, trained for an epoch or two on a tiny corpus, with a genre left out as well."""
    folder = tmp_path_factory.mktemp("table2")
    patch = pytest.MonkeyPatch()
    shrink = {"pretrain_epochs": 2, "clamped_epochs": 1, "joint_epochs": 1}
    patch.setattr(SrlRecipe, "quick", lambda self: replace(QUICK(self), **shrink))
    patch.setattr(corpora, "builtin_splits", lambda size: builtin_splits(90))
    settings = Settings(out=folder, rows=("spen",), seeds=(0,), genre="court", quick=True)
    assert reproduce(replace(settings, seconds=0.0)) is None, "no time, no result"
    assert reproduce(settings) is not None
    patch.undo()
    return folder


def test_bases_come_first() -> None:
    settings = Settings(out=Path("x"), rows=("spen-best", "convex"), seeds=(0, 1), genre="court")
    found = jobs(settings)
    assert found[:4] == [Job(row, 0, "whole") for row in ("best-local", "spen-best", "local", "convex")]
    assert len(found) == 16


def test_results_and_report(out: Path) -> None:
    results = json.loads((out / "results.json").read_text())
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
    page = (out / "report.html").read_text()
    assert f"<td>local − spen</td><td>{pair['difference']:+.2f}</td>" in page
    for text in ("spen + AD³", "<svg", "violations", "80.7", "trained without court"):
        assert text in page
    assert "http" not in page, "the page stands alone"


def test_the_written_propositions_have_the_reported_score(out: Path) -> None:
    dev = builtin_splits(90)["dev"]
    result = json.loads((out / "runs" / "whole" / "spen-0" / "evaluation.json").read_text())
    found = read_props(out / "runs" / "whole" / "spen-0" / "dev.props.gz")
    assert score(dev, found).f1 == pytest.approx(result["dev"]["f1"]["ad3"], abs=1e-3)


def test_a_finished_table_is_not_trained_again(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_job", lambda *_: pytest.fail("there is nothing left to train"))
    monkeypatch.setattr(corpora, "builtin_splits", lambda size: builtin_splits(90))
    settings = Settings(out=out, rows=("spen",), seeds=(0,), genre="court", quick=True)
    assert reproduce(settings) is not None


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


def test_a_table_of_other_data_is_not_continued(out: Path) -> None:
    settings = Settings(out=out, rows=("spen",), seeds=(0,), genre="court", quick=True)
    for other in (replace(settings, quick=False), replace(settings, data="ewt"), replace(settings, sentences=5)):
        with pytest.raises(ValueError, match="holds results of other data or another size; give another folder"):
            reproduce(other)


def test_what_was_tuned_gains_its_test_column_without_training(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Job("spen", 0, "whole").result(out)
    before = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in before.items() if key != "test"}))
    monkeypatch.setattr(module, "train", lambda *_, **__: pytest.fail("it is trained"))
    monkeypatch.setattr(corpora, "builtin_splits", lambda size: builtin_splits(90))
    settings = Settings(out=out, rows=("spen",), seeds=(0,), quick=True)
    assert reproduce(replace(settings, dev_only=True)) is not None
    assert "test" not in json.loads(path.read_text())
    assert reproduce(settings) is not None
    after = json.loads(path.read_text())
    assert after["test"]["f1"] == before["test"]["f1"]
    assert after["train_seconds"] == before["train_seconds"]


def test_parsed_text_is_labelled(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, source = out / "runs" / "whole" / "spen-0", tmp_path / "in.conllu"
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


def test_labels_equal_those_of_the_evaluation(out: Path) -> None:
    dev = builtin_splits(90)["dev"]
    labeller = Labeller.open(out / "runs" / "whole" / "spen-0")
    assert labeller(dev) == read_props(out / "runs" / "whole" / "spen-0" / "dev.props.gz")


def test_a_file_that_is_no_conllu_is_refused(out: Path, tmp_path: Path) -> None:
    run = out / "runs" / "whole" / "spen-0"
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
        arrays = zip(vars(first.encoded[split]).items(), vars(second.encoded[split]).values(), strict=True)
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for (_, a), b in arrays)
    assert len(list(tmp_path.iterdir())) == 1
    assert prepare(splits, name="a", templates="all", cache=tmp_path).space.size > first.space.size
    with pytest.raises(ValueError, match="no template set is called 'some'"):
        prepare(splits, name="a", templates="some")
    assert torch.equal(first.word_table(), second.word_table())


def test_the_cache_knows_other_word_vectors(tmp_path: Path) -> None:
    for name in ("alpha", "gamma"):
        write_text(tmp_path / f"{name}.txt", f"{name} 1.0 2.0\n")
    splits, cache = builtin_splits(30), tmp_path / "cache"
    prepare(splits, name="a", vectors=tmp_path / "alpha.txt", cache=cache)
    words = prepare(splits, name="a", vectors=tmp_path / "gamma.txt", cache=cache).space.words
    assert "gamma" in words
    assert "alpha" not in words


def test_tuning_leaves_the_test_data_alone(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "builtin_splits", lambda size: builtin_splits(90))
    settings = Settings(out=out, rows=("spen",), seeds=(0,), quick=True, dev_only=True)
    data = module.Corpora(settings).get("whole", "appendix")
    monkeypatch.setattr(type(data), "sentences", lambda self, split: self.splits[split] if split == "dev" else 1 / 0)
    result = module.evaluate_job(Job("spen", 0, "whole"), settings, data, 1.0)
    assert "test" not in result
    (row, _) = summarise([result], {})["rows"]
    assert row["test"]["mean"] is None
    assert row["dev"]["mean"] > 0


def finish(job: Job, settings: Settings, deadline: float | None) -> dict[str, object]:
    job.result(settings.out).parent.mkdir(parents=True)
    job.result(settings.out).write_text("{}")
    return {"dev": {"f1": {"greedy": 1, "ad3": 2}, "violations": 3}, "train_seconds": 4, "sentences_per_second": 5}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers as threads, which see what a test replaces."""
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda count, *_: ThreadPoolExecutor(count))
    monkeypatch.setattr(module.Corpora, "get", lambda *_: None)


@pytest.mark.usefixtures("threads")
def test_side_by_side_bases_first_and_the_longest_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []
    monkeypatch.setattr(module, "_work", lambda job, *rest: order.append(job.row) or finish(job, *rest))
    settings = Settings(out=tmp_path, rows=("structured", "spen", "spen-best"), seeds=(0,), dev_only=True)
    assert module._side_by_side(replace(settings, workers=1), jobs(settings), module.Corpora(settings), None, print)
    assert order == ["best-local", "local", "spen-best", "spen", "structured"]
    line = "whole spen seed 0: dev greedy 1.00, dev ad3 2.00, 3 violations, trained in 4 s, 5 sentences a second"
    assert line in capsys.readouterr().out


@pytest.mark.usefixtures("threads")
def test_side_by_side_a_failure_is_named_and_stops_what_is_built_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(job: Job, *rest: Any) -> dict[str, object]:
        if job.row == "local":
            raise RuntimeError("out of memory")
        return finish(job, *rest)

    monkeypatch.setattr(module, "_work", work)
    settings = Settings(out=tmp_path, rows=("spen", "structured"), seeds=(0,), workers=2)
    assert not module._side_by_side(settings, jobs(settings), module.Corpora(settings), None, print)
    assert "whole local seed 0 failed: RuntimeError: out of memory\n" in capsys.readouterr().out
    assert not Job("spen", 0, "whole").result(tmp_path).exists()
    assert Job("structured", 0, "whole").result(tmp_path).exists()


@pytest.mark.usefixtures("threads")
def test_side_by_side_nothing_begins_shortly_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_work", lambda *_: pytest.fail("too late to begin"))
    settings = Settings(out=tmp_path, rows=("local",), seeds=(0, 1), workers=2)
    assert not module._side_by_side(settings, jobs(settings), module.Corpora(settings), time.time() + 5, print)


def test_a_worker_stops_in_time_to_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float | None] = []
    monkeypatch.setattr(module, "run_job", lambda job, settings, data, seconds: seen.append(seconds))
    settings, job = Settings(out=tmp_path), Job("local", 0, "whole")
    module._work(job, settings, time.time() + 100)
    module._work(job, settings, None)
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
