"""What a visitor may open, and that it is nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from spen.tasks.denoising.data import Rooms
from spen.tasks.denoising.priors import Observation
from spen.tasks.denoising.scoring import observation
from spen.viewer.catalogue import BASELINES, Catalogue
from tests.viewer.worlds import fake_run


def test_the_package_alone_offers_models_and_baselines() -> None:
    catalogue = Catalogue()
    assert catalogue.runs() == []
    assert catalogue.denoisers()[0] == "dp-3"
    assert set(BASELINES) <= set(catalogue.denoisers())
    assert "srl-grammar" in catalogue.labellers()
    assert "srl-grammar" not in catalogue.denoisers()


def test_baselines_denoise() -> None:
    frame = Rooms("test", 1).frame(0)
    x = Observation(*(part[None, ..., :40, :50] for part in observation(frame)))
    for name in BASELINES:
        denoise, model = Catalogue().denoiser(name)
        assert model is None
        assert denoise(x).shape == x.image.shape
        assert bool((denoise(x) > 0).all())  # holes are filled


def test_runs_are_found_below_the_folders_given(tmp_path: Path) -> None:
    first = fake_run(tmp_path / "runs" / "rooms" / "foe-3" / "seed-0")
    second = fake_run(tmp_path / "runs" / "roles", task="srl")
    fake_run(first / "state" / "inner")  # a run holds no runs
    catalogue = Catalogue([tmp_path / "runs"])
    assert set(catalogue.runs()) == {str(first), str(second)}
    assert catalogue.run(str(first)).folder == first
    # Neither has weights yet, so neither can be run.
    assert str(first) not in catalogue.denoisers()
    (first / "model.safetensors").touch()
    (second / "model.safetensors").touch()
    assert str(first) in catalogue.denoisers()
    assert catalogue.labellers()[0] == str(second)


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
            catalogue.run(name)
        with pytest.raises(ValueError, match="there is no denoising system '.*' on this page"):
            catalogue.denoiser(name)
        with pytest.raises(ValueError, match="there is no role labelling system '.*' on this page"):
            catalogue.labeller(name)


def test_models_are_loaded_once_and_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spen.viewer import catalogue as module

    run = fake_run(tmp_path / "run")
    (run / "model.safetensors").touch()
    loads: list[str] = []
    monkeypatch.setattr(module, "load_system", lambda place: (loads.append(place), None))
    catalogue = Catalogue([tmp_path])
    catalogue.denoiser(str(run))
    catalogue.denoiser(str(run))
    assert loads == [str(run)]
    os.utime(run / "model.safetensors", (2**31, 2**31))
    catalogue.denoiser(str(run))
    assert len(loads) == 2


def test_few_models_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spen.viewer import catalogue as module

    for k in range(6):
        (fake_run(tmp_path / f"run-{k}") / "model.safetensors").touch()
    monkeypatch.setattr(module, "load_system", lambda place: (torch.zeros(1), None))
    catalogue = Catalogue([tmp_path])
    for k in range(6):
        catalogue.denoiser(str(tmp_path / f"run-{k}"))
    assert len(catalogue._kept) == 4


def test_folders_without_runs_are_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere is not a folder; name a run, or a folder with runs below it"):
        Catalogue(["nowhere"])
    with pytest.raises(ValueError, match=r"holds no run: there is no run\.json in it or below it"):
        Catalogue([tmp_path])


def test_a_damaged_run_is_listed_and_used_for_nothing(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    for text in ("{", "[]", json.dumps({"recipe": None})):
        (run / "run.json").write_text(text)
        (run / "model.safetensors").touch()
        catalogue = Catalogue([tmp_path])
        assert catalogue.runs() == [str(run)]
        assert str(run) not in catalogue.denoisers() + catalogue.labellers()
