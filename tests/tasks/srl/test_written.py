"""∇E as it is written against autograd: value, slope, and what back-propagation through the slope gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from benchmarks.counting import Operations
from spen.energies import Energy, EntropySmoothed, Linear, SoftNand, Sum
from spen.gradients import Exact, Written
from spen.objectives import EndToEnd
from spen.tasks.srl.build import build
from spen.tasks.srl.energy import MaskedArcs, pick, repeat_constraint
from spen.tasks.srl.gradient_formulas import Bound, bind, is_written
from spen.tasks.srl.metrics import ConstrainedLoss
from spen.tasks.srl.recipes import RECIPES, find_recipe
from tests.tasks.srl.small import batch, prepared, scored
from tests.tasks.srl.test_energy import TERMS, loud

LEARNED = [name for name, recipe in RECIPES.items() if recipe.objective == "end_to_end"]


def second(gradient: Tensor, direction: Tensor, targets: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad((gradient * direction).sum(), targets, allow_unused=True)
    return [torch.zeros_like(t) if f is None else f for f, t in zip(found, targets, strict=True)]


@pytest.mark.parametrize("entropy", [0.0, 0.7])
@pytest.mark.parametrize("name", TERMS)
def test_a_term_and_its_derivatives(name: str, entropy: float) -> None:
    y, features = scored()
    features = features._replace(scores=features.scores.requires_grad_(), arc=features.arc.requires_grad_())
    features = features._replace(argument=features.argument.requires_grad_())
    total = Sum(local=Linear(lambda f: f.scores), term=loud(TERMS[name]()))
    energy = MaskedArcs(EntropySmoothed(total, entropy) if entropy else total)
    y = y.requires_grad_()
    value = energy(y, features)
    (slope,) = torch.autograd.grad(value.sum(), y, create_graph=True)
    written, written_value = Bound(energy, features)(y)
    torch.testing.assert_close(written_value, value.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(written, slope, rtol=1e-12, atol=1e-12)
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
    targets = [y, features.scores, features.arc, features.argument, *energy.parameters()]
    for ours, theirs in zip(second(written, direction, targets), second(slope, direction, targets), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "update"),
    [*((name, "logits") for name in LEARNED), *(("spen", u) for u in ("mirror", "projected", "through_logits"))],
)
def test_a_training_step_has_the_gradients_of_double_backprop(name: str, update: str) -> None:
    recipe = replace(find_recipe(name), dropout=0.0, feature_dropout=0.0, steps=3, update=update)
    data = prepared(recipe.templates)
    x, target = batch()
    if recipe.templates == "all":
        x, target = data.corpora["train"].batch(target.sentence.numpy())
    model = build(recipe, data).double().eval()
    objective = EndToEnd(ConstrainedLoss(data.space.core, 2.0))

    def gradients() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        loss = objective(model, x, target)
        loss.backward()
        return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    assert repr(model.minimizer.gradient) == "Written()"
    loss, ours = gradients()
    model.minimizer.gradient = Exact()
    expected, theirs = gradients()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    assert ours.keys() == theirs.keys()
    for key, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[key], rtol=1e-6, atol=1e-9, msg=key)


def test_less_than_two_thirds_of_the_operations_of_double_backprop() -> None:
    data, (x, target) = prepared(), batch()
    model, objective = build(find_recipe("spen"), data), EndToEnd(ConstrainedLoss(data.space.core, 2.0))
    counts = []
    for strategy in (Exact(), Exact(), Written()):  # the first run of Exact also tries the second derivative
        model.minimizer.gradient = strategy
        with Operations() as operations:
            objective(model, x, target).backward()
        counts.append(operations.count)
    assert counts[2] < 2 / 3 * counts[1]


class Other(Energy):
    def forward(self, y: Tensor, features: object) -> Tensor:
        return y.flatten(1).square().sum(1)


def test_other_energies_take_the_ordinary_way() -> None:
    assert not is_written(Sum(a=Other()))
    assert not is_written(MaskedArcs(Sum(a=Other())))
    assert not is_written(MaskedArcs(Sum(a=SoftNand(lambda y, f: (y, y)))))
    local = Sum(local=Linear(lambda f: f.scores))
    assert is_written(MaskedArcs(EntropySmoothed(local)))
    assert not is_written(MaskedArcs(EntropySmoothed(local, learned=True)))
    with pytest.raises(TypeError, match="Other has no written gradient"):
        bind(Other(), scored()[1])
    with pytest.raises(TypeError, match="only the pairs of role labelling"):
        bind(SoftNand(lambda y, f: (y, y)), scored()[1])
    model = build(find_recipe("spen"), prepared())
    model.energy = Other()
    x, _ = batch()
    output = model(x).output
    output.sum().backward()
    assert isinstance(model.minimizer.gradient, Written)
    assert model.features.roles.weight.grad is not None


def test_an_energy_without_terms_has_no_slope() -> None:
    with pytest.raises(ValueError, match="does not depend on y"):
        Bound(MaskedArcs(Sum(nothing=_Nothing())), scored()[1])(scored()[0])


class _Nothing(nn.Module):
    pass


@bind.register
def _(term: _Nothing, features: object) -> object:
    from spen.tasks.srl.gradient_formulas import Slope

    return lambda point: Slope(None)


def test_core_roles_need_not_be_neighbours() -> None:
    y, features = scored()
    energy = MaskedArcs(Sum(repeat=repeat_constraint((1, 3, 4), weight=2.0).double()))
    y = y.requires_grad_()
    (slope,) = torch.autograd.grad(energy(y, features).sum(), y)
    torch.testing.assert_close(Bound(energy, features)(y)[0], slope)


def test_roles_are_picked_wherever_they_stand() -> None:
    y, _ = scored()
    for roles in ((1, 2, 3), (1, 4, 6), (2,), ()):
        assert torch.equal(pick(y, roles), y[..., list(roles)])
