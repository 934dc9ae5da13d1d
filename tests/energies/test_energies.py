"""Energies by value: formulas, composition, smoothness, convexity, errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import spen
from spen.domains import Reals
from spen.energies import (
    ICNN,
    Energy,
    EntropySmoothed,
    Linear,
    NegativeEntropy,
    NonNegativeConv2d,
    NonNegativeLinear,
    Scaled,
    SoftAbs,
    SoftNand,
    Softplus,
    Sum,
    soft_nand,
)
from spen.energies.compose import terms_of
from spen.gradients import Checkpointed, Compiled, Exact, FiniteDifference
from spen.objectives import EndToEnd, LossAugmented, squared_error
from spen.objectives.coordinates import Coordinates, InCoordinates
from spen.objectives.deep_value import Misfit
from spen.parameters import Positive
from spen.protocols import GradientStrategy
from spen.rules import GradientDescent

Y = torch.tensor([[0.2, 0.8], [0.5, 0.5]], dtype=torch.float64)
S = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)


def test_sums_and_weights_are_energies() -> None:
    local, prior = Linear(), NegativeEntropy()
    total = local + 0.5 * prior
    assert torch.allclose(total(Y, S), local(Y, S) + 0.5 * prior(Y, S))
    assert torch.allclose((prior * 2 + local)(Y, S), 2 * prior(Y, S) + local(Y, S))
    assert [name for name, _, _ in total.terms()] == ["linear", "negativeentropy"]


def test_sums_are_flat_and_names_unique() -> None:
    total = Linear() + Linear() + NegativeEntropy()
    assert list(total.parts) == ["linear", "linear2", "negativeentropy"]
    named = Sum(local=Linear(), prior=EntropySmoothed(Linear(), 0.5))
    assert [name for name, _, _ in named.terms()] == ["local", "prior.Linear", "prior.entropy"]
    assert [closed for _, _, closed in named.terms()] == [False, False, True]
    with pytest.raises(ValueError, match="a Sum needs at least one energy"):
        Sum()


def test_the_terms_add_up_to_the_energy() -> None:
    energy = Sum(local=Linear(), prior=Scaled(EntropySmoothed(Linear(), 0.5), 3.0, learned=True)).double()
    assert torch.allclose(sum(f(Y, S) for _, f, _ in terms_of(energy)), energy(Y, S))


def test_only_numbers_scale_and_only_energies_add() -> None:
    with pytest.raises(TypeError):
        Linear() * "twice"  # type: ignore[operator]
    with pytest.raises(TypeError):
        Linear() + 1  # type: ignore[operator]


class Plain(nn.Module):
    """A module that is no Energy."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.scale * y.square().sum(1)


def _slope(energy: nn.Module) -> Tensor:
    y = Y.clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy(y, S).sum(), [y])
    return slope


@pytest.mark.parametrize(
    ("make", "weights"),
    [
        (lambda a, b: a + b, (1, 1)),
        (lambda a, b: sum([b, b], 0 * b), (0, 2)),
        (lambda a, b: sum([b]), (0, 1)),
        (lambda a, b: sum([b, a]), (1, 1)),
        (lambda a, b: -b, (0, -1)),
        (lambda a, b: b - a, (-1, 1)),
        (lambda a, b: a - b, (1, -1)),
        (lambda a, b: a - (b - a) - -2 * b, (2, 1)),
        (lambda a, b: a + torch.tensor(0.5) * b, (1, 0.5)),
        (lambda a, b: a + b * torch.tensor([2], dtype=torch.int32), (1, 2)),
        (lambda a, b: a + nn.Parameter(torch.tensor(-0.5)) * b, (1, -0.5)),
        (lambda a, b: a + np.float32(0.5).item() * b, (1, 0.5)),
        (lambda a, b: a + b * np.float32(0.5), (1, 0.5)),
    ],
)
def test_energies_are_added_subtracted_and_weighted(make: Callable[..., Energy], weights: tuple[float, float]) -> None:
    """A plain module may stand on either side, the left one too."""
    plain, energy = Plain(), NegativeEntropy()
    total = make(plain, energy)
    assert isinstance(total, Energy)
    values = [f(Y, S) for f in (plain, energy)]
    assert torch.allclose(total(Y, S), sum(w * v for w, v in zip(weights, values, strict=True)))
    slopes = [_slope(f) for f in (plain, energy)]
    assert torch.allclose(_slope(total), sum(w * s for w, s in zip(weights, slopes, strict=True)))


