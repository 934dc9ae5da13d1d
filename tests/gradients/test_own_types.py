"""Complex and sparse tensors, types that differ, energies that change, tiny steps: by value, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Reals, Simplex
from spen.energies import Energy, Linear, Scaled
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Detached,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    Implicit,
    Truncated,
)
from spen.objectives import EndToEnd, squared_error
from spen.protocols import Domain, GradientStrategy, StepRule
from spen.rules import GradientDescent

DRAWS = torch.Generator().manual_seed(1)
X = torch.randn(3, 4, generator=DRAWS)


def gradients(
    energy: Energy,
    strategy: GradientStrategy,
    x: Tensor = X,
    rule: StepRule | None = None,
    domain: Domain | None = None,
    stop: Any = None,
) -> list[Tensor]:
    energy.zero_grad()
    torch.manual_seed(2)
    minimizer = spen.Minimizer(domain or Reals(), rule or GradientDescent(3, 0.01), strategy, stop)
    minimizer(energy, x, x).output.square().sum().backward()
    return [p.grad.clone() for p in energy.parameters() if p.grad is not None]


class Spectrum(Energy):
    """‖w · FFT(y)‖² with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return (torch.fft.fft(y) * self.w).abs().square().sum(1) + 0.5 * (y - features).square().sum(1)


@pytest.mark.parametrize("strategy", [Checkpointed(), ForwardOverReverse(), Compiled(patience=0), Auto()], ids=str)
def test_complex_weights(strategy: GradientStrategy) -> None:
    torch.testing.assert_close(gradients(Spectrum(), strategy), gradients(Spectrum(), Exact()), rtol=1e-4, atol=1e-6)


class Sparse(Energy):
    """½ yᵀ L y + ⟨c, tanh y⟩ with a sparse matrix L."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("laplacian", torch.eye(4).to_sparse())

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        smooth = torch.sparse.mm(self.laplacian, y.T).T
        return 0.5 * (y * smooth).sum(1) + (self.c * torch.tanh(y - features)).sum(1)


@pytest.mark.parametrize("strategy", [Auto(), Checkpointed(), FiniteDifference()], ids=str)
def test_products_with_sparse_matrices(strategy: GradientStrategy) -> None:
    torch.testing.assert_close(gradients(Sparse(), strategy), gradients(Sparse(), Exact()), rtol=1e-3, atol=1e-5)


class Narrow(Energy):
    """A network in float32 for y in double precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1, bias=False))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.net(y.float()).squeeze(1) + 0.5 * (y - features).square().sum(1)


def test_finite_differences_of_a_shorter_type_need_a_radius() -> None:
    x = X.double()
    with pytest.raises(ValueError, match=r"Narrow computes in torch.float32 and y is in torch.float64.*radius=1e-2"):
        gradients(Narrow(), FiniteDifference(), x)
    found, expected = (gradients(Narrow(), s, x) for s in (FiniteDifference(1e-2), Exact()))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


class Halved(Energy):
    """Features in float16, which the energy turns into numbers of single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.ones(4))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return (self.c * (y - features.float()).square()).sum(1)


def test_features_in_half_precision_that_are_widened_at_once_are_no_half_precision() -> None:
    found = []
    for strategy in (FiniteDifference(), Exact()):
        energy, features = Halved(), X.half().requires_grad_()
        spen.Minimizer(Reals(), GradientDescent(3, 0.1), strategy)(energy, features, X).output.sum().backward()
        found.append((energy.c.grad, features.grad))
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3)


class Spectral(Energy):
    """Spectral norm in training mode moves its vectors at every evaluation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.utils.spectral_norm(nn.Linear(32, 64))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return torch.tanh(3 * self.a(y)).sum(1) + 0.5 * (y - features).square().sum(1)


@pytest.mark.parametrize("steps", [5, 30, 60])
@pytest.mark.parametrize("strategy", [Checkpointed(), FiniteDifference(), FiniteDifference(doubled=False)], ids=str)
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*")
def test_an_energy_that_settles_while_it_is_descended_is_refused(strategy: GradientStrategy, steps: int) -> None:
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    with pytest.raises(RuntimeError, match="the energy Spectral has another value in the backward pass"):
        gradients(Spectral(), strategy, x, GradientDescent(steps, 0.1))


