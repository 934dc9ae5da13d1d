"""Priors of images: what they cannot see, and which of them are convex."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from spen.tasks.denoising.energy import ConvexDeepPrior, DeepPrior, FieldOfExperts, Observation


def test_blind_filters_do_not_see_the_level() -> None:
    reflected: dict[str, Any] = {"blind": True, "padding": "reflect"}
    y = torch.rand(1, 1, 12, 12)
    for prior in (
        FieldOfExperts(4, 5, blind=True),
        DeepPrior(4, 5, **reflected),
        ConvexDeepPrior(4, 5, free=True, **reflected),
    ):
        with torch.no_grad():
            next(p for p in prior.parameters() if p.dim() == 4).add_(0.1)
        assert torch.allclose(prior(y, None), prior(y + 0.3, None), rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"free": True}, {"free": True, "blind": True, "padding": "reflect"}])
def test_an_input_convex_prior_is_convex(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    prior = ConvexDeepPrior(4, 5, **options).double()
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(torch.randn_like(parameter))
    a, b = torch.randn(2, 64, 1, 9, 8, dtype=torch.float64)
    nothing = Observation(a, torch.ones_like(a))
    for t in (0.1, 0.5, 0.8):
        chord = (1 - t) * prior(a, nothing) + t * prior(b, nothing)
        assert bool((prior((1 - t) * a + t * b, nothing) <= chord + 1e-9).all())
    bends = DeepPrior(4, 5).double()
    with torch.no_grad():
        bends.last.weight.fill_(-1.0)
    assert bool((bends((a + b) / 2, nothing) > (bends(a, nothing) + bends(b, nothing)) / 2).any())


def test_only_free_filters_of_a_convex_prior_see_edges() -> None:
    torch.manual_seed(0)
    y = torch.rand(1, 1, 9, 8)
    seen = Observation(y, torch.ones_like(y))

    def slope(prior: ConvexDeepPrior) -> Tensor:
        leaf = y.clone().requires_grad_()
        return torch.autograd.grad(prior(leaf, seen).sum(), leaf)[0]

    assert bool((slope(ConvexDeepPrior(4, 5)) >= 0).all())
    found = slope(ConvexDeepPrior(4, 5, free=True))
    assert bool((found > 0).any())
    assert bool((found < 0).any())
    with pytest.raises(ValueError, match="kernels ≥ 0 of mean zero are zero: a blind convex prior needs free"):
        ConvexDeepPrior(4, 5, blind=True)
