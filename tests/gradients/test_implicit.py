"""Implicit differentiation: right at a minimiser, refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Box, Domain, Reals, Simplex
from spen.energies import Energy, EntropySmoothed
from spen.gradients import Checkpointed, Compiled, Exact, FiniteDifference, GradientStrategy, Implicit, Truncated
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent, Momentum
from spen.testing.strategy import gradients_of

DOMAINS = [
    Reals(),
    Box("projected"),
    Box("logits"),
    *[Simplex(u) for u in ("logits", "through_logits", "mirror", "projected")],
]


class Convex(Energy):
    """log Σ exp(A y + C f) + ½‖y − D f‖²: strongly convex in y."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.context, self.target = nn.Linear(4, 6), nn.Linear(3, 6), nn.Linear(3, 4)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        smooth = torch.logsumexp(self.mix(y) + self.context(features), 1)
        return smooth + 0.5 * (y - self.target(features)).square().sum(1)


def _model(domain: Domain, gradient: GradientStrategy, *, steps: int = 3000, tolerance: float = 1e-13) -> spen.SPEN:
    torch.manual_seed(2)
    energy: nn.Module = EntropySmoothed(Convex(), 0.3) if isinstance(domain, Simplex) else Convex()
    if isinstance(domain, Box) and domain.update != "projected":
        energy = EntropySmoothed(Convex(), 0.3, over="box")
    rule = Momentum(steps, 1.0 if domain.through else 0.2, decay=0.5)  # the softmax shrinks a gradient
    minimizer = spen.Minimizer(domain, rule, gradient, spen.RelativeChange(tolerance))
    return spen.SPEN(features=nn.Linear(2, 3), init=nn.Linear(3, 4), energy=energy, minimizer=minimizer).double()


LAST = EndToEnd(squared_error, weights="last")


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(3, n, generator=generator, dtype=torch.float64) for n in (2, 4))  # type: ignore[return-value]


@pytest.mark.parametrize("through", [Checkpointed(), FiniteDifference()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_agrees_with_unrolling_to_the_end(domain: Domain, through: Checkpointed) -> None:
    x, target = _batch()
    exact = gradients_of(_model(domain, Exact()), x, target, LAST)
    implicit = gradients_of(_model(domain, Implicit(tolerance=1e-9, through=through)), x, target, LAST)
    scale = max(float(g.abs().max()) for g in exact.values())
    for name, value in exact.items():
        if not name.startswith("init."):
            assert float((implicit[name] - value).abs().max()) <= 1e-6 * scale, name


def test_init_gets_nothing_and_that_is_right() -> None:
    x, target = _batch()
    exact = gradients_of(_model(Reals(), Exact()), x, target, LAST)
    implicit = gradients_of(_model(Reals(), Implicit()), x, target, LAST)
    assert float(exact["init.weight"].abs().max()) < 1e-9
    assert float(implicit["init.weight"].abs().max()) == 0


def test_refuses_a_loss_on_earlier_iterates() -> None:
    x, target = _batch()
    loss = EndToEnd(squared_error)(_model(Reals(), Implicit()), x, target)
    with pytest.raises(RuntimeError, match=r"Implicit can serve a loss on the last iterate alone.*weights=\"last\""):
        loss.backward()


def test_refuses_an_unconverged_descent() -> None:
    x, _ = _batch()
    with pytest.raises(ValueError, match=r"3 of 3 examples had not converged after 3 steps: allow more steps"):
        _model(Reals(), Implicit(), steps=3)(x)


def test_a_descent_that_left_all_bounds_is_not_one_that_needs_more_steps() -> None:
    x, _ = _batch()
    x[1] = torch.inf
    sentence = "1 of 3 examples ended in numbers that are not finite: lower the rates, or the learning rate"
    with pytest.raises(ValueError, match=sentence):
        _model(Reals(), Implicit())(x)


def test_refuses_learned_rates_no_stop_and_kept_gradients() -> None:
    x, _ = _batch()
    model = _model(Reals(), Implicit())
    model.minimizer.rule = GradientDescent(3, 0.1, learn_rates=True)
    with pytest.raises(ValueError, match="Implicit sends no gradient to learned rates"):
        model(x)
    model = _model(Reals(), Implicit())
    model.minimizer.stop = None
    with pytest.raises(ValueError, match=r"the descent must converge: give the Minimizer a stop"):
        model(x)
    model = _model(Reals(), Implicit())
    model.minimizer.keep_gradients = True
    with pytest.raises(ValueError, match="Implicit cannot differentiate the gradients of earlier steps"):
        model(x)


def test_refuses_a_flat_minimum() -> None:
    class Flat(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, y: Tensor, features: Tensor) -> Tensor:
            return 0.5 * (self.weight * y[:, 0] - features[:, 0]).square()

    minimizer = spen.Minimizer(Reals(), GradientDescent(500, 0.5), Implicit(), spen.RelativeChange(1e-12))
    model = spen.SPEN(energy=Flat(), init=nn.Identity(), minimizer=minimizer)
    loss = LAST(model, torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="does not curve upwards: the answer is not an isolated minimum"):
        loss.backward()


def test_the_solver_is_bounded() -> None:
    x, target = _batch()
    loss = LAST(_model(Reals(), Implicit(iterations=1, tolerance=1e-12)), x, target)
    with pytest.raises(RuntimeError, match=r"did not reach a relative residual of 1e-12 in 1 iterations"):
        loss.backward()
    with pytest.raises(ValueError, match="Implicit needs iterations ≥ 1 and tolerance > 0"):
        Implicit(iterations=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_cotangent_that_is_not_finite_is_not_hidden(bad: float) -> None:
    def gradient(strategy: GradientStrategy) -> Tensor:
        model = _model(Reals(), strategy)
        y = model(_batch()[0]).output
        weights = torch.ones_like(y)
        weights[1, 2] = bad
        (bar,) = torch.autograd.grad((weights * y).sum(), [model.energy.mix.weight])  # type: ignore[union-attr, list-item]
        return bar

    assert not bool(gradient(Checkpointed()).isfinite().any())
    assert not bool(gradient(Implicit()).isfinite().any())


@pytest.mark.parametrize("through", [Exact(), Compiled(), Implicit()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "make", [lambda s: Truncated(2, through=s), lambda s: Implicit(through=s)], ids=["cut", "solved"]
)
def test_products_come_from_strategies_that_have_some(
    make: Callable[[GradientStrategy], GradientStrategy], through: GradientStrategy
) -> None:
    sentence = r"takes its products from Checkpointed\(\), ForwardOverReverse\(\) or FiniteDifference\(\), not "
    with pytest.raises(ValueError, match=sentence + type(through).__name__):
        make(through)


def test_three_steps_are_no_minimum() -> None:
    """A loose stop calls them converged, and the implicit gradient at y_3 is not that of y_3 (Sec. 2.3)."""
    x, target = _batch()
    with pytest.raises(RuntimeError, match="the descent stopped far from it, since its steps were small"):
        gradients_of(_model(Reals(), Implicit(), steps=3, tolerance=1e9), x, target, LAST)