def test_a_tensor_weighs_as_a_buffer_and_a_parameter_is_learned() -> None:
    number = torch.tensor(0.5, dtype=torch.float64)
    fixed = number * Linear()
    assert list(fixed.parameters()) == []
    assert fixed.state_dict() == {"weight": number}
    number.fill_(7)
    assert torch.allclose(fixed(Y, S), 0.5 * Linear()(Y, S))
    assert "weight=0.5" in repr(fixed.float()).replace("tensor(0.5000)", "0.5")

    weight = nn.Parameter(torch.tensor([-0.5], dtype=torch.float64))
    learned = weight * Linear()
    assert [p is weight for p in learned.parameters()] == [True]
    learned(Y, S).sum().backward()
    assert weight.grad is not None
    assert torch.allclose(weight.grad, Linear()(Y, S).sum()[None])
    with torch.no_grad():
        weight.fill_(2)
    assert torch.allclose(learned(Y, S), 2 * Linear()(Y, S))


@pytest.mark.parametrize("strategy", [Exact(), Checkpointed(), FiniteDifference(), Compiled(patience=0)], ids=str)
def test_the_descent_teaches_a_parameter_that_weighs_an_energy(strategy: GradientStrategy) -> None:
    """y_1 = η w s for E = −w⟨s, y⟩, so dΣy_1/dw = η Σs."""
    weight = nn.Parameter(torch.tensor(-0.5, dtype=torch.float64))
    minimizer = spen.Minimizer(Reals(), GradientDescent(1, 0.1), strategy).double()
    minimizer(weight * Linear(), S, torch.zeros_like(S)).output.sum().backward()
    assert float(weight.grad) == pytest.approx(0.1 * float(S.sum()), rel=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: torch.rand(3) * Linear(),
            "the weight of an energy must be one number, not a tensor of shape (3,): weights of single examples or "
            "coordinates belong inside the energy",
        ),
        (
            lambda: torch.ones((), requires_grad=True) * Linear(),
            "the weight of an energy is a tensor that requires a gradient but is no nn.Parameter, so no optimiser "
            "would find it: write nn.Parameter(weight), or weight.detach() for a fixed one",
        ),
        (
            lambda: Scaled(Linear(), nn.Parameter(torch.ones(())), learned=True),
            "an nn.Parameter is learned as it is, of either sign: leave learned=True out, or give the first weight as "
            "a number to learn a positive one",
        ),
    ],
)
def test_weights_that_would_not_do_what_they_seem_to_are_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == sentence


class Whole(Energy):
    """A term that forgets the batch."""

    def __init__(self, shape: str = "sum") -> None:
        super().__init__()
        self.shape = shape

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return {"sum": y.sum(), "mean": y.square().mean(), "kept": y.sum(1, keepdim=True), "free": y.square()}[
            self.shape
        ]


