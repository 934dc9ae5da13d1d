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