class Normed(Energy):
    """Batch norm in training mode moves its statistics and has the same value."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.a(y))).sum(1) + 0.5 * (y - features).square().sum(1)


class Rms(GradientDescent):
    """Keeps its mean of squares in an attribute."""

    mean: Any = 0.0

    def begin(self, z: Tensor) -> Any:
        self.mean = torch.zeros_like(z)
        return super().begin(z)

    def update(self, t: int, z: Tensor, gradient: Tensor, state: Any) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * gradient.detach() ** 2
        return self.rates()[t] * gradient / (self.mean.sqrt() + 1e-8), (gradient,)


class Net(Energy):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 6)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return torch.tanh(self.a(y)).sum(1) + 0.5 * (y - features).square().sum(1)


@pytest.mark.parametrize("domain", [Reals(), Simplex()], ids=["reals", "simplex"])
@pytest.mark.parametrize("strategy", [Checkpointed(), ForwardOverReverse(), FiniteDifference()], ids=str)
def test_small_steps_of_a_rule_that_remembers_elsewhere(strategy: GradientStrategy, domain: Domain) -> None:
    with pytest.raises(RuntimeError, match="the rule Rms or the domain .* takes another step"):
        gradients(Net(), strategy, X.softmax(1), Rms(50, 0.001), domain)


@pytest.mark.parametrize("strategy", [Detached(), Truncated(20), Checkpointed()], ids=str)
def test_examples_that_stop_early_have_the_gradient_that_they_have_alone(strategy: GradientStrategy) -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    target = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(0)
    model = spen.SPEN(
        energy=Net(),
        init=nn.Identity(),
        minimizer=spen.Minimizer(Reals(), GradientDescent(20, 0.6), strategy, spen.RelativeChange(0.05)),
    )
    loss = EndToEnd(squared_error, weights="last")
    assert len(set(model(x).steps_used.tolist())) > 2

    def gradient(call: Callable[[], Tensor]) -> Tensor:
        model.zero_grad()
        call().backward()
        return torch.cat([p.grad.flatten() for p in model.energy.parameters() if p.grad is not None])

    together = gradient(lambda: loss(model, x, target))
    alone = [gradient(lambda i=i: loss(model, x[i : i + 1], target[i : i + 1])) for i in range(6)]  # type: ignore[misc]
    torch.testing.assert_close(together, torch.stack(alone).mean(0), rtol=1e-4, atol=1e-6)


class Quartic(Energy):
    """¼(y − mx)⁴ + ½(y − mx)²."""

    def __init__(self) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        away = y - self.m * features
        return away.pow(4).sum(1) / 4 + 0.5 * away.square().sum(1)


def test_an_answer_far_from_the_minimiser_is_refused() -> None:
    x = torch.ones(2, 4, dtype=torch.float64)

    def gradient(rate: float) -> Tensor:
        energy = Quartic()
        minimizer = spen.Minimizer(Reals(), GradientDescent(500, rate), Implicit(), spen.RelativeChange(1e-3))
        minimizer(energy, x, 2 * x).output.square().sum().backward()
        assert energy.m.grad is not None
        return energy.m.grad

    torch.testing.assert_close(gradient(0.3), torch.full((4,), 4.0, dtype=torch.float64), rtol=3e-3, atol=0)
    for rate in (1e-4, 1e-2):
        with pytest.raises(RuntimeError, match="the descent stopped far from it, since its steps were small"):
            gradient(rate)


class Dropped(Net):
    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(y, 0.1), features)


def test_random_energies_have_no_minimiser() -> None:
    with pytest.raises(ValueError, match="the energy Dropped draws random numbers and is another function"):
        gradients(Dropped(), Implicit(), rule=GradientDescent(500, 0.3), stop=spen.RelativeChange(0.5))


def test_weights_of_sums_keep_whole_numbers() -> None:
    y = torch.ones(1, 3)
    for weight in (2049, 100_000):
        assert float(Scaled(Linear(), torch.tensor(weight)).weight) == weight
        assert float((Linear() * torch.tensor(weight))(y, y)) == -3 * weight
    assert Scaled(Linear(), torch.tensor(0.5, dtype=torch.float16)).weight.dtype is torch.float16


class Rectified(Energy):
    """A net with corners and biases."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)]
        self.net = nn.Sequential(*layers)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.net(y).squeeze(1) + 0.5 * (y - features).square().sum(1)


def test_products_in_bfloat16_of_a_net_with_corners() -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    strategy = Compiled(patience=0, precision=torch.bfloat16, fuse=False)
    energy = Rectified()
    found, expected = gradients(energy, strategy, x), gradients(Rectified(), Exact(), x)
    assert strategy.programs(energy)
    size = sum(float(b.square().sum()) for b in expected)
    error = sum(float((a - b).square().sum()) for a, b in zip(found, expected, strict=True)) / size
    assert 1e-8 < error < 1e-3, "rounded, and no more than that"


class Inner(Energy):
    """‖∂φ/∂y‖² of a network φ, by autograd inside of the energy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 6)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(torch.tanh(self.a(y)).sum(), y, create_graph=True)
        return slope.square().sum(1) + 0.5 * (y - features).square().sum(1)


def test_an_energy_that_differentiates_itself_is_scored_and_searched() -> None:
    for rule in (GradientDescent(3, 0.1), GradientDescent(3, 0.1, backtracks=2)):
        model = spen.SPEN(energy=Inner(), init=nn.Identity(), minimizer=spen.Minimizer(Reals(), rule, Exact()))
        energies = model(X).energies
        assert energies.shape == (4, 3)
        assert bool((energies[-1] < energies[0]).all())
        assert torch.equal(model.search(X).energy, energies[-1])


class Noisy(GradientDescent):
    def update(self, t: int, z: Tensor, gradient: Tensor, state: Any) -> Any:
        return self.rates()[t] * nn.functional.dropout(gradient, 0.5), (gradient,)


def test_rule_and_energy_may_both_draw_in_a_search_for_the_step() -> None:
    rule = Noisy(4, 0.2, backtracks=2)
    found, expected = (gradients(Dropped(), s, rule=rule) for s in (Checkpointed(), Exact()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_batch_norm_in_training_mode_is_no_change_of_value() -> None:
    torch.testing.assert_close(gradients(Normed(), Checkpointed()), gradients(Normed(), Exact()), rtol=1e-4, atol=1e-6)


class Counted(Net):
    """Draws, and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        self.calls.add_(1)
        return super().forward(nn.functional.dropout(y, 0.5), features)


