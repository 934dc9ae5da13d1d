"""What `fit` and a run folder refuse, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spen
from spen.domains import Reals
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent
from spen.training import Run, fit, joint
from tests.training import toy


def test_stages_need_names_of_their_own(tmp_path: Path) -> None:
    source, dev = toy.build_data()
    stages = [joint(EndToEnd(squared_error), epochs=1)] * 2
    with pytest.raises(ValueError, match=r"stages need different names, not \['joint', 'joint'\]"):
        fit(toy.build_model(), stages, source, dev, toy.MSE(), out=tmp_path, accelerator="cpu")


def test_a_metric_must_say_which_way_is_better(tmp_path: Path) -> None:
    class Undecided(toy.MSE):
        higher_is_better = None

    source, dev = toy.build_data()
    stages = [joint(EndToEnd(squared_error), epochs=1)]
    with pytest.raises(ValueError, match="Undecided does not say whether higher is better: give fit higher"):
        fit(toy.build_model(), stages, source, dev, Undecided(), out=tmp_path / "run", accelerator="cpu")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_other_stages_is_refused(tmp_path: Path) -> None:
    def train(epochs: int) -> Run | None:
        source, dev = toy.build_data()
        stages = [joint(EndToEnd(squared_error), epochs=epochs)]
        return fit(toy.build_model(), stages, source, dev, toy.MSE(), out=tmp_path, accelerator="cpu", progress=False)

    first = train(1)
    assert first is not None
    assert train(1) is not None
    sentence = (
        r"holds another run \(stage.joint.epochs: 1 there, 2 now\); give another folder, or delete it to start anew"
    )
    with pytest.raises(ValueError, match=sentence):
        train(2)
    assert len(first.metrics()) == 1


def test_a_run_that_did_nothing_yet_makes_room(tmp_path: Path) -> None:
    run = Run.begin(tmp_path, {"width": 1}, 0)
    run.compare({"epochs": 1}, "first weights")
    again = Run.begin(tmp_path, {"width": 2}, 0)
    again.compare({"epochs": 2}, "first weights")
    again.compare({"epochs": 3}, "first weights")
    assert again.description()["recipe"] == {"width": 2}
    again.record({"stage": "a", "epoch": 0})
    with pytest.raises(
        ValueError, match=r"holds another run \(recipe.width: 2 there, 1 now\); give another folder, or"
    ):
        Run.begin(tmp_path, {"width": 1}, 0)
    with pytest.raises(ValueError, match=r"holds another run \(seed: 0 there, 1 now\); give another folder, or delete"):
        Run.begin(tmp_path, {"width": 2}, 1)
    with pytest.raises(
        ValueError, match=r"holds another run \(epochs: 3 there, 1 now\); give another folder, or delete"
    ):
        again.compare({"epochs": 1}, "first weights")
    again.compare({"epochs": 3}, "first weights")


def test_a_stage_of_so_many_seconds_needs_one_clock(tmp_path: Path) -> None:
    source, dev = toy.build_data()
    stages = [joint(EndToEnd(squared_error), epochs=1, seconds=5.0)]
    with pytest.raises(ValueError, match="a stage that lasts so many seconds needs devices=1: clocks and schedules"):
        fit(toy.build_model(), stages, source, dev, toy.MSE(), out=tmp_path / "run", accelerator="cpu", devices=2)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "metrics.jsonl"])
def test_a_folder_with_a_model_and_no_run_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("somebody's")
    source, dev = toy.build_data()
    stages = [joint(EndToEnd(squared_error), epochs=1)]
    with pytest.raises(ValueError, match=f"is no run and holds {name}, which training would replace; give another"):
        fit(toy.build_model(), stages, source, dev, toy.MSE(), out=tmp_path, accelerator="cpu")
    assert (tmp_path / name).read_text() == "somebody's"
    assert {p.name for p in tmp_path.iterdir()} == {name, "lock"}


def test_a_metric_that_says_the_opposite(tmp_path: Path) -> None:
    source, dev = toy.build_data()
    stages = [joint(EndToEnd(squared_error), epochs=1)]
    with pytest.raises(ValueError, match="MSE says higher_is_better=False, and fit was given True: leave the argument"):
        fit(toy.build_model(), stages, source, dev, toy.MSE(), out=tmp_path / "run", higher_is_better=True)
    assert not (tmp_path / "run").exists()


def test_a_loader_without_batches(tmp_path: Path) -> None:
    rows = TensorDataset(torch.zeros(3, 4), torch.zeros(3, 4))
    stages = [joint(EndToEnd(squared_error), epochs=1)]
    loader = DataLoader(rows, batch_size=5, drop_last=True)
    with pytest.raises(ValueError, match="gives no batch: it has 3 examples, batch_size=5 and drop_last=True"):
        fit(toy.build_model(), stages, loader, toy.build_data()[1], toy.MSE(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Normed(spen.Energy):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Softplus(), nn.Linear(6, 1))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.net(y).squeeze(1) + 0.5 * (y - features).square().sum(1)


def test_batch_norm_in_an_energy(tmp_path: Path) -> None:
    def train(model: spen.SPEN, out: str) -> Run | None:
        rows = torch.randn(8, 4), torch.randn(8, 4)
        stages = [joint(EndToEnd(squared_error), epochs=1)]
        return fit(model, stages, rows, rows, toy.MSE(), out=tmp_path / out, accelerator="cpu", progress=False)

    minimizer = spen.Minimizer(Reals(), GradientDescent(2, 0.1))
    model = spen.SPEN(energy=Normed(), init=nn.Identity(), minimizer=minimizer)
    with pytest.raises(
        ValueError, match=r"'net.1' of the energy is a BatchNorm1d, which mixes the examples of a batch"
    ):
        train(model, "refused")
    model.energy.net[1].eval()
    assert train(model, "eval") is not None
