"""The checks find what they promise to find, and say it in a sentence."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.descent.potential import Potential
from spen.domains import Box
from spen.energies import Energy
from spen.gradients import Replayed
from spen.gradients.second_order import Products, exact_product
from spen.protocols import Domain, State, StepRule
from spen.rules import GradientDescent
from spen.testing import ContractError, check_domain, check_energy, check_rule, check_strategy

Y = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)


class Network(Energy):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 1)).double()

    def forward(self, y: Tensor, features: None) -> Tensor:
        return self.net(y).squeeze(1)


class Function(Energy):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, y: Tensor, features: None) -> Tensor:
        return self.function(y)  # type: ignore[operator]


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, y: Tensor) -> Tensor:
        return y.square()

    @staticmethod
    def backward(ctx: object, bar: Tensor) -> Tensor:  # type: ignore[override]
        return bar


def test_a_smooth_energy_passes() -> None:
    check_energy(Network(nn.Softplus()), Y)


@pytest.mark.parametrize(
    ("energy", "sentence"),
    [
        (Network(nn.ReLU()), "uses ReLU on the way from y, which has no second derivative"),
        (Network(nn.LeakyReLU()), "uses LeakyReLU on the way from y"),
        (Function(lambda y: y.abs().sum(1)), "uses abs on the way from y"),
        (Function(lambda y: y.clamp(min=0).square().sum(1)), "uses clamp on the way from y"),
        (Function(lambda y: (y.round() + y.square()).sum(1)), "uses round on the way from y"),
        (Function(lambda y: y.norm(p=1, dim=1)), "uses the norm with p=1 on the way from y"),
        (Function(lambda y: F.adaptive_max_pool1d(y[:, None], 2).sum((1, 2))), "uses adaptive max pooling on the way"),
        (Function(lambda y: y.mul_(0.5).square().sum(1)), "the energy changes y or its features in place"),
        (Function(lambda y: None), "the energy Function returned a NoneType; it must return a tensor with one number"),
        (Network(nn.BatchNorm1d(6)), "cannot score an example alone, in a batch of one: Expected more than 1 value"),
        (Function(lambda y: (y - y.mean(0)).square().sum(1)), "changes with its neighbours in the batch"),
        (Function(lambda y: y.square()), r"returned shape \(3, 4\) for a batch of 3; it must return one number"),
        (Function(lambda y: y.square().sum()), r"returned shape \(\) for a batch of 3"),
        (Function(lambda y: y.square().sum(1) + torch.rand(3)), "returns different values for the same y"),
        (Function(lambda y: y.detach().sum(1)), "does not depend on y"),
        (Function(lambda y: y.sum(1) * torch.inf), "is not finite at the given y"),
        (Function(lambda y: WrongBackward.apply(y).sum(1)), "the backward pass of the energy is wrong"),
    ],
)
def test_check_energy_finds(energy: Energy, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        check_energy(energy, Y)


def test_a_clamp_that_does_nothing_here_is_fine() -> None:
    check_energy(Function(lambda y: (y.square() + 1).clamp_min(1e-9).log().sum(1)), Y)


def test_one_number_for_each_answer_is_fine() -> None:
    check_energy(Function(torch.cosh), Y[:, 0])


def test_a_relu_that_y_does_not_pass_is_fine() -> None:
    weight = torch.randn(4, dtype=torch.float64, requires_grad=True)
    check_energy(Function(lambda y: (y.square() * torch.relu(weight)).sum(1)), Y)


def test_once_differentiable_energies_are_named_or_allowed() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, y: Tensor) -> Tensor:
            ctx.save_for_backward(y)  # type: ignore[attr-defined]
            return y.square()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: object, bar: Tensor) -> Tensor:  # type: ignore[override]
            return 2 * ctx.saved_tensors[0] * bar  # type: ignore[attr-defined]

    energy = Function(lambda y: Square.apply(y).sum(1))
    with pytest.raises(ContractError, match="no second derivative: Square can be differentiated only once"):
        check_energy(energy, Y)
    check_energy(energy, Y, second_derivative=False)


def test_check_energy_wants_two_examples() -> None:
    with pytest.raises(ContractError, match="needs a batch of at least two examples"):
        check_energy(Network(nn.Tanh()), Y[:1])


class Drifting(Domain):
    """A domain whose parts can be broken one at a time."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self.broken = broken

    def enter(self, start: Tensor) -> Tensor:
        return start

    def output(self, z: Tensor) -> Tensor:
        if self.broken == "mixes":
            return z - z.mean(0)
        return torch.exp(z) if self.broken == "overflows" else z

    def step(self, z: Tensor, direction: Tensor) -> Tensor:
        if self.broken == "drifts":
            return z + 1
        return z if self.broken == "stuck" else z - direction

    def lift(self, y: Tensor, tangent: Tensor) -> Tensor:
        return 2 * tangent if self.broken == "transpose" else tangent

    def lower(self, y: Tensor, cotangent: Tensor) -> Tensor:
        return cotangent


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("drifts", "moves y although the direction is zero"),
        ("stuck", "ignores the direction of a step"),
        ("overflows", "is not finite for coordinates of ±1e4"),
        ("mixes", "mixes the examples of a batch"),
        ("transpose", "lower is not the transpose of lift"),
    ],
)
def test_check_domain_finds(broken: str, sentence: str) -> None:
    domain: Domain = Drifting(broken)
    with pytest.raises(ContractError, match=sentence):
        check_domain(domain)