@pytest.mark.parametrize("strategy", [Checkpointed(), ForwardOverReverse(), FiniteDifference()], ids=str)
def test_energies_that_draw_and_count(strategy: GradientStrategy) -> None:
    found, expected = (gradients(Counted(), s, rule=GradientDescent(4, 0.2)) for s in (strategy, Exact()))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


class Expanded(Energy):
    """½‖y − f‖² around a large constant, as a sum of terms that nearly cancel."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.tensor(constant))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        m, f = y + self.c, features + self.c
        return 0.5 * (m.square() - 2 * m * f + f.square()).sum(1)


@pytest.mark.parametrize("constant", [100.0, 1000.0])
def test_an_energy_that_cancels_is_no_wrong_derivative(constant: float) -> None:
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def of_features(strategy: GradientStrategy) -> Tensor:
        minimizer = spen.Minimizer(Reals(), GradientDescent(20, 0.2), strategy)
        loss = minimizer(Expanded(constant), x, torch.zeros(3, 256)).output.square().sum()
        return torch.autograd.grad(loss, x)[0]

    found, expected = of_features(FiniteDifference()), of_features(Exact())
    assert float((found - expected).norm() / expected.norm()) < 5e-3


def test_a_radius_below_the_resolution_of_y_is_refused() -> None:
    with pytest.raises(ValueError, match="the radius 0.01 of the finite differences is lost in the rounding of y"):
        gradients(Net(), FiniteDifference(), 1e6 * X)


class Offset(Narrow):
    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.net(y.float()).squeeze(1) + 1e4 + 0.5 * (y - features).square().sum(1)


def test_a_radius_for_single_precision_goes_with_its_rounding() -> None:
    assert gradients(Offset(), FiniteDifference(1e-2), X.double())


class Wide(Energy):
    """A weight in single precision that y does not pass through."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return (nn.functional.softplus(self.w).double() * (y - features).square()).sum(1)


def test_types_that_do_not_depend_on_y_do_not_count() -> None:
    x = X.double()
    start = torch.zeros_like(x)

    def weight(strategy: GradientStrategy) -> Tensor:
        energy = Wide()
        spen.Minimizer(Reals(), GradientDescent(3, 0.1), strategy)(energy, x, start).output.sum().backward()
        assert energy.w.grad is not None
        return energy.w.grad

    torch.testing.assert_close(weight(FiniteDifference()), weight(Exact()), rtol=1e-5, atol=1e-7)


def test_a_minimiser_at_zero_is_a_minimiser() -> None:
    x = torch.ones(2, 4, dtype=torch.float64)
    x[1] = 0
    energy = Quartic()
    minimizer = spen.Minimizer(Reals(), GradientDescent(3000, 0.5), Implicit(), spen.RelativeChange(1e-6))
    minimizer(energy, x, x + 0.5).output.square().sum().backward()
    torch.testing.assert_close(energy.m.grad, torch.full((4,), 2.0, dtype=torch.float64), rtol=1e-4, atol=0)


def test_what_a_graph_captures_never_waits_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a truth value of a tensor would be a synchronisation, and nothing would be captured."""
    from spen.gradients.compiled import cuda_graphs
    from tests.gradients.test_cuda_graphs import StandIn

    asked: list[str] = []
    inside: list[bool] = []
    monkeypatch.setattr(cuda_graphs, "Captured", StandIn)
    plain, record, back = torch.Tensor.__bool__, StandIn._record, StandIn._pulled_back

    def noted(tensor: Tensor) -> bool:
        if inside:
            asked.append(str(tensor.shape))
        return plain(tensor)

    def within(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            inside.append(True)
            try:
                return method(*arguments)
            finally:
                inside.pop()

        return called

    monkeypatch.setattr(torch.Tensor, "__bool__", noted)
    monkeypatch.setattr(StandIn, "_record", within(record))
    monkeypatch.setattr(StandIn, "_pulled_back", within(back))
    energy, strategy = Net(), Compiled(patience=0, fuse=False, graphs=True)
    for _ in range(8):
        gradients(energy, strategy)
    slots = strategy._slots[energy].values()
    assert any(recorder.captured for slot in slots for recorder in slot.recorders.values())
    assert asked == []
