"""One weight under two names: it is saved under both, and is one weight again after loading."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.energies import Energy, EntropySmoothed, Linear, Softplus, Sum
from spen.objectives import EndToEnd, squared_error
from spen.storage import load_weights, save_weights
from spen.training import fit, joint
from tests.training import toy


class Tied(Energy):
    """Two layers with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.bend = nn.Linear(4, 4), nn.Linear(4, 4), Softplus(2.0)
        self.b.weight = self.a.weight

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.bend(self.b(self.bend(self.a(y.mean(1))))).sum(1)


def _model() -> spen.SPEN:
    model = toy.build_model()
    torch.manual_seed(1)
    model.energy = EntropySmoothed(Sum(local=Linear(), prior=Tied()), 1.0)
    return model


def _empty() -> spen.SPEN:
    model = _model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def _names(model: spen.SPEN) -> list[str]:
    return [name for name in model.state_dict() if name.endswith(("prior.a.weight", "prior.b.weight"))]


def test_what_is_shared_is_written_under_every_name(tmp_path: Path) -> None:
    row = torch.arange(6.0)
    weights = {"whole": row, "same": row, "end": row[4:], "square": row.view(2, 3).T}
    save_weights(weights, tmp_path / "w")
    read = load_weights(tmp_path / "w")
    assert {name: value.tolist() for name, value in read.items()} == {
        "whole": [0, 1, 2, 3, 4, 5],
        "same": [0, 1, 2, 3, 4, 5],
        "end": [4, 5],
        "square": [[0, 3], [1, 4], [2, 5]],
    }


def test_a_saved_model_is_tied_again(tmp_path: Path) -> None:
    model = _model().eval()
    loaded = spen.SPEN.from_pretrained(model.save_pretrained(tmp_path), build=_empty)
    a, b = _names(loaded)
    assert loaded.state_dict()[a].data_ptr() == loaded.state_dict()[b].data_ptr()
    assert torch.equal(loaded.state_dict()[a], model.state_dict()[a])
    x = torch.randn(3, 6)
    assert torch.equal(loaded(x).output, model(x).output)


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_tied_energy_trains_to_the_end_and_scores_what_the_log_says(tmp_path: Path, average: float) -> None:
    train, dev = toy.build_data()
    model = _model()
    stage = joint(EndToEnd(squared_error), epochs=2, learning_rate=0.05, average=average)
    run = fit(model, [stage], train, dev, toy.MSE(), out=tmp_path, accelerator="cpu", progress=False)
    assert run is not None
    weights = run.load()
    a, b = _names(model)
    assert torch.equal(weights[a], weights[b])
    fresh = _empty().eval()
    fresh.load_state_dict(weights)
    with torch.no_grad():
        error = squared_error(fresh(dev.x).output, dev.target).mean()
    assert float(error) == pytest.approx(min(e["dev"] for e in run.metrics()), rel=1e-5)
