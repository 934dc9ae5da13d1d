"""Numbers too small to matter do not slow training down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import spen
from spen.objectives import EndToEnd, squared_error
from spen.training import fit, flushed_denormals, joint
from tests.training import toy

SMALLEST = torch.finfo(torch.float32).tiny  # the next smaller number is denormal


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def halves(count: int = 1 << 20) -> int:
    """How many of the smallest numbers are not zero when they are halved."""
    return int((torch.full((count,), SMALLEST) * 0.5).count_nonzero())


@pytest.mark.usefixtures("two_threads")
def test_zero_in_every_thread_and_only_within() -> None:
    assert halves() == 1 << 20, "threads are there before"
    with flushed_denormals():
        assert halves() == 0
        with flushed_denormals():
            assert halves() == 0
        assert halves() == 0, "what was set before is set again"
    assert halves() == 1 << 20


def test_what_goes_wrong_within_leaves_it_as_it_was() -> None:
    with pytest.raises(RuntimeError, match="within"), flushed_denormals():
        raise RuntimeError("within")
    assert halves(1) == 1


def test_training_is_without_them(tmp_path: Path) -> None:
    class Watching(EndToEnd):
        def __call__(self, model: spen.SPEN, x: Any, target: Any) -> Tensor:
            seen.append(halves(1))
            return super().__call__(model, x, target)

    seen: list[int] = []
    stage = joint(Watching(squared_error), epochs=1)
    train, dev = toy.build_data()
    fit(toy.build_model(), [stage], train, dev, toy.MSE(), out=tmp_path, accelerator="cpu", progress=False)
    assert seen
    assert not any(seen)
    assert halves(1) == 1
