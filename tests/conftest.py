"""Shared by all tests: one thread, so that two test processes do not fight over two cores; seeded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("spen", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("spen")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is named alike in every process: an address in its name would end a run in several of them."""
    addressed = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addressed:
        raise pytest.UsageError(
            f"{addressed[0]} has an address in its name: give what it is parametrised by a __repr__"
        )
