"""Domain, entropy, loss, target and objective that do not belong together are refused, in a sentence."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import spen
from spen.domains import Box, Domain, Reals, Simplex
from spen.energies import Energy, EntropySmoothed, Linear, NegativeEntropy, Scaled, Sum
from spen.gradients import Exact
from spen.objectives import (
    DeepValue,
    DirectLoss,
    EndToEnd,
    Feedforward,
    InferenceNetwork,
    StructuredHinge,
    binary_log_loss,
    log_loss,
    squared_error,
)
from spen.protocols import Objective
from spen.rules import GradientDescent


class Curved(Energy):
    def __init__(self, scale: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(scale))
        self.offset = offset

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.weight * (y - features).square().flatten(1).mean(1) + self.offset


def model(domain: Domain, energy: nn.Module | None = None) -> spen.SPEN:
    minimizer = spen.Minimizer(domain, GradientDescent(2, 0.1), Exact())
    return spen.SPEN(energy=Curved() if energy is None else energy, init=nn.Identity(), minimizer=minimizer)


def one_hot_images() -> Tensor:  # (2, 3, 4, 5), the classes in dimension 1
    torch.manual_seed(0)
    return nn.functional.one_hot(torch.randint(3, (2, 4, 5)), 3).permute(0, 3, 1, 2).float()


def said(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    "energy",
    [
        EntropySmoothed(Linear()),
        NegativeEntropy(),
        Linear() + 0.5 * NegativeEntropy(),
        Sum(local=Linear(), prior=Scaled(EntropySmoothed(Linear()), 0.1, learned=True)),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_entropy_over_the_simplex_is_not_that_of_a_box(energy: Energy) -> None:
    assert said(lambda: model(Box("logits"), energy)) == (
        'the energy holds an entropy over="simplex", but the domain is Box(update="logits"): '
        'write EntropySmoothed(energy, over="box") or NegativeEntropy("box")'
    )
    model(Simplex(), energy)
    model(Simplex(dim=1), energy)


def test_an_entropy_over_the_box_is_not_that_of_a_simplex() -> None:
    assert said(lambda: model(Simplex(), EntropySmoothed(Linear(), over="box"))) == (
        'the energy holds an entropy over="box", but the domain is Simplex(update="logits"): '
        'write EntropySmoothed(energy, over="simplex") or NegativeEntropy("simplex")'
    )
    model(Box("logits"), EntropySmoothed(Linear(), over="box"))


def test_an_entropy_needs_probabilities() -> None:
    energy = EntropySmoothed(Linear(), over="box")
    assert said(lambda: model(Box("logits", low=-1.0), energy)) == (
        'the energy holds an entropy, which needs 0 ≤ y ≤ 1, but the domain is Box(update="logits", low=-1, high=1): '
        "use Box() and scale y inside the energy, or leave the entropy out"
    )
    model(Box("projected", low=0.1, high=torch.tensor(0.9)), energy)
    for over in (energy, EntropySmoothed(Linear())):
        assert said(lambda over=over: model(Reals(), over)) == (
            "the energy holds an entropy, which needs probabilities, but the domain is Reals(): use a Box or a "
            "Simplex, or leave the entropy out"
        )


def test_a_wrapper_may_show_an_entropy_another_y() -> None:
    class OfPairs(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.inner = NegativeEntropy("box")

        def forward(self, y: Tensor, features: Tensor) -> Tensor:
            return self.inner(y[..., 1], features)

    model(Simplex(), OfPairs())


def test_a_domain_that_was_changed_is_looked_at_again() -> None:
    x, target = torch.rand(2, 3), torch.rand(2, 3)
    net, objective = model(Box("logits"), EntropySmoothed(Linear(), over="box")), EndToEnd(binary_log_loss)
    objective(net, x, target)
    net.minimizer = spen.Minimizer(Simplex(), GradientDescent(2, 0.1), Exact())
    for _ in range(2):  # what was refused once is refused again
        assert 'an entropy over="box", but the domain is Simplex' in said(lambda: objective(net, x, target))


OBJECTIVES: list[Callable[..., Objective]] = [EndToEnd, Feedforward, StructuredHinge, DirectLoss, InferenceNetwork]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_log_loss_over_a_box_has_no_cost_for_false_positives(objective: Callable[..., Objective]) -> None:
    x, target = torch.rand(2, 3), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    assert said(lambda: objective(log_loss)(model(Box("logits")), x, target)) == (
        'log_loss has no cost for labels that are on and should be off, so over Box(update="logits") every label would '
        "be switched on: use binary_log_loss"
    )
    objective(binary_log_loss)(model(Box("logits")), x, target)
    objective(log_loss)(model(Simplex()), x, torch.eye(3)[:2])
    objective(binary_log_loss)(model(Simplex()), x, torch.eye(3)[:2])


def test_the_loss_of_the_anchor_is_looked_at_too() -> None:
    objective = InferenceNetwork(squared_error, anchor=1.0, anchor_loss=log_loss)
    assert "use binary_log_loss" in said(lambda: objective(model(Box("logits")), torch.rand(2, 3), torch.rand(2, 3)))


@pytest.mark.parametrize("loss", [log_loss, binary_log_loss])
def test_log_losses_need_probabilities(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = torch.rand(2, 3)
    assert said(lambda: EndToEnd(loss)(model(Reals()), x, x)) == (
        f"{loss.__name__} needs probabilities, but Reals() lets y leave [0, 1]: use squared_error, or a Simplex or "
        "Box() as the domain"
    )
    if loss is binary_log_loss:
        wide, narrow = Box("projected", high=2.0), Box("projected", low=0.1, high=0.9)
        assert 'Box(update="projected", low=0, high=2) lets y leave [0, 1]' in said(
            lambda: EndToEnd(loss)(model(wide), x, x)
        )
        EndToEnd(loss)(model(narrow), x, x)


@pytest.mark.parametrize("loss", [log_loss, binary_log_loss, squared_error])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_images_whose_classes_are_in_dimension_one(
    objective: Callable[..., Objective], loss: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """A Simplex normalises the last dimension: over (B, K, H, W) that is W."""
    target, x = one_hot_images(), torch.randn(2, 3, 4, 5)
    refused = objective(loss)
    for _ in range(2):
        assert said(lambda: refused(model(Simplex()), x, target)) == (
            'the target of shape (2, 3, 4, 5) sums to 1 along dimension 1, but Simplex(update="logits") normalises y '
            "along dimension 3: write Simplex(dim=1)"
        )
    assert bool(objective(loss)(model(Simplex(dim=1)), x, target).isfinite())
    assert bool(objective(loss)(model(Simplex(dim=-3)), x, target.long()).isfinite())


@pytest.mark.parametrize(
    "target",
    [
        nn.functional.one_hot(torch.arange(12).view(2, 6) % 4, 4).float(),  # one class each
        nn.functional.one_hot(torch.arange(12).view(2, 6) % 4, 4) * torch.tensor([1, 1, 1, 1, 1, 0])[:, None],  # padded
        torch.full((2, 6, 4), 0.3),  # sums to 1 along no dimension: classes may be weighted
        torch.ones(2, 1, 4),  # a dimension of one number says nothing
    ],
    ids=["labels", "padded", "weighted", "single"],
)
def test_targets_that_may_be_meant_are_left_alone(target: Tensor) -> None:
    EndToEnd(log_loss)(model(Simplex()), torch.randn(target.shape), target)


def test_the_target_is_looked_at_in_the_first_batch_alone() -> None:
    class Waits(TorchDispatchMode):
        """Counts the tensors that the host waits for."""

        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    net, x, target = model(Simplex(dim=1)), torch.randn(2, 3, 4, 5), one_hot_images()
    objective = EndToEnd(log_loss)
    counts = []
    for _ in range(3):
        with Waits() as waits:
            objective(net, x, target)
        counts.append(waits.count)
    assert counts == [1, 0, 0]


@pytest.mark.parametrize(
    "objective", [*(make(squared_error) for make in OBJECTIVES), DeepValue(squared_error)], ids=repr
)
def test_objectives_that_have_run_can_be_copied_and_pickled(objective: Objective) -> None:
    net, x = model(Simplex()), torch.rand(2, 3)
    expected = objective(net, x, torch.eye(3)[:2])
    for other in (copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        value = other(net, x, torch.eye(3)[:2])
        if not isinstance(objective, DeepValue):  # it draws at random
            torch.testing.assert_close(value, expected)


def f1(y: Tensor, target: Tensor) -> Tensor:
    return 2 * (y * target).sum(1) / (y.sum(1) + target.sum(1))


@pytest.mark.parametrize(
    ("fit", "offset", "sentence"),
    [
        (
            "cross_entropy",
            -1000.0,
            "DeepValue fits sigmoid(−E) to values in [0, 1], but the energies of the first batch are of size 1e+03 (at "
            'most 30 with fit="cross_entropy"): scale the energy by about 0.001, Scaled(energy, 0.001)',
        ),
        (
            "squared",
            25.0,
            "DeepValue fits −E to values in [0, 1], but the energies of the first batch are of size 25 (at most 10 "
            'with fit="squared"): scale the energy by about 0.01, Scaled(energy, 0.01)',
        ),
    ],
)
def test_deep_values_say_the_scale_they_need(fit: str, offset: float, sentence: str) -> None:
    x, target = torch.rand(4, 3), torch.ones(4, 3)
    energy, objective = Curved(1e-3, offset), DeepValue(f1, fit=fit)  # type: ignore[arg-type]
    for _ in range(2):  # what was refused once is refused again
        assert said(lambda: objective(model(Box("projected"), energy), x, target)) == sentence
    factor = float(sentence.split("Scaled(energy, ")[1].rstrip(")"))
    loss = objective(model(Box("projected"), Scaled(energy, factor)), x, target)
    assert float(loss.detach()) < 3
    loss.backward()
    assert float(energy.weight.grad.abs()) > 0  # type: ignore[union-attr]


def test_deep_values_look_at_the_first_batch_of_an_energy_alone() -> None:
    """Training may lead the energy anywhere."""
    x, target = torch.rand(4, 3), torch.ones(4, 3)
    net, objective = model(Box("projected"), Curved(1e-3)), DeepValue(f1)
    objective(net, x, target)
    net.energy.offset = -1000.0
    objective(net, x, target)