@pytest.mark.parametrize(
    ("energy", "name", "shape"),
    [
        (Linear() + Whole(), "whole", ()),
        (Linear() + 0.5 * Whole("mean"), "whole", ()),
        (Linear() - -Whole("mean"), "whole", ()),
        (Sum(local=Linear(), prior=Whole()), "prior", ()),
        (Sum(local=Linear(), prior=Scaled(Whole("kept"), 0.1, learned=True)), "prior", (2, 1)),
        (Sum(local=Linear(), prior=Whole("free")), "prior", (2, 2)),
        (EntropySmoothed(Whole()), "Whole", ()),
        (EntropySmoothed(Linear() + Whole()), "whole", ()),
        (Linear() + EntropySmoothed(Whole()), "Whole", ()),
        (LossAugmented(Whole(), lambda y, target: y.sum(1)), "Whole", ()),
        (Misfit(Whole(), lambda y, target: y.sum(1), "squared"), "Whole", ()),
        (InCoordinates(Whole(), Coordinates(Reals())), "Whole", ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_term_that_mixes_the_examples_is_named(energy: Energy, name: str, shape: tuple[int, ...]) -> None:
    features = (S, S) if isinstance(energy, LossAugmented | Misfit) else S
    with pytest.raises(ValueError) as caught:
        energy(Y, features)
    assert str(caught.value) == (
        f"the term '{name}' of the energy returned shape {shape} for a batch of 2; each term must return one number "
        "per example, shape (2,): sum over everything but the batch"
    )


@pytest.mark.parametrize("strategy", [Exact(), Checkpointed(), FiniteDifference(), Compiled(patience=0)], ids=str)
def test_a_term_that_mixes_the_examples_is_not_trained(strategy: GradientStrategy) -> None:
    minimizer = spen.Minimizer(Reals(), GradientDescent(2, 0.1), strategy)
    sentence = r"the term 'prior' of the energy returned shape \(\) for a batch of"
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        minimizer(Sum(local=Linear(), prior=Whole()), S.clone().requires_grad_(), torch.zeros_like(S))


def test_the_check_of_the_terms_can_be_traced() -> None:
    energy = EntropySmoothed(Sum(local=Linear(), prior=Scaled(SoftNand(lambda y, _: (y[:, :1], y[:, 1:])), 2.0)))
    traced = make_fx(lambda y, s: energy(y, s), tracing_mode="symbolic", _allow_non_fake_inputs=True)(
        Y.float(), S.float()
    )
    torch.testing.assert_close(traced(Y.float(), S.float()), energy(Y.float(), S.float()))
    compiled = torch.compile(energy, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(Y.float(), S.float()), energy(Y.float(), S.float()))


def test_a_learned_weight_stays_positive() -> None:
    energy = Scaled(Linear(), 0.1, learned=True)
    optimizer = torch.optim.SGD(energy.parameters(), lr=100.0)
    for _ in range(3):
        optimizer.zero_grad()
        energy(Y, S.abs()).neg().sum().backward()
        optimizer.step()
    assert isinstance(energy.weight, Positive)
    assert 0 <= energy.weight().item() < 0.1


def test_positive_numbers_refuse_others() -> None:
    with pytest.raises(ValueError, match=r"a rate must be positive and finite, not -1"):
        Positive(-1.0, learned=True, name="a rate")
    assert float(Positive(0.3, learned=False, name="x")()) == pytest.approx(0.3)
    assert list(Positive(0.3, learned=False, name="x").parameters()) == []


def test_entropy_by_value() -> None:
    expected = 0.2 * math.log(0.2) + 0.8 * math.log(0.8)
    assert float(NegativeEntropy()(Y, None)[0]) == pytest.approx(expected)
    both = 2 * (0.2 * math.log(0.2) + 0.8 * math.log(0.8))
    assert float(NegativeEntropy("box")(Y, None)[0]) == pytest.approx(both)
    smoothed = EntropySmoothed(Linear(), 0.5)
    assert torch.allclose(smoothed(Y, S), Linear()(Y, S) + 0.5 * NegativeEntropy()(Y, None))
    assert repr(NegativeEntropy("box")) == 'NegativeEntropy(over="box")'
    with pytest.raises(ValueError, match='over must be "simplex" or "box"'):
        NegativeEntropy("cube")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_is_finite_at_the_corners(dtype: torch.dtype) -> None:
    y = torch.softmax(torch.tensor([[1e4, -1e4, 0.0], [-90.0, 0.0, 90.0]], dtype=dtype), -1).requires_grad_()
    value = NegativeEntropy()(y, None)
    (g,) = torch.autograd.grad(value.sum(), y, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), y)
    assert bool(value.isfinite().all() and g.isfinite().all() and h.isfinite().all())


@given(st.floats(-50, 50), st.floats(0.5, 50))
def test_softplus_and_softabs_bracket_what_they_smooth(x: float, temperature: float) -> None:
    value = torch.tensor(x, dtype=torch.float64)
    plus = float(Softplus(temperature)(value))
    assert max(x, 0) - 1e-9 <= plus <= max(x, 0) + math.log(2) / temperature + 1e-9
    soft = float(SoftAbs(temperature)(value))
    assert abs(x) / 2 - 1e-9 <= soft <= abs(x) / 2 + math.log(2) / temperature + 1e-9
    assert soft == pytest.approx(float(SoftAbs(temperature)(-value)))


def test_temperatures_must_be_positive() -> None:
    for build in (Softplus, SoftAbs, lambda t: SoftNand(lambda y, _: (y, y), temperature=t)):
        with pytest.raises(ValueError, match="the softplus temperature must be positive, not 0"):
            build(0)


def test_soft_nand_by_value() -> None:
    a, b = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, 1.0])
    assert torch.allclose(soft_nand(a, b), torch.log1p(torch.exp(a + b - 1)))
    assert float(soft_nand(a, b, 20.0)[2] - 1) == pytest.approx(0, abs=1e-6)
    energy = SoftNand(lambda y, mask: (y[:, :1], y[:, 1:], mask), weight=2.0).double()
    mask = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert energy(Y, mask).tolist() == pytest.approx([2 * math.log1p(1.0), 0.0])
    assert energy.weight.log.requires_grad
    assert not SoftNand(lambda y, _: (y, y), learned=False).weight.log.requires_grad


