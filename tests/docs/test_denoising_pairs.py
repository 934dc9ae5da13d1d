"""The intervals of docs/scripts/denoising_pairs.py, on made scores."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import docs_script


def test_a_constant_difference_has_no_width() -> None:
    pairs = docs_script("denoising_pairs")
    frames = np.random.default_rng(0).normal(size=30)
    mean, low, high, seeds = pairs.interval({0: frames + 1, 1: frames + 1, 2: frames}, {0: frames, 1: frames})
    assert (mean, low, high) == pytest.approx((1.0, 1.0, 1.0))
    assert seeds == 2


@pytest.mark.parametrize(("groups", "seeds"), [(6, 1), (24, 1), (6, 2), (12, 3)])
def test_the_width_is_that_of_groups_and_seeds(groups: int, seeds: int) -> None:
    pairs, draw = docs_script("denoising_pairs"), np.random.default_rng(1)
    of_group, of_seed = draw.normal(size=groups), 0.5 * draw.normal(size=seeds)
    a = {seed: np.repeat(of_group, 5) + of_seed[seed] for seed in range(seeds)}
    mean, low, high, _ = pairs.interval(a, {seed: np.zeros(5 * groups) for seed in a})
    variance = of_group.var(ddof=1) / groups + (of_seed.var(ddof=1) / seeds if seeds > 1 else 0.0)
    assert mean == pytest.approx(of_group.mean() + of_seed.mean())
    assert (high - low) / 3.92 == pytest.approx(variance**0.5, rel=0.1)  # 3.92: 95 % of a normal distribution


def test_numbers_have_signs_of_their_own() -> None:
    pairs = docs_script("denoising_pairs")
    assert [pairs.signed(x) for x in (0.391, -0.004, -1.25)] == ["+0.39", "+0.00", "−1.25"]
