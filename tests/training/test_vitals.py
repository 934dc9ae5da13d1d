"""Watching the terms of an energy: it changes nothing, and goes on after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Energy
from spen.objectives import EndToEnd, StructuredHinge, squared_error
from spen.rules import GradientDescent
from spen.training import DeadEnergyWarning, TensorSource, fit, joint
from spen.training.health import NO_LOSS, Vitals, term_gradients
from tests.training import toy


def test_vitals_go_on_where_they_stopped() -> None:
    first, second = Vitals(looks=2), Vitals(looks=2)
    first.observe({"old": 1.0})
    first.observe({"old": 0.0})
    with pytest.warns(DeadEnergyWarning, match="'old' of the energy is dead"):
        first.observe({"old": 0.0})
    first.observe({"old": 0.0, "prior": 4.0})
    first.observe({"old": 0.0, "prior": 0.0})
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == {
        "largest": {"old": 1.0, "prior": 4.0},
        "silent": {"old": 4, "prior": 1},
        "dead": ["old"],
    }
    with pytest.warns(DeadEnergyWarning, match=r"'prior' of the energy is dead: its gradient in y fell from 4.0e\+00"):
        assert len(second.observe({"old": 0.0, "prior": 1e-9})) == 1


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(6)], ids=["dropout", "batch norm"])
def test_a_look_changes_nothing_that_is_trained(tmp_path: Path, layer: nn.Module) -> None:
    def trained(every: int) -> dict[str, list[float]]:
        train, dev = toy.build_data()
        model = toy.build_model()
        model.features = nn.Sequential(layer, *model.features)
        model.features[0].load_state_dict(start)
        stage = joint(EndToEnd(squared_error), epochs=2)
        out = tmp_path / str(every)
        options = {"out": out, "accelerator": "cpu", "progress": False, "vitals_every": every}
        run = fit(model, [stage], train, dev, toy.MSE(), **options)  # type: ignore[arg-type]
        assert run is not None
        return {name: value.tolist() for name, value in run.load().items()}

    start = {name: value.clone() for name, value in layer.state_dict().items()}
    assert trained(0) == trained(3)


def test_a_look_leaves_every_mode_and_the_generator_as_they_were() -> None:
    model = toy.build_model().train()
    model.energy.eval()
    modes = [part.training for part in model.modules()]
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first = term_gradients(model, torch.ones(4, 6))
    assert torch.equal(torch.rand(3), expected)
    assert [part.training for part in model.modules()] == modes
    assert term_gradients(model, torch.ones(4, 6)) == first


class Bowl(Energy):
    """k‖y − x‖², too steep for a rate of 0.1: where a truth other than x violates the margin, descent flies past it."""

    def __init__(self) -> None:
        super().__init__()
        self.steepness = nn.Parameter(torch.tensor(50.0))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.steepness * (y - features).square().sum(1)


@pytest.mark.parametrize(("rate", "expected"), [(0.01, [[], []]), (0.1, [[NO_LOSS], []])])
def test_a_search_that_finds_no_violation_is_reported_once(
    rate: float, expected: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    minimizer = spen.Minimizer(Reals(), GradientDescent(5, rate))
    model = spen.SPEN(energy=Bowl(), init=nn.Identity(), minimizer=minimizer)
    source = TensorSource(torch.rand(8, 2), torch.ones(8, 2), 4)
    stage = joint(StructuredHinge(squared_error), epochs=2)
    options = {"accelerator": "cpu", "progress": False, "vitals_every": 0}  # y_0 is the minimum: nothing moves it
    run = fit(model, [stage], source, source, toy.MSE(), out=tmp_path, **options)  # type: ignore[arg-type]
    assert run is not None
    assert [entry["reports"] for entry in run.metrics()] == expected
    assert [entry["loss"] == 0 for entry in run.metrics()] == [rate == 0.1] * 2
    assert capsys.readouterr().err.count("every loss of an epoch was exactly zero") == (rate == 0.1)