def _convex_along_lines(energy: nn.Module, inputs: int, features: Tensor) -> bool:
    a, b = torch.randn(64, inputs, dtype=torch.float64) * 3, torch.randn(64, inputs, dtype=torch.float64) * 3
    context = features.expand(64, -1)
    with torch.no_grad():
        for mix in torch.linspace(0.1, 0.9, 5):
            between = energy(mix * a + (1 - mix) * b, context)
            above = mix * energy(a, context) + (1 - mix) * energy(b, context)
            if not bool((between <= above + 1e-9).all()):
                return False
    return True


def test_icnn_is_convex_before_and_after_training() -> None:
    energy = ICNN(4, (8, 8), context=3).double()
    features = torch.randn(1, 3, dtype=torch.float64)
    assert _convex_along_lines(energy, 4, features)

    minimizer = spen.Minimizer(Reals(), GradientDescent(4, 0.1), Exact())
    model = spen.SPEN(energy=energy, init=nn.Linear(3, 4).double(), minimizer=minimizer)
    x, target = torch.randn(16, 3, dtype=torch.float64), torch.randn(16, 4, dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    objective = EndToEnd(squared_error)
    first = last = 0.0
    for step in range(60):
        optimizer.zero_grad()
        loss = objective(model, x, target)
        loss.backward()
        optimizer.step()
        first, last = (float(loss.detach()), 0.0) if step == 0 else (first, float(loss.detach()))
        for layer in energy.modules():
            if isinstance(layer, NonNegativeLinear):
                assert bool((layer.weight >= 0).all())
    assert last < 0.9 * first
    assert _convex_along_lines(energy, 4, features)


def test_icnn_options_do_something() -> None:
    y = torch.randn(2, 4)
    torch.manual_seed(0)
    plain = ICNN(4, (5,))
    torch.manual_seed(0)
    sharp = ICNN(4, (5,), temperature=10.0)
    assert not torch.allclose(plain(y, None), sharp(y, None))
    selected = ICNN(4, (5,), context=2, select=lambda f: f["x"])
    assert not torch.allclose(selected(y, {"x": torch.zeros(2, 2)}), selected(y, {"x": torch.ones(2, 2)}))
    with pytest.raises(ValueError, match="an ICNN needs at least one hidden layer"):
        ICNN(4, ())


def test_a_non_negative_convolution_is_one() -> None:
    layer = NonNegativeConv2d(2, 3, 3)
    assert bool((layer.weight >= 0).all())
    image = torch.rand(1, 2, 5, 6)
    assert layer(image).shape == (1, 3, 5, 6)
    assert torch.allclose(layer(image), nn.functional.conv2d(image, layer.weight, layer.bias, padding=1))
    assert NonNegativeConv2d(2, 3, 3, bias=False).bias is None


class Values(Linear):
    """Named like a method of the dictionary that holds the summands."""


def test_summands_may_have_any_class_and_most_names() -> None:
    y, scores = torch.rand(2, 3), torch.rand(2, 3)
    both = Sum(Values(), Values(), local=Linear())
    assert [name for name, _, _ in both.terms()] == ["values2", "values3", "local"]
    assert torch.allclose(both(y, scores), 3 * Linear()(y, scores))
    with pytest.raises(ValueError, match="a summand cannot be called 'values', which torch's ModuleDict uses"):
        Sum(values=Linear())
