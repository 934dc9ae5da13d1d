"""The order of batches, from the seed of a run or one of the source's own, and their shares among processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from spen.objectives import EndToEnd, squared_error
from spen.training import TensorSource, fit, joint
from spen.training.sources import own_batches
from tests.training import toy


def _order(source: TensorSource, epoch: int = 0) -> list[int]:
    return torch.cat([x for x, _ in source.batches(epoch)]).tolist()


def _numbers(seed: int | None = None) -> TensorSource:
    return TensorSource(torch.arange(20), torch.arange(20), 4, seed=seed)


def test_a_run_seeds_a_source_that_has_no_seed() -> None:
    assert _order(_numbers().seeded(3), 2) == _order(_numbers(3), 2)
    assert _order(_numbers(0).seeded(3)) == _order(_numbers(0))
    assert _order(_numbers()) == _order(_numbers(0))
    source = _numbers()
    source.seeded(3)
    assert source.seed is None, "one source may serve several runs"


@pytest.mark.parametrize("own", [None, 0])
def test_the_seed_of_a_run_orders_its_batches(tmp_path: Path, own: int | None) -> None:
    def trained(seed: int) -> dict[str, list[float]]:
        data, dev = toy.build_data()
        model = toy.build_model()
        model.features[2].p = 0.0  # type: ignore[index, assignment, union-attr]
        train = TensorSource(data.x, data.target, 8, seed=own)
        stage = joint(EndToEnd(squared_error), epochs=1)
        options = {"out": tmp_path / str(seed), "seed": seed, "accelerator": "cpu", "progress": False}
        run = fit(model, [stage], train, dev, toy.MSE(), **options)  # type: ignore[arg-type]
        assert run is not None
        return {name: value.tolist() for name, value in run.load().items()}

    assert (trained(0) == trained(1)) == (own is not None)


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_a_process_knows_which_batches_are_its_own(size: int, batch: int, world: int, drop_last: bool) -> None:
    assume(size >= batch or not drop_last)
    source = TensorSource(torch.arange(size), torch.arange(size), batch, shuffle=False, drop_last=drop_last)
    shares = [list(source.batches(0, rank, world))[: source.own(rank, world)] for rank in range(world)]
    seen = sorted(int(number) for share in shares for x, _ in share for number in x)
    assert seen == list(range(source.count(world) * world * batch if drop_last else size))


def test_a_source_that_says_nothing_repeats_nothing() -> None:
    class Plain:
        def batches(self, epoch: int, rank: int, world: int) -> Iterator[tuple[int, int]]:
            yield from [(0, 0)] * 3

        def count(self, world: int) -> int:
            return 3

    assert own_batches(Plain(), 1, 2) == 3
    assert own_batches(TensorSource(torch.arange(5), torch.arange(5), 2), 1, 2) == 1
