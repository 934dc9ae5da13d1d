"""Energies by value: formulas, composition, smoothness, convexity, errors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.energies import (
    ICNN,
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
from spen.gradients import Exact
from spen.objectives import EndToEnd, squared_error
from spen.positive import Positive
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
