"""The factor graph by itself: projections by their optimality conditions, at-most-one factors against HiGHS."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spen.rounding.ad3 import solve
from spen.rounding.factors import FactorGraph, bound, project, repair


@settings(max_examples=100, deadline=None)
@given(point=st.lists(st.floats(-5, 5), min_size=1, max_size=8), padding=st.integers(0, 3))
def test_projection_meets_its_optimality_conditions(point: list[float], padding: int) -> None:
    z = project(torch.tensor([point + [-torch.inf] * padding], dtype=torch.float64))[0]
    assert (z >= 0).all()
    assert (z[len(point) :] == 0).all()
    total, z = z.sum().item(), z[: len(point)]
    assert total < 1 + 1e-12
    # point − z = τ on the support and ≤ τ off it, τ ≥ 0 and zero under slack.
    residual = torch.tensor(point, dtype=torch.float64) - z
    tau = residual[z > 0].mean().item() if (z > 0).any() else 0.0
    assert torch.allclose(residual[z > 0], torch.full_like(residual[z > 0], tau), atol=1e-12)
    assert (residual[z == 0] <= tau + 1e-12).all()
    assert tau > -1e-12
    assert total > 1 - 1e-9 or abs(tau) < 1e-12


def random_graph(seed: int, problems: int = 30) -> FactorGraph:
    """A partition of the variables, crossed by other factors; an odd problem has a factor and two variables less."""
    generator = np.random.default_rng(seed)
    gain, members = generator.normal(size=(problems, 12)), np.zeros((problems, 7, 12), bool)
    for problem in range(problems):
        for block in range(3):
            members[problem, block, 4 * block : 4 * block + 4] = True
        for factor in range(3, 7):
            members[problem, factor, generator.choice(12, size=3, replace=False)] = True
    gain[1::2, 10:], members[1::2, :, 10:], members[1::2, 6] = 0, False, False
    return FactorGraph(torch.tensor(gain), torch.tensor(members))


def highs(graph: FactorGraph) -> Tensor:
    """The LP optimum of every problem, one after another."""
    from scipy.optimize import linprog

    pairs = zip(graph.gain.numpy(), graph.members.numpy(), strict=True)
    optima = [-linprog(-g, A_ub=m.astype(float), b_ub=np.ones(len(m)), bounds=(0, 1)).fun for g, m in pairs]
    return torch.tensor(optima, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_crossing_factors(seed: int) -> None:
    graph = random_graph(seed)
    solution, optimum = solve(graph), highs(graph)
    assert torch.allclose(solution.value, optimum, rtol=1e-6, atol=1e-6)
    assert torch.allclose(solution.bound, optimum, rtol=1e-6, atol=1e-6)
    assert (graph.totals(solution.z) < 1 + 1e-9).all()
    assert torch.allclose((graph.gain * solution.z).sum(1), solution.value)


def test_any_price_bounds_and_any_point_repairs() -> None:
    graph = random_graph(9)
    optimum = highs(graph)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        u = torch.randn(graph.members.shape[:2], generator=generator, dtype=torch.float64)
        assert (bound(graph, u) >= optimum - 1e-9).all()
        z, value = repair(graph, torch.rand(graph.gain.shape, generator=generator, dtype=torch.float64))
        assert (graph.totals(z) < 1 + 1e-12).all()
        assert (value <= optimum + 1e-9).all()


def test_a_variable_without_factors_follows_its_sign() -> None:
    gain = torch.tensor([[2.0, -1.0], [3.0, 1.0]], dtype=torch.float64)
    solution = solve(FactorGraph(gain, torch.tensor([[[False, False]], [[True, True]]])))
    assert torch.allclose(solution.z, torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64))
    assert solution.value.tolist() == pytest.approx([2.0, 3.0])
