"""Shared by all tests: one thread, so that two test processes do not fight over two cores; seeded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("spen", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("spen")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def slow() -> tuple[str, ...]:
    """The beginnings of the names of slow tests: files, functions, or functions with some of their parameters."""
    lines = Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


SLOW = slow()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is named alike in every process: an address in its name would end a run in several of them.

    Slow tests are marked here and not in their files, so that one list shows what `make quick` leaves out.
    """
    addressed = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addressed:
        raise pytest.UsageError(
            f"{addressed[0]} has an address in its name: give what it is parametrised by a __repr__"
        )
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
