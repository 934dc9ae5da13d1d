"""Losses of several iterates by one call: the same numbers and gradients, and every loss that cannot is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import small
from spen.domains import Reals
from spen.gradients import Exact
from spen.objectives import EndToEnd, binary_log_loss, squared_error, vmapped_loss
from spen.objectives.vmapped_loss import VmappedLoss
from spen.rules import GradientDescent
from spen.tasks.multilabel.losses import F1AndLog
from spen.testing.strategy import example_model, gradients_of


@pytest.fixture(autouse=True)
def cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmapped_loss, "DEVICES", ("cpu", "cuda"))


class Calls:
    """A loss that counts how often it is asked."""

    def __init__(self, loss: Callable[[Tensor, Any], Tensor]) -> None:
        self.loss, self.count = loss, 0

    def __call__(self, y: Tensor, target: Any) -> Tensor:
        self.count += 1
        return self.loss(y, target)


def iterates(count: int = 4, shape: tuple[int, ...] = (3, 5)) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.rand(shape, dtype=torch.float64).requires_grad_() for _ in range(count)]


def mean_error(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean()


@pytest.mark.parametrize("loss", [squared_error, binary_log_loss, F1AndLog(), mean_error])
def test_one_call_gives_the_values_and_gradients_of_many(loss: Callable[[Tensor, Any], Tensor]) -> None:
    target = (iterates()[0].detach() < 0.5).double()
    counted, ys, way = Calls(loss), iterates(), VmappedLoss()
    way(counted, ys, target)
    assert (way.agrees, counted.count) == (True, 6)  # tried both ways, then used one
    found = way(counted, ys, target)
    assert counted.count == 7
    wanted = torch.stack([loss(y, target) for y in ys])
    torch.testing.assert_close(found, wanted)
    weights = torch.rand_like(wanted)
    for got, right in zip(
        torch.autograd.grad((weights * found).sum(), ys), torch.autograd.grad((weights * wanted).sum(), ys), strict=True
    ):
        torch.testing.assert_close(got, right)


def looks_at_values(y: Tensor, target: Tensor) -> Tensor:
    return squared_error(y, target) * (2.0 if float(y.detach().max()) > 0.5 else 1.0)


def draws(y: Tensor, target: Tensor) -> Tensor:
    return squared_error(y + torch.rand_like(y), target)


def takes_apart(y: Tensor, target: Tensor) -> Tensor:
    return squared_error(y, target) + torch.histc(y.detach(), 4).sum()


def grows_with_calls() -> Callable[[Tensor, Any], Tensor]:
    calls = Calls(squared_error)
    return lambda y, target: calls(y, target) * calls.count


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5, dtype=torch.float64)

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        return squared_error(self.norm(y), target)


@pytest.mark.parametrize(
    "loss", [looks_at_values, draws, takes_apart, grows_with_calls(), Normalised()], ids=lambda loss: str(loss)[:20]
)
@pytest.mark.filterwarnings("error")
def test_a_loss_that_cannot_is_asked_for_one_iterate_after_the_other(loss: Callable[[Tensor, Any], Tensor]) -> None:
    target, counted, way = torch.zeros(3, 5, dtype=torch.float64), Calls(loss), VmappedLoss()
    way(counted, iterates(), target)
    assert not way.agrees
    before = counted.count
    assert way(counted, iterates(), target).shape == (4, 3)
    assert counted.count == before + 4


def test_a_batch_norm_sees_every_iterate_once() -> None:
    loss = Normalised()
    VmappedLoss()(loss, iterates(), torch.zeros(3, 5, dtype=torch.float64))
    assert loss.norm.num_batches_tracked == 4


def test_an_error_of_the_loss_is_the_users_to_read() -> None:
    with pytest.raises(ValueError, match=r"y has shape .* and the target \(3, 7\)"):
        VmappedLoss()(squared_error, iterates(), torch.zeros(3, 7))


def test_another_loss_is_tried_anew() -> None:
    way, target = VmappedLoss(), torch.zeros(3, 5, dtype=torch.float64)
    way(looks_at_values, iterates(), target)
    assert not way.agrees
    way(squared_error, iterates(), target)
    assert way.agrees


@pytest.mark.parametrize("case", ["one iterate", "large", "elsewhere", "traced"])
def test_only_small_iterates_on_a_gpu_are_worth_it(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ys, target, counted, way = iterates(), torch.zeros(3, 5, dtype=torch.float64), Calls(squared_error), VmappedLoss()
    if case == "one iterate":
        ys = ys[:1]
    elif case == "large":
        monkeypatch.setattr(vmapped_loss, "SMALL", 14)
    elif case == "elsewhere":
        monkeypatch.undo()
    else:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    way(counted, ys, target)
    assert (way.tested, counted.count) == (None, len(ys))


def test_end_to_end_asks_for_all_iterates_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, target = example_model(Reals(), GradientDescent(4, 0.1), Exact())
    loss = Calls(squared_error)
    objective = EndToEnd(loss)
    objective(model, x, target)
    before = loss.count
    found = gradients_of(model, x, target, objective)
    assert loss.count == before + 1
    monkeypatch.setattr(vmapped_loss, "DEVICES", ())
    wanted = gradients_of(model, x, target, objective)
    assert loss.count == before + 5
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("problem", [small.srl, small.label_sets])
def test_the_losses_of_role_labelling_and_label_sets_can(problem: Callable[..., Any]) -> None:
    made = problem("cpu", batch=3)
    trajectory, way = made.model(made.x), VmappedLoss()
    way(made.loss, trajectory.outputs, made.target)
    assert way.agrees
