"""Before training, fit looks whether each term of the energy scores each example alone."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import Energy, Linear, Scaled, Sum
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent
from spen.training import TensorSource, fit, joint, pretrain
from spen.training.health import check_examples_alone
from tests.training import toy

RULE = "An energy scores each example alone: sum over everything but the batch"


class Quadratic(Energy):
    def forward(self, y: Tensor, features: Any) -> Tensor:
        return y.square().sum(1)


class Total(Energy):
    """.sum() over the batch as well."""

    def forward(self, y: Tensor, features: Any) -> Tensor:
        return y.square().sum()


class Spread(Energy):
    """The right shape, but each example is compared with the mean of its batch."""

    def forward(self, y: Tensor, features: Any) -> Tensor:
        return (y - y.mean(0)).square().sum(1)


class Shared(Energy):
    """Divided by the size of the batch."""

    def forward(self, y: Tensor, features: Any) -> Tensor:
        return y.square().sum(1) / len(y)


class Wrong(Energy):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 1)

    def forward(self, y: Tensor, features: Any) -> Tensor:
        return self.layer(y).squeeze(1)  # the user's line


def _model(energy: nn.Module) -> spen.SPEN:
    minimizer = spen.Minimizer(Reals(), GradientDescent(2, 0.01))
    return spen.SPEN(energy=energy, init=nn.Linear(3, 3), minimizer=minimizer)


def _fit(energy: nn.Module, out: Path, *, feedforward: bool = False) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 3)
    source = TensorSource(x, x, 4, shuffle=False)
    stage = pretrain(squared_error, epochs=1) if feedforward else joint(EndToEnd(squared_error), epochs=1)
    fit(_model(energy), [stage], source, source, toy.MSE(), out=out, accelerator="cpu", progress=False)


@pytest.mark.parametrize(
    ("energy", "shape"),
    [
        (Sum(local=Quadratic(), prior=Total()), "()"),
        (Sum(local=Quadratic(), prior=Scaled(Total(), 0.5)), "()"),
        (Scaled(Sum(local=Quadratic(), prior=Total()), 2.0), "()"),
        (Sum(local=Quadratic(), prior=nn.Bilinear(3, 3, 1)), "(4, 1)"),
    ],
)
def test_a_term_of_the_wrong_shape_is_named(energy: nn.Module, shape: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the term 'prior' of the energy returned") as refusal:
        _fit(energy, tmp_path)
    assert str(refusal.value) == (
        f"the term 'prior' of the energy returned {shape} for a batch of 4, not one number per example, shape (4,). "
        f"{RULE}"
    )
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("energy", [Spread(), Shared()], ids=lambda e: type(e).__name__)
def test_a_term_that_mixes_examples_is_named(energy: nn.Module, tmp_path: Path) -> None:
    sentence = (
        r"the term 'prior' of the energy mixes examples: its value for example 0 is [\d.]+ in a batch of 4 and [\d.]+ "
        rf"alone. {RULE}"
    )
    with pytest.raises(ValueError, match=sentence):
        _fit(Sum(local=Quadratic(), prior=energy), tmp_path)


def test_values_of_the_sentence() -> None:
    model = _model(Spread())
    nn.init.eye_(model.init.weight)
    nn.init.zeros_(model.init.bias)
    x = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="its value for example 0 is 1 in a batch of 2 and 0 alone"):
        check_examples_alone(model, x)


def test_a_mistake_in_the_energy_surfaces_with_its_own_lines(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as error:
        _fit(Sum(local=Quadratic(), prior=Wrong()), tmp_path)
    assert error.value.__cause__ is None
    assert "the user's line" in "".join(traceback.format_exception(error.value))


def test_pretraining_alone_does_not_ask_the_energy(tmp_path: Path) -> None:
    _fit(Sum(local=Quadratic(), prior=Spread()), tmp_path, feedforward=True)


def test_one_example_and_energies_of_nothing_pass() -> None:
    check_examples_alone(_model(Spread()), torch.ones(1, 3))
    check_examples_alone(_model(Scaled(Quadratic(), 0.0)), torch.ones(4, 3))
    check_examples_alone(_model(Linear()), torch.full((4, 3), torch.nan))


class Rounded(Energy):
    """Two digits, and other ones in a batch of one, as with other kernels."""

    def forward(self, y: Tensor, features: Any) -> Tensor:
        return y.square().sum(1) * (1.01 if len(y) == 1 else 1.0)


class Inner(Energy):
    """Differentiates inside."""

    def forward(self, y: Tensor, features: Any) -> Tensor:
        (slope,) = torch.autograd.grad(y.square().sum(), y, create_graph=True)
        return slope.square().sum(1)


@pytest.mark.parametrize("energy", [Rounded(), Inner(), nn.Dropout()], ids=["rounded", "inner", "dropout"])
def test_rounding_and_noise_of_training_are_no_mixing(energy: nn.Module) -> None:
    class Own(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.part = energy

        def forward(self, y: Tensor, features: Any) -> Tensor:
            value = self.part(y) if isinstance(self.part, nn.Dropout) else self.part(y, features)
            return value if value.dim() == 1 else value.sum(1)

    model = _model(Own()).train()
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    check_examples_alone(model, torch.randn(4, 3, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.rand(2), expected)
    assert model.energy.part.training


def test_the_check_changes_nothing_that_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def weights(out: Path) -> dict[str, list[float]]:
        run = toy.train(out, epochs=1)
        assert run is not None
        return {name: value.tolist() for name, value in run.load().items()}

    with_check = weights(tmp_path / "with")
    monkeypatch.setattr("spen.training.module.check_examples_alone", lambda model, x: None)
    assert weights(tmp_path / "without") == with_check
