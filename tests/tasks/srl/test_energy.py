"""Every term against its definition in loops, and the contract of an energy."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spen
from spen.domains import Simplex
from spen.energies import Energy, EntropySmoothed, Linear, Sum
from spen.gradients import Exact, FiniteDifference
from spen.rules import GradientDescent
from spen.tasks.srl.contextual import ArcPairs
from spen.tasks.srl.energy import (
    SMALL,
    ArgumentCount,
    ArgumentSet,
    LabelCoherence,
    LabelHistogram,
    MaskedArcs,
    Network,
    TopicalCoherence,
    overlap_constraint,
    repeat_constraint,
)
from spen.tasks.srl.local import ArcInit, Scored
from spen.testing import check_energy
from tests.tasks.srl.small import prepared, scored

ROLES, CORE = len(prepared().space.roles), prepared().space.core


def restricted(energy: LabelHistogram) -> LabelHistogram:
    energy.network.restrict()
    return energy


TERMS: dict[str, Callable[[], Energy]] = {
    "argument_set": lambda: ArgumentSet(5),
    "argument_set_convex": lambda: ArgumentSet(5, convex=True),
    "label_histogram": lambda: LabelHistogram(ROLES, 5),
    "label_histogram_convex": lambda: LabelHistogram(ROLES, 5, convex=True),
    "label_histogram_restricted_convex": lambda: restricted(LabelHistogram(ROLES, 5, convex=True)),
    "argument_count": lambda: ArgumentCount(5),
    "label_coherence": lambda: LabelCoherence(ROLES),
    "label_coherence_convex": lambda: LabelCoherence(ROLES, convex=True),
    "topical_coherence": lambda: TopicalCoherence(6),
    "topical_coherence_convex": lambda: TopicalCoherence(6, convex=True),
    "overlap": overlap_constraint,
    "repeat": lambda: repeat_constraint(CORE),
    "pairs": lambda: ArcPairs(ROLES, 6, heads=2, size=3),
}


def loud(energy: Energy) -> Energy:
    """Parameters far from their quiet start, in double precision."""
    torch.manual_seed(3)
    for parameter in energy.parameters():
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return energy.double()


def network(net: Network, u: Tensor, c: Tensor | None = None) -> float:
    """The two layers once more, in plain arithmetic."""
    beta, value = net.bend.temperature, 0.0
    weights = net.last.weight.flatten().tolist()
    for row, w in enumerate(weights):
        total = float(net.moving.weight[row] @ u) + float(net.moving.bias[row])
        if net.context is not None and c is not None:
            total += float(net.context.weight[row] @ c)
        value += w * math.log1p(math.exp(beta * total)) / beta
    return value + (float(net.direct.weight[0] @ u) if net.direct is not None else 0.0)


def predicates(f: Scored, b: int) -> list[int]:
    return f.predicate_mask[b].nonzero().flatten().tolist()


def arcs(f: Scored, b: int, p: int) -> list[int]:
    return f.mask[b, p].nonzero().flatten().tolist()


def by_loops(name: str, energy: Energy, y: Tensor, f: Scored, b: int) -> float:
    """The appendix, arc by arc."""
    convex, total = name.endswith("convex"), 0.0
    z = {(p, a): sum(y[b, p, a, 1:].tolist()) for p in predicates(f, b) for a in arcs(f, b, p)}
    nothing = torch.zeros(ROLES - 1, dtype=y.dtype)
    w = {p: sum((y[b, p, a, 1:] for a in arcs(f, b, p)), nothing) for p in predicates(f, b)}
    kind = name.removesuffix("_convex").removesuffix("_restricted")
    if kind == "argument_set":
        for p in predicates(f, b):
            size = len(arcs(f, b, p)) if convex else sum(z[p, a] for a in arcs(f, b, p)) + SMALL
            u = sum((z[p, a] * f.argument[b, p, a] for a in arcs(f, b, p)), torch.zeros(5, dtype=y.dtype)) / size
            total += network(energy.network, u, f.predicate[b, p])
    elif kind == "label_histogram":
        total = sum(network(energy.network, w[p], f.predicate[b, p]) for p in predicates(f, b))
    elif kind == "argument_count":
        for p in predicates(f, b):
            expected = float(energy.expected.weight[0] @ f.predicate[b, p] + energy.expected.bias[0])
            total += math.exp(float(energy.log_scale)) * (float(w[p].sum()) - expected) ** 2
    elif kind == "label_coherence":
        total = network(energy.network, sum(w.values(), nothing) / len(w))
    elif kind == "topical_coherence":
        size = len(z) if convex else sum(z.values()) + SMALL
        u = sum((z[p, a] * f.arc[b, p, a] for p, a in z), torch.zeros(6, dtype=y.dtype)) / size
        total = network(energy.network, u)
    elif kind in ("overlap", "repeat"):
        alpha, beta = float(energy.weight()), energy.temperature
        for p in predicates(f, b):
            for a in arcs(f, b, p):
                for c in (c for c in arcs(f, b, p) if c > a):
                    sums = [float(y[b, p, a, k] + y[b, p, c, k]) for k in CORE]
                    if kind == "overlap":
                        sums = [z[p, a] + z[p, c]] if bool(f.conflicts[b, p, a, c]) else []
                    total += sum(alpha * math.log1p(math.exp(beta * (s - 1))) / beta for s in sums)
    else:
        total = pairs_by_loops(energy, y, f, b, list(z))
    return total


def pairs_by_loops(energy: Energy, y: Tensor, f: Scored, b: int, real: list[tuple[int, int]]) -> float:
    total, size, count = 0.0, energy.size, len(predicates(f, b))
    for (p, a), (q, c) in ((i, j) for i in real for j in real if i != j):
        twins = f.spans[b, p, a].tolist() == f.spans[b, q, c].tolist()
        relation = 0 if p == q else 1 if twins else 2
        for h in range(2 * relation, 2 * relation + 2):
            part = slice(h * size, (h + 1) * size)
            query, key = energy.query(f.arc[b, p, a])[part], energy.key(f.arc[b, q, c])[part]
            weight = float(query @ key) / size**0.5 + float(energy.plain[h])
            product = float(energy.left(y[b, p, a, 1:])[part] @ energy.right(y[b, q, c, 1:])[part])
            total -= 0.5 * weight * product / (count - 1 if relation == 2 else 1)
    return total


@pytest.mark.parametrize("name", TERMS)
def test_values_by_loops(name: str) -> None:
    y, f = scored()
    energy = loud(TERMS[name]())
    with torch.no_grad():
        values = energy(y, f)
        expected = [by_loops(name, energy, y, f, b) for b in range(len(y))]
    assert values.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert values.abs().max() > 1e-3


@pytest.mark.parametrize("name", TERMS)
def test_the_contract_of_an_energy(name: str) -> None:
    y, f = scored()
    check_energy(MaskedArcs(loud(TERMS[name]())), y, f)


@pytest.mark.parametrize("name", [n for n in TERMS if n.endswith("convex") or n in ("overlap", "repeat")])
def test_convex_along_random_chords(name: str) -> None:
    y, f = scored()
    other = torch.softmax(torch.randn(y.shape, dtype=y.dtype), -1)
    energy = MaskedArcs(loud(TERMS[name]()))
    with torch.no_grad():
        ends = energy(y, f), energy(other, f)
        for t in (0.2, 0.5, 0.8):
            middle = energy(t * y + (1 - t) * other, f)
            assert (middle <= t * ends[0] + (1 - t) * ends[1] + 1e-12).all()


def test_restricted_weights_are_not_negative() -> None:
    """All weights on y are ≥ 0, so more mass of any role never lowers the term."""
    energy = loud(TERMS["label_histogram_restricted_convex"]())
    assert energy.network.direct is None
    assert (energy.network.moving.weight >= 0).all()
    assert (energy.network.last.weight >= 0).all()
    y, f = scored()
    leaf = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(energy(leaf, f).sum(), leaf)
    assert (gradient[..., 1:] >= 0).all()


def whole() -> MaskedArcs:
    parts = {name: loud(TERMS[name]()) for name in TERMS if not name.endswith("convex")}
    return MaskedArcs(EntropySmoothed(Sum(local=Linear(lambda f: f.scores), **parts), 1.0))


@pytest.mark.parametrize("update", ["logits", "through_logits", "mirror", "projected"])
def test_invalid_arcs_stay_empty(update: str) -> None:
    _, f = scored()
    model = spen.Minimizer(Simplex(update), GradientDescent(6, 0.1), Exact())
    trajectory = model(whole(), f, ArcInit()(f))
    for y in [trajectory.start, *trajectory.outputs]:
        assert (y[~f.mask][:, 0] > 1 - 1e-9).all()
    assert (trajectory.output - trajectory.start)[f.mask].abs().max() > 1e-2


def test_invalid_arcs_have_no_gradient_and_no_say() -> None:
    y, f = scored()
    energy = whole()
    leaf = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(energy(leaf, f).sum(), leaf)
    assert not gradient[~f.mask].any()
    assert gradient[f.mask].any()
    wild = torch.where(f.mask[..., None], y, torch.rand_like(y))
    assert torch.equal(energy(wild, f), energy(y, f))
    total = sum(term(wild, f) for _, term, _ in energy.terms())
    assert torch.allclose(total, energy(y, f))
    assert {closed for _, _, closed in energy.terms()} == {True, False}


def test_local_alone_stays_where_it_starts() -> None:
    """min −⟨s, y⟩ − H(y) is softmax(s), where Init is."""
    _, f = scored()
    energy = MaskedArcs(EntropySmoothed(Linear(lambda f: f.scores), 1.0))
    trajectory = spen.Minimizer(Simplex(), GradientDescent(5, 0.5), Exact())(energy, f, ArcInit()(f))
    assert torch.allclose(trajectory.output[f.mask], torch.softmax(f.scores, -1)[f.mask], atol=1e-12)


def test_finite_differences_agree_with_exact_gradients() -> None:
    _, f = scored()
    energy, gradients = whole(), []
    for strategy in (Exact(), FiniteDifference()):
        energy.zero_grad()
        scores = f.scores.clone().requires_grad_()
        features = f._replace(scores=scores)
        rule = GradientDescent(3, 0.1, learn_rates=True).double()
        y = spen.Minimizer(Simplex(), rule, strategy)(energy, features, ArcInit()(features)).output
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
        found = [p.grad for p in energy.parameters() if p.grad is not None]
        gradients.append(torch.cat([g.flatten() for g in [*found, scores.grad, rule.rates.log.grad]]))
    exact, approximate = gradients
    assert (exact - approximate).norm() < 1e-3 * exact.norm()
