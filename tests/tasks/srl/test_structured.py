"""The dynamic programme against all assignments written out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from spen.tasks.srl.build import build
from spen.tasks.srl.recipes import find_recipe
from spen.tasks.srl.structured import ConstrainedLogLoss, log_partition
from tests.tasks.srl.small import batch, prepared


def feasible(labels: tuple[int, ...], spans: list[tuple[int, int]], core: tuple[int, ...]) -> bool:
    used = [s for s, r in zip(spans, labels, strict=True) if r]
    apart = all(a[1] <= b[0] or b[1] <= a[0] for a, b in itertools.combinations(used, 2))
    return apart and all(labels.count(r) <= 1 for r in core)


def by_enumeration(gains: Tensor, mask: Tensor, spans: Tensor, core: tuple[int, ...]) -> float:
    real = mask.nonzero().flatten().tolist()
    places = [tuple(spans[a].tolist()) for a in real]
    total = 0.0
    for labels in itertools.product(range(gains.shape[-1]), repeat=len(real)):
        if feasible(labels, places, core):
            total += math.exp(sum(float(gains[a, r]) for a, r in zip(real, labels, strict=True) if r))
    return math.log(total)


@pytest.mark.parametrize("core", [(1, 2), (1,), (), (1, 2, 3)])
def test_the_sum_over_all_assignments(core: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(len(core))
    gains = 2 * torch.randn(12, 5, 4, generator=generator, dtype=torch.float64)
    start = torch.randint(0, 6, (12, 5), generator=generator)
    spans = torch.stack([start, start + torch.randint(1, 4, (12, 5), generator=generator)], -1)
    mask = torch.rand(12, 5, generator=generator) < 0.8
    mask[0] = False
    found = log_partition(gains, mask, spans * mask[..., None], core)
    expected = [by_enumeration(gains[p], mask[p], spans[p], core) for p in range(12)]
    assert found.tolist() == pytest.approx(expected, abs=1e-9)
    assert float(found[0]) == 0.0


def test_marginals_are_gradients() -> None:
    generator = torch.Generator().manual_seed(5)
    gains = torch.randn(1, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    spans = torch.tensor([[[0, 2], [1, 3], [4, 5]]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    (marginals,) = torch.autograd.grad(log_partition(gains, mask, spans, (1,)).sum(), gains)
    assert (marginals[..., 1:] >= 0).all()
    assert float(marginals[0, :2, 1:].sum()) <= 1, "the first two overlap"
    assert float(marginals[0, :, 1].sum()) <= 1, "role 1 is core"
    total, count = math.exp(float(log_partition(gains.detach(), mask, spans, (1,)))), 0.0
    for labels in itertools.product(range(3), repeat=3):
        if labels[0] == 2 and feasible(labels, [(0, 2), (1, 3), (4, 5)], (1,)):
            count += math.exp(sum(float(gains.detach()[0, a, r]) for a, r in enumerate(labels) if r))
    assert float(marginals[0, 0, 2]) == pytest.approx(count / total)


@torch.no_grad()
def test_the_loss_is_a_proper_one() -> None:
    data = prepared()
    model = build(find_recipe("structured"), data).double().eval()
    x, target = batch()
    objective = ConstrainedLogLoss(data.space.core)
    loss = objective(model, x, target)
    gains = model.features(x).scores
    gains = gains - gains[..., :1]
    expected = 0.0
    for b, p in target.mask.any(-1).nonzero().tolist():
        arcs, gold = target.mask[b, p], target.gold[b, p]
        if int(arcs.sum()) > 2:
            one = log_partition(gains[b, p][None], arcs[None], target.spans[b, p][None], data.space.core)
        else:
            one = torch.tensor(by_enumeration(gains[b, p], arcs, target.spans[b, p], data.space.core))
        expected += float(one) - float(gains[b, p].gather(-1, gold[:, None])[arcs].sum())
    assert float(loss) == pytest.approx(expected / int(target.mask.sum()))
    assert float(loss) > 0
    assert torch.equal(objective.predict(model, x), model.feedforward(x))
