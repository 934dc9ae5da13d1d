"""Training for stable descents: T drawn at random, noise on the start, detached steps, a limit on η·λ_max."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.curvature import Stability, limit_rates, measure
from spen.domains import Box, Domain, Reals, Simplex
from spen.energies import EntropySmoothed
from spen.gradients import Checkpointed, Detached, Exact, FiniteDifference, ForwardOverReverse, Replayed
from spen.objectives import EndToEnd, squared_error
from spen.rules import LBFGS, GradientDescent, Momentum
from spen.testing.problems import Quadratic
from spen.testing.strategy import example_model, gradients_of

X = torch.ones(2, 3)


class Seen(EndToEnd):
    """Keeps the trajectories that it scores."""

    def of(self, trajectory: spen.Trajectory, target: Any) -> Tensor:
        self.trajectories = [*getattr(self, "trajectories", []), trajectory]
        return super().of(trajectory, target)


def bowl(rule: Any, matrix: Tensor | None = None, domain: Domain | None = None) -> spen.SPEN:
    energy = Quadratic(torch.eye(3) if matrix is None else matrix)
    domain = Reals() if domain is None else domain
    return spen.SPEN(energy=energy, init=nn.Identity(), minimizer=spen.Minimizer(domain, rule, Exact()))


def test_the_number_of_steps_is_drawn_for_every_batch() -> None:
    torch.manual_seed(0)
    objective = Seen(squared_error, draw_steps=(2, 5))
    model = bowl(GradientDescent(3, 0.1))
    for _ in range(12):
        objective(model, X, X)
    assert {len(t.outputs) for t in objective.trajectories} == {2, 5}
    assert torch.equal(objective.predict(model, X), model(X).output)  # with the rule's own steps


def test_noise_moves_the_start_in_training_alone() -> None:
    torch.manual_seed(0)
    objective = Seen(squared_error, noise=0.5)
    model = bowl(GradientDescent(1, 0.1))
    x = torch.zeros(400, 3)
    objective(model, x, x)
    assert float(objective.trajectories[0].start.std()) == pytest.approx(0.5, rel=0.1)
    assert torch.equal(objective.predict(model, x), model(x).output)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"draw_steps": (3, 0)}, r"draw_steps are whole numbers from 1 on and noise ≥ 0, not \(3, 0\) and 0.0"),
        ({"noise": -1.0}, r"draw_steps are whole numbers from 1 on and noise ≥ 0, not \(\) and -1.0"),
        ({"replay": 1.5}, r"replay is a share in \[0, 1\] and replay_size ≥ 1, not 1.5 and 1024"),
        ({"replay_size": 0}, r"replay is a share in \[0, 1\] and replay_size ≥ 1, not 0.0 and 0"),
        ({"rate_limit": 1.5}, r"rate_limit is a share of the largest stable rate, in \(0, 1\], not 1.5"),
    ],
)
def test_wrong_options_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EndToEnd(squared_error, **options)


@pytest.mark.parametrize("through", [None, ForwardOverReverse(), FiniteDifference()], ids=str)
@pytest.mark.parametrize("domain", [Reals(), Simplex("through_logits"), Simplex("mirror")], ids=str)
def test_detached_steps_by_value(domain: Domain, through: Replayed | None) -> None:
    """A loop that cuts z and the velocity off after every step, back-propagated by autograd."""
    rule = Momentum(4, 0.3, decay=0.5, learn_rates=True)
    model, x, target = example_model(domain, rule, Detached(through))
    found = gradients_of(model, x, target, EndToEnd(squared_error))

    leaf = x.clone().requires_grad_()
    features = model.features(leaf)
    own, total = model.minimizer.rule, torch.zeros((), dtype=torch.float64)
    z = domain.enter(model.init(features))
    state = own.begin(z)
    for t, weight in enumerate(EndToEnd(squared_error).iterate_weights(4)):
        at = z if domain.through else domain.output(z)
        y = domain.output(at) if domain.through else at
        (g,) = torch.autograd.grad(model.energy(y, features).sum(), at, create_graph=True)
        direction, state = own.update(t, z, g, state)
        z = domain.step(z, direction)
        total = total + weight * squared_error(domain.output(z), target).mean()
        z, state = z.detach().requires_grad_(), tuple(s.detach() for s in state)
    named = {**dict(model.named_parameters()), "x": leaf}
    expected = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    scale = max(float(g.abs().max()) for g in found.values())
    for (name, _), value in zip(named.items(), expected, strict=True):
        value = torch.zeros_like(found[name]) if value is None else value
        assert float((found[name] - value).abs().max()) <= 1e-6 * scale, name
    assert "Detached(through=" in repr(Detached(through))


def test_detached_takes_products_from_replayed_strategies() -> None:
    with pytest.raises(ValueError, match="Detached takes its products from Checkpointed"):
        Detached(Exact())  # type: ignore[arg-type]
    assert isinstance(Detached().through, Checkpointed)


def test_the_curvature_of_a_quadratic() -> None:
    matrix = torch.diag(torch.tensor([0.5, 1.0, 4.0]))
    found = measure(bowl(Momentum(3, 0.2, decay=0.5), matrix), X, iterations=40)
    assert torch.allclose(found.curvatures, torch.full((2,), 4.0))
    assert found.limit == pytest.approx(2 * 1.5 / 4)
    assert found.ratio == pytest.approx(0.2 / 0.75)
    assert Stability(torch.zeros(2), 0.1, 0.0).limit == float("inf")


@pytest.mark.parametrize("domain", [Simplex("logits"), Simplex("through_logits"), Box("logits"), Box("through_logits")])
def test_rates_above_the_limit_oscillate_and_below_arrive(domain: Domain) -> None:
    """An entropy-smoothed quadratic: the measured limit is where the descent stops to converge."""
    torch.manual_seed(0)
    inner = Quadratic(torch.diag(torch.tensor([0.5, 1.0, 4.0])))
    over = "simplex" if isinstance(domain, Simplex) else "box"
    energy, x = EntropySmoothed(inner, 0.5, over=over), torch.rand(2, 3)
    limit = None
    for share in (0.5, 0.9, 1.2):
        rate = 0.1 if limit is None else share * limit
        model = spen.SPEN(
            energy=energy, init=nn.Identity(), minimizer=spen.Minimizer(domain, GradientDescent(300, rate))
        )
        if limit is None:
            limit = measure(model, x, iterations=60).limit
            model.minimizer.rule.rates.log.fill_(torch.tensor(share * limit).log())  # type: ignore[union-attr]
        outputs = model(x).outputs
        moves = float((outputs[-1] - outputs[-2]).abs().max())
        assert (moves < 1e-5) == (share < 1), (share, moves)


def test_rates_are_lowered_to_the_limit() -> None:
    matrix = torch.diag(torch.tensor([0.5, 1.0, 4.0]))
    model = bowl(GradientDescent(2, [0.1, 3.0], learn_rates=True), matrix)
    before = limit_rates(model, X, share=0.8, iterations=40)
    assert before.ratio == pytest.approx(6.0)
    assert model.minimizer.rule.rates().detach().tolist() == pytest.approx([0.1, 0.4])  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"share is the part of the largest stable rate that is allowed, in \(0, 1\]"):
        limit_rates(model, X, share=2.0)
    with pytest.raises(ValueError, match="a limit of the rates needs GradientDescent or Momentum, not LBFGS"):
        measure(bowl(LBFGS(2)), X)


@pytest.mark.parametrize(("rate", "arrives"), [(3.5, True), (4.0, False)])
def test_dampening_raises_the_limit(rate: float, arrives: bool) -> None:
    """λ = 10, β = d = 0.9: 2(1 + 0.9)/(0.1 · 10) = 3.8."""
    model = bowl(Momentum(300, rate, decay=0.9, dampening=0.9), 10 * torch.eye(3))
    assert measure(model, X).limit == pytest.approx(3.8)
    outputs = model.minimizer(model.energy, X, X + 1).outputs
    assert (float((outputs[-1] - outputs[-2]).abs().max()) < 1e-3) == arrives


def test_training_keeps_the_rates_below_the_limit() -> None:
    torch.manual_seed(0)
    matrix = torch.diag(torch.tensor([0.5, 1.0, 4.0]))
    model = bowl(GradientDescent(1, 3.0, learn_rates=True), matrix)
    objective = EndToEnd(squared_error, rate_limit=0.5)
    assert objective.stability is None
    for _ in range(60):  # one batch in sixteen is measured
        objective(model, X + 1, X)
    assert objective.stability is not None
    assert float(model.minimizer.rule.rates().detach()) == pytest.approx(0.25, rel=0.05)  # type: ignore[operator]


def test_equal_weights_count_every_iterate_the_same() -> None:
    assert EndToEnd(squared_error, weights="equal").iterate_weights(4) == [0.25] * 4
    model = bowl(GradientDescent(3, 0.1))
    losses = [float(squared_error(y, X + 1).mean()) for y in model(X).outputs]
    for drawn in ((), (3,)):  # any number of steps has equal weights
        objective = EndToEnd(squared_error, weights="equal", draw_steps=drawn)
        assert float(objective(model, X, X + 1)) == pytest.approx(sum(losses) / 3)


def test_a_rate_limit_needs_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="every process would get rates of its own: train on one device"):
        EndToEnd(squared_error, rate_limit=0.9)(bowl(GradientDescent(1, 0.1)), X, X)


class Stretched(spen.Energy):
    """25(Σ y − 1)² + ½‖y − x‖²: curved across the simplex, flat along it but for the identity."""

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return 25 * (y.sum(-1) - 1).square() + 0.5 * (y - features).square().sum(1)


def stretched(domain: Domain, x: Tensor, rate: float = 0.5) -> Stability:
    model = spen.SPEN(
        energy=Stretched(), init=nn.Identity(), minimizer=spen.Minimizer(domain, GradientDescent(30, rate), Exact())
    )
    return measure(model, x, iterations=60)


def test_mirror_descent_and_logits_have_one_limit() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    limits = [stretched(Simplex(update), x).limit for update in ("logits", "mirror")]  # type: ignore[arg-type]
    assert limits[0] == pytest.approx(limits[1], rel=1e-9)


def test_a_projection_leaves_the_curvature_along_the_face() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert stretched(Simplex("projected"), x).limit == pytest.approx(2.0)
    corner = torch.tensor([[0.5, -9.0, -9.0, -9.0]], dtype=torch.float64)  # three coordinates are clipped: 25·2 + 1
    assert float(stretched(Box(update="projected"), corner, 0.01).curvatures) == pytest.approx(51.0)
    free = torch.full((1, 4), 0.25, dtype=torch.float64)  # all may move: 25·2·4 + 1
    assert float(stretched(Box(update="projected"), free, 0.001).curvatures) == pytest.approx(201.0)