class Leaky(Box):
    """A box that is left, one way at a time."""

    def __init__(self, broken: str) -> None:
        super().__init__("projected")
        self.broken = broken

    def enter(self, start: Tensor) -> Tensor:
        return start if self.broken == "enters" else super().enter(start)

    def step(self, z: Tensor, direction: Tensor) -> Tensor:
        if self.broken == "large":
            return (z - direction.clamp(-1e3, 1e3)).clamp(0, 1) + (direction.abs() > 1e3) * 2.0
        return z - direction if self.broken == "steps" else super().step(z, direction)

    def lift(self, y: Tensor, tangent: Tensor) -> Tensor:
        return tangent if self.broken == "lifts" else super().lift(y, tangent)

    def lower(self, y: Tensor, cotangent: Tensor) -> Tensor:
        return cotangent if self.broken == "lifts" else super().lower(y, cotangent)

    def contains(self, y: Tensor) -> Tensor:
        return super().contains(y)[:1] if self.broken == "answers" else super().contains(y)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("enters", "leaves its set at the start: contains(y) is False"),
        ("steps", "leaves its set after a step of length 0.1 (torch.float32): contains(y) is False"),
        ("large", "leaves its set after a step of length 10000 (torch.float32): contains(y) is False"),
        ("lifts", "leaves its set after a small move along a lifted direction: contains(y) is False"),
        ("answers", "contains must return one truth value per example, shape (3,) of torch.bool"),
    ],
)
def test_check_domain_finds_a_domain_that_leaves_its_set(broken: str, sentence: str) -> None:
    with pytest.raises(ContractError, match=re.escape(sentence)):
        check_domain(Leaky(broken))


class Normalised(GradientDescent):
    """Steps of unit length: g/‖g‖, by formulas that break at g = 0."""

    def __init__(self, broken: str) -> None:
        super().__init__(3, 0.1)
        self.broken = broken

    def update(self, t: int, z: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        squared = gradient.square().sum(1, keepdim=True)
        floor = 1e-12 if self.broken == "nothing" else 0.0
        size = (squared + floor).sqrt() + (1e-6 if self.broken == "derivative" else 0.0)
        direction, after = super().update(t, z, gradient, state)
        return direction / size, after


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("value", "the step of Normalised at a gradient of zero is not finite (step 0)"),
        (
            "derivative",
            "the derivative of Normalised at a gradient of zero is not finite: a norm or square root needs a small "
            "number added under the root",
        ),
    ],
)
def test_check_rule_finds_what_breaks_at_a_gradient_of_zero(broken: str, sentence: str) -> None:
    check_rule(Normalised("nothing"))
    with pytest.raises(ContractError, match=re.escape(sentence)):
        check_rule(Normalised(broken))


class BrokenRule(StepRule):
    def __init__(self, broken: str) -> None:
        super().__init__()
        self.steps, self.broken = 3, broken

    def begin(self, z: Tensor) -> State:
        return (torch.zeros_like(z),)

    def update(self, t: int, z: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        direction = 0.1 * gradient
        if self.broken == "mixes":
            direction = direction - direction.mean(0)
        if self.broken == "cuts":
            direction = z.detach() * 0 + z - z.detach().clone() * 0
        if self.broken == "writes":
            gradient.mul_(1.0).add_(1)
        return direction, (gradient.clone(),)

    def recall(self, before: State, after: State) -> Tensor:
        return after[0] + (1 if self.broken == "forgets" else 0)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("mixes", "mixes the examples of a batch"),
        ("forgets", "recall does not return the gradient"),
        ("writes", "changes the gradient it was given"),
        ("cuts", "sends no finite gradient back to the first point"),
    ],
)
def test_check_rule_finds(broken: str, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        check_rule(BrokenRule(broken))


def test_check_rule_takes_the_rule_as_it_is() -> None:
    rule = GradientDescent(2, 0.1)
    check_rule(rule)
    assert rule.rates.log.dtype == torch.float32


def test_check_strategy_finds_a_wrong_product() -> None:
    class Doubled(Replayed):
        def product(self, potential: Potential, point: Tensor, direction: Tensor) -> Products:
            at_point, rest = exact_product(potential, point, direction)
            return at_point, [None if r is None else 2 * r for r in rest]

    with pytest.raises(ContractError, match=r"differs from Exact by .* in the gradient of .*, over Box"):
        check_strategy(Doubled(), domains=[Box("projected")])
