"""The factor graph by itself: projections by their optimality conditions, XOR factors against HiGHS."""

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
@given(point=st.lists(st.floats(-5, 5), min_size=1, max_size=8), exact=st.booleans(), padding=st.integers(0, 3))
def test_projection_meets_its_optimality_conditions(point: list[float], exact: bool, padding: int) -> None:
    padded = torch.tensor([point + [-torch.inf] * padding], dtype=torch.float64)
    z = project(padded, torch.tensor([exact]))[0]
    assert (z >= 0).all()
    assert (z[len(point) :] == 0).all()
    total, z = z.sum().item(), z[: len(point)]
    assert total == pytest.approx(1.0) if exact else total < 1 + 1e-12
    # point − z = τ on the support and ≤ τ off it, τ ≥ 0 and zero under slack for an at-most-one.
    residual = torch.tensor(point, dtype=torch.float64) - z
    tau = residual[z > 0].mean().item() if (z > 0).any() else 0.0
    assert torch.allclose(residual[z > 0], torch.full_like(residual[z > 0], tau), atol=1e-12)
    assert (residual[z == 0] <= tau + 1e-12).all()
    if not exact:
        assert tau > -1e-12
        assert total > 1 - 1e-9 or abs(tau) < 1e-12


def random_graph(seed: int, problems: int = 30) -> FactorGraph:
    """A partition into XORs, crossed by at-most-ones; a private slack in each XOR keeps every problem feasible."""
    generator = np.random.default_rng(seed)
    gain, owner, members, factor_owner, exact = [], [], [], [], []
    for problem in range(problems):
        first = len(gain)
        gain += generator.normal(size=12).tolist()
        owner += [problem] * 12
        for block in range(3):
            members.append([first + 4 * block + k for k in range(4)])
            exact.append(True)
        for _ in range(4):
            chosen = generator.choice([i for i in range(12) if i % 4], size=3, replace=False)
            members.append([*(first + chosen).tolist(), -1])
            exact.append(False)
        factor_owner += [problem] * 7
    table = torch.tensor(members)
    return FactorGraph(
        gain=torch.tensor(gain, dtype=torch.float64),
        owner=torch.tensor(owner),
        members=torch.where(table < 0, len(gain), table),
        factor_owner=torch.tensor(factor_owner),
        exact=torch.tensor(exact),
        problems=problems,
    )


def highs(graph: FactorGraph) -> Tensor:
    """The LP optimum of every problem, one after another."""
    from scipy.optimize import linprog

    optima = []
    for problem in range(graph.problems):
        rows = (graph.factor_owner == problem).nonzero()[:, 0]
        matrix = np.zeros((len(rows), len(graph.gain) + 1))
        for k, row in enumerate(rows):
            matrix[k, graph.members[row].numpy()] = 1.0
        mine = (graph.owner == problem).numpy()
        matrix, tight = matrix[:, :-1][:, mine], graph.exact[rows].numpy()
        solution = linprog(
            -graph.gain.numpy()[mine],
            A_eq=matrix[tight],
            b_eq=np.ones(tight.sum()),
            A_ub=matrix[~tight],
            b_ub=np.ones((~tight).sum()),
        )
        optima.append(-solution.fun)
    return torch.tensor(optima, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_xor_and_at_most_one_factors_together(seed: int) -> None:
    graph = random_graph(seed)
    solution, optimum = solve(graph), highs(graph)
    assert torch.allclose(solution.value, optimum, rtol=1e-6, atol=1e-6)
    assert torch.allclose(solution.bound, optimum, rtol=1e-6, atol=1e-6)
    assert torch.allclose(graph.totals(solution.z)[graph.exact], torch.ones(90, dtype=torch.float64), atol=1e-8)


def test_any_price_bounds_and_any_point_repairs() -> None:
    graph = random_graph(9)
    optimum = highs(graph)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        u = torch.randn(len(graph.members), generator=generator, dtype=torch.float64)
        assert (bound(graph, u) >= optimum - 1e-9).all()
        z, value = repair(graph, torch.rand(len(graph.gain), generator=generator, dtype=torch.float64))
        assert (graph.totals(z) < 1 + 1e-12).all()
        assert (value <= optimum + 1e-9).all()


def test_a_variable_without_factors_follows_its_sign() -> None:
    graph = FactorGraph(
        gain=torch.tensor([2.0, -1.0, 3.0, 1.0], dtype=torch.float64),
        owner=torch.tensor([0, 0, 1, 1]),
        members=torch.tensor([[2, 3]]),
        factor_owner=torch.tensor([1]),
        exact=torch.tensor([False]),
        problems=2,
    )
    solution = solve(graph)
    assert torch.allclose(solution.z, torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64))
    assert solution.value.tolist() == pytest.approx([2.0, 3.0])
