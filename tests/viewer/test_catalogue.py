"""What a visitor may open, and that it is nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from spen import tasks
from spen.viewer import catalogue as module
from spen.viewer.catalogue import Catalogue
from tests.viewer.worlds import fake_run

DENOISING, SRL = tasks.find("denoising"), tasks.find("srl")


def test_the_package_alone_offers_models() -> None:
    catalogue = Catalogue()
    assert catalogue.runs() == []
    assert catalogue.models(DENOISING) == ["depth", "dp-3", "photo"]
    assert catalogue.models(SRL) == ["srl-ewt", "srl-grammar"]
    assert catalogue.models(tasks.find("multilabel")) == []
    assert catalogue.open(DENOISING, "dp-3").name == "dp-3"


def test_runs_are_found_below_the_folders_given(tmp_path: Path) -> None:
    first = fake_run(tmp_path / "runs" / "rooms" / "foe-3" / "seed-0")
    second = fake_run(tmp_path / "runs" / "roles", task="srl")
    fake_run(first / "state" / "inner")  # a run holds no runs
    catalogue = Catalogue([tmp_path / "runs"])
    assert set(catalogue.runs()) == {str(first), str(second)}
    assert catalogue.run(str(first)).folder == first
    # Neither has weights yet, so neither can be run.
    assert str(first) not in catalogue.models(DENOISING)
    (first / "model.safetensors").touch()
    (second / "model.safetensors").touch()
    assert catalogue.models(DENOISING) == ["depth", "dp-3", "photo", str(first)]
    assert catalogue.models(SRL, runs_first=True)[0] == str(second)
    assert catalogue.models(SRL)[-1] == str(second)


def test_the_most_recent_run_comes_first_and_new_ones_appear(tmp_path: Path) -> None:
    old = fake_run(tmp_path / "old")
    os.utime(old / "run.json", (1, 1))
    catalogue = Catalogue([tmp_path])
    new = fake_run(tmp_path / "new")
    assert catalogue.runs() == [str(new), str(old)]


def test_nothing_outside_is_opened(tmp_path: Path) -> None:
    inside = fake_run(tmp_path / "runs" / "mine")
    outside = fake_run(tmp_path / "private")
    (outside / "model.safetensors").touch()
    (tmp_path / "runs" / "link").symlink_to(outside, target_is_directory=True)
    catalogue = Catalogue([tmp_path / "runs"])
    assert catalogue.runs() == [str(inside)]
    for name in (str(outside), str(tmp_path / "runs" / "link"), f"{inside}/../../private", "../private", "/etc", ""):
        with pytest.raises(ValueError, match="there is no run '.*' on this page"):
            catalogue.run(name or "?")
        for task in (DENOISING, SRL):
            with pytest.raises(ValueError, match="there is no model '.*' on this page"):
                catalogue.open(task, name)


def test_a_model_of_another_task_is_not_opened(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    (run / "model.safetensors").touch()
    for name in ("dp-3", str(run)):
        with pytest.raises(ValueError, match="there is no labeller '.*' on this page"):
            Catalogue([tmp_path]).open(SRL, name, what="labeller")


def test_a_task_says_which_folders_it_can_open(tmp_path: Path) -> None:
    forest, chosen = fake_run(tmp_path / "forest"), fake_run(tmp_path / "tv")
    (forest / "forest.safetensors").touch()
    (chosen / "chosen.json").touch()
    assert Catalogue([tmp_path]).models(DENOISING) == ["depth", "dp-3", "photo", str(forest), str(chosen)]


def test_models_are_loaded_once_and_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fake_run(tmp_path / "run")
    (run / "model.safetensors").touch()
    loads: list[str] = []
    monkeypatch.setattr(module, "open_model", lambda place: loads.append(place))
    catalogue = Catalogue([tmp_path])
    catalogue.open(DENOISING, str(run))
    catalogue.open(DENOISING, str(run))
    assert loads == [str(run)]
    os.utime(run / "model.safetensors", (2**31, 2**31))
    catalogue.open(DENOISING, str(run))
    assert len(loads) == 2


def test_few_models_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(6):
        (fake_run(tmp_path / f"run-{k}") / "model.safetensors").touch()
    monkeypatch.setattr(module, "open_model", lambda place: place)
    catalogue = Catalogue([tmp_path])
    for k in range(6):
        catalogue.open(DENOISING, str(tmp_path / f"run-{k}"))
    assert catalogue._load.cache_info().currsize == 4


def test_folders_without_runs_are_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere is not a folder; name a run, or a folder with runs below it"):
        Catalogue(["nowhere"])
    with pytest.raises(ValueError, match=r"holds no run: there is no run\.json in it or below it"):
        Catalogue([tmp_path])


def test_no_folder_has_no_runs() -> None:
    with pytest.raises(ValueError, match="no folder of runs was named; `spen view RUNS` shows the runs below RUNS"):
        Catalogue().run(None)


def test_a_damaged_run_is_listed_and_used_for_nothing(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    (run / "model.safetensors").touch()
    for number, text in enumerate(("{", "[]", json.dumps({"builder": "denoising"}))):
        (run / "config.json").write_text(text)
        os.utime(run / "config.json", (number, number))  # written a moment apart, whatever the file system's clock
        catalogue = Catalogue([tmp_path])
        assert catalogue.runs() == [str(run)]
        assert str(run) not in catalogue.models(DENOISING) + catalogue.models(SRL)
    (run / "config.json").unlink()
    assert str(run) not in Catalogue([tmp_path]).models(DENOISING)
