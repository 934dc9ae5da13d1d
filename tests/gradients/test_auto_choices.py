"""Choices of Auto: written down, read again, copied with the model."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spen
from spen.domains import Reals
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    GradientStrategy,
)
from spen.gradients import auto as module
from spen.gradients.auto import strategy_of
from spen.rules import Momentum
from tests.gradients.test_auto import Quartic
from tests.helpers import distance, gradients, prior

# ── choices that are written down ──


@pytest.mark.parametrize(
    "strategy",
    [
        Exact(),
        Checkpointed(),
        FiniteDifference(0.02, doubled=False),
        Compiled(Checkpointed(), keep=1.0),
        Compiled(rows=4, precision=torch.bfloat16, graphs=False),
    ],
    ids=str,
)
def test_a_strategy_is_read_from_its_text(strategy: GradientStrategy) -> None:
    assert str(strategy_of(str(strategy))) == str(strategy)


@pytest.mark.parametrize("text", ["open('x')", "Exact", "1", "Exact(", "Compiled(torch.float16)", "Exact(a=1)"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no strategy of Checkpointed, Compiled, Exact, FiniteDifference, Forward"):
        strategy_of(text)


def test_a_choice_can_be_used_again() -> None:
    x = torch.rand(2, 3)
    first, energy = Auto(), Quartic()
    gradients(energy, first, x)
    (choice,) = first.choices()
    assert choice["strategy"] == "Exact()"
    again = Auto.from_choice([{**choice, "strategy": "Checkpointed()"}])
    found = gradients(Quartic(), again, x)
    assert again.explain() == "Checkpointed() for Quartic on cpu: given by an earlier choice"
    assert distance(found, gradients(Quartic(), Exact(), x)) < 1e-6
    gradients(Quartic(), again, torch.rand(2, 300))  # of another size: by the rule
    assert again.explain().startswith("Exact()")


@pytest.mark.parametrize("batches", [0, 1])
def test_a_model_that_has_chosen_can_be_copied_and_handed_on(batches: int) -> None:
    energy, auto = prior(), Auto(0.02, compiled=False, patience=7, measure=False)
    minimizer, x = spen.Minimizer(Reals(), Momentum(2, 0.02), auto), torch.rand(2, 1, 8, 9)
    model = spen.SPEN(features=nn.Identity(), init=nn.Identity(), energy=energy, minimizer=minimizer)
    for _ in range(batches):
        model(x).output.sum().backward()
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):  # bytes of this test's own, no file
        found = again.minimizer.gradient
        assert (found.tolerance, found.compiled, found.patience, found.measure) == (0.02, False, 7, False)
        assert found.explain() == "Auto has not chosen yet: it looks at the first batch that is trained on"
        torch.testing.assert_close(again(x).output, model(x).output)


def test_a_trajectory_can_be_handed_on() -> None:
    energy, x = prior(), torch.rand(2, 1, 8, 9)
    with torch.no_grad():
        trajectory = spen.Minimizer(Reals(), Momentum(2, 0.02))(energy, x, x)
    again = pickle.loads(pickle.dumps(trajectory))
    torch.testing.assert_close(again.energies, trajectory.energies)


def test_misuse_is_explained() -> None:
    with pytest.raises(ValueError, match="Auto needs tolerance > 0, not 0"):
        Auto(0)
    with pytest.raises(ValueError, match="Auto needs patience ≥ 0, not -1"):
        Auto(patience=-1)


def test_exact_products_of_both_kinds_are_candidates_on_a_gpu() -> None:
    choice = module.Choice("E", "cuda", 3, 1, Compiled(keep=True), "")
    found = [str(c) for c in Auto(0.01)._candidates(choice, torch.device("cuda"))]
    assert found == [
        "Compiled(Checkpointed(), keep=1)",
        "Compiled(Checkpointed())",
        "Compiled(ForwardOverReverse())",
        "FiniteDifference()",
        "Compiled(ForwardOverReverse(), precision=torch.bfloat16)",
    ]
    assert isinstance(ForwardOverReverse(), GradientStrategy)
