"""An energy that moves nothing is reported after the first epoch of a stage, once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.descent.trajectory import Trajectory
from spen.domains import Reals, Simplex
from spen.energies import Energy, EntropySmoothed, Linear, Softplus, Sum
from spen.gradients import Exact
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent
from spen.training import InertEnergyWarning, Run, Stage, TensorSource, clamped, fit, joint, pretrain
from spen.training.health import find_inert
from tests.training import toy


class Prior(Energy):
    """A network whose last layer starts at a given size."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), Softplus(2.0), nn.Linear(8, 1))
        nn.init.constant_(self.net[2].weight, size)

    def forward(self, y: Tensor, features: Any) -> Tensor:
        return self.net(y.flatten(1)).squeeze(1)


def _train(out: Path, size: float, stages: list[Stage], **options: Any) -> Run:
    """softmax(F(x)) is the minimum of the local terms and the entropy: only the prior moves y."""
    torch.manual_seed(0)
    x = torch.randn(16, 5)
    source = TensorSource(x, torch.softmax(x[:, :4], 1), 8)
    model = spen.SPEN(
        features=nn.Linear(5, 4),
        init=nn.Identity(),
        energy=EntropySmoothed(Sum(local=Linear(), prior=Prior(size)), 1.0),
        minimizer=spen.Minimizer(Simplex(), GradientDescent(3, 0.5), Exact()),
    )
    run = fit(model, stages, source, source, toy.MSE(), out=out, accelerator="cpu", progress=False, **options)
    assert run is not None
    return run


def _joint(rate: float = 1e-9) -> Stage:
    return joint(EndToEnd(squared_error), epochs=2, learning_rate=rate)


def test_a_prior_of_nothing_is_reported_with_its_share_and_a_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(InertEnergyWarning, match="the term 'prior' supplies"):
        run = _train(tmp_path, 1e-6, [_joint()])
    first, second = (entry["reports"] for entry in run.metrics())
    assert len(first) == 2
    assert re.fullmatch(
        r"the term 'prior' supplies \de-07 of the gradient of the energy in y after the first epoch, so the descent "
        r"hardly follows it: scale it by about 1e6, or raise its first weights \(see docs/training.md\)",
        first[0],
    )
    assert re.fullmatch(
        r"the descent changes nothing: y_T differs from y_0 by \de-0[78] of its size after the first epoch. Raise the "
        r"rates, take more steps, or scale up the terms that are to move y \(see docs/training.md\)",
        first[1],
    )
    assert second == []
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line in first] == first


def test_a_prior_that_acts_is_not_reported(tmp_path: Path) -> None:
    run = _train(tmp_path, 0.1, [_joint()])
    assert [entry["reports"] for entry in run.metrics()] == [[], []]


def test_a_prior_that_starts_almost_off_and_grows_is_not_reported(tmp_path: Path) -> None:
    run = _train(tmp_path, 1e-6, [_joint(0.05)])
    assert [entry["reports"] for entry in run.metrics()] == [[], []]


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        (pretrain(squared_error, epochs=1), {}),
        (clamped(EndToEnd(squared_error), epochs=1, learning_rate=1e-9), {}),
        (_joint(), {"vitals_every": 0}),
    ],
    ids=["pretrain", "clamped", "no vitals"],
)
def test_who_is_not_judged(tmp_path: Path, stage: Stage, options: dict[str, int]) -> None:
    run = _train(tmp_path, 1e-6, [stage], **options)
    assert all(entry["reports"] == [] for entry in run.metrics())


class Valley(Energy):
    """k‖y‖²; with k = 0 its gradient is exactly zero."""

    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(k))

    def forward(self, y: Tensor, features: Any) -> Tensor:
        return self.k * y.square().sum(1)


def _reals(**valleys: float) -> tuple[spen.SPEN, Tensor, Trajectory]:
    energy = Sum(**{name: Valley(k) for name, k in valleys.items()})
    model = spen.SPEN(
        energy=energy, init=nn.Identity(), minimizer=spen.Minimizer(Reals(), GradientDescent(1, 0.1), Exact())
    )
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    return model, x, model(x)


def test_shares_by_value() -> None:
    model, x, trajectory = _reals(local=1.0, prior=4e-4)
    with pytest.warns(InertEnergyWarning):
        (sentence,) = find_inert(model, x, trajectory, {})
    assert sentence.startswith("the term 'prior' supplies 4e-04 of the gradient")
    assert "scale it by about 1e3," in sentence
    model, x, trajectory = _reals(local=1.0, prior=2e-3)
    assert find_inert(model, x, trajectory, {}) == []


def test_a_gradient_of_zero_has_a_sentence_of_its_own() -> None:
    model, x, trajectory = _reals(local=1.0, prior=0.0)
    with pytest.warns(InertEnergyWarning):
        assert find_inert(model, x, trajectory, {"prior": 0.0}) == [
            "the term 'prior' supplies nothing of the gradient of the energy in y after the first epoch, neither at "
            "the prediction nor beside it: raise its first weights (see docs/training.md)"
        ]
    assert find_inert(model, x, trajectory, {"prior": 1.0}) == []  # silent on this batch only


def test_a_term_that_fell_is_not_called_inert() -> None:
    model, x, trajectory = _reals(local=1.0, prior=1e-6)
    assert find_inert(model, x, trajectory, {"prior": 0.5}) == []


def test_rates_of_nothing_are_reported_by_value() -> None:
    model, x, _ = _reals(local=1.0)
    model.minimizer.rule = GradientDescent(1, 1e-5)
    with pytest.warns(InertEnergyWarning, match=r"y_T differs from y_0 by 2e-05 of its size"):
        (sentence,) = find_inert(model, x, model(x), {})
    assert sentence.startswith("the descent changes nothing: ")
