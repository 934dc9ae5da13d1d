"""Floors by value: operations and bytes of problems small enough to count by hand, and the union of busy intervals."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from benchmarks.ceilings import Attention, Ceilings, Convolutions, measure_ceilings, precise
from benchmarks.overhead import covered, launch_overhead
from benchmarks.problems import deep_prior


def test_operations_of_the_deep_prior_by_hand() -> None:
    work = Convolutions(batch=1, height=2, width=3, channels=2, size=3, steps=5)
    # Per pixel: 9 weights to 2 channels, 9 · 2 to 2, 2 to 1; a multiplication and an addition each; 6 pixels.
    product = 2 * 6 * (9 * 2 + 9 * 2 * 2 + 2)
    assert work.operations(1) == 5 * product
    assert work.operations() == 6 * 5 * product
    assert work.operations(8) == 8 * 5 * product


def test_the_paper_size_has_the_operations_that_the_documentation_names() -> None:
    work = Convolutions(batch=32, height=96, width=128, channels=32, size=7, steps=20)
    assert work.operations(1) / 20 == pytest.approx(40.71e9, rel=1e-3)


def test_traffic_of_the_deep_prior_by_hand() -> None:
    work = Convolutions(batch=1, height=2, width=3, channels=2, size=3, steps=5)
    # Channels in and out: 1 + 2, 2 + 2, 2 + 1.
    assert work.traffic(4, 1) == 5 * 4 * 6 * 10


def test_operations_of_attention_by_hand() -> None:
    work = Attention(batch=1, positions=2, width=3, layers=1, steps=1)
    maps, mixing = 2 * 2 * 12 * 9, 2 * 2 * 2 * 2 * 3
    assert work.operations(1) == maps + 1.5 * mixing


def test_the_floor_is_the_larger_of_two_times() -> None:
    work = Convolutions(batch=1, height=2, width=3, channels=2, size=3, steps=1)
    operations, traffic = work.operations(), work.traffic(4)
    slow_arithmetic = Ceilings({"float32": operations / 3.0}, bandwidth=traffic / 2.0)
    assert slow_arithmetic.floor(work, "float32") == pytest.approx(3.0)
    slow_memory = Ceilings({"float32": operations / 3.0}, bandwidth=traffic / 7.0)
    assert slow_memory.floor(work, "float32") == pytest.approx(7.0)
    half = Ceilings({"bf16": operations / 3.0}, bandwidth=traffic / 7.0)
    assert half.floor(work, "bf16") == pytest.approx(3.5)  # half the bytes
    with pytest.raises(ValueError, match="no rate was measured in tf32; there are float32"):
        slow_memory.floor(work, "tf32")


def test_ceilings_are_measured() -> None:
    ceilings = measure_ceilings(torch.device("cpu"), matrix=128, copied=2**16)
    assert list(ceilings.rates) == ["float32"]
    assert 1e8 < ceilings.rates["float32"] < 1e14
    assert 1e7 < ceilings.bandwidth < 1e13


def test_kernels_are_measured_alone_and_grow_with_the_steps() -> None:
    one = Convolutions(batch=1, height=8, width=8, channels=2, size=3, steps=1)
    many = Convolutions(batch=1, height=8, width=8, channels=2, size=3, steps=1000)
    short, long = (w.kernels(torch.device("cpu"), "float32") for w in (one, many))
    assert short is not None
    assert long is not None
    assert 10 * short < long


def test_precision_is_set_and_put_back() -> None:
    before = torch.backends.cudnn.allow_tf32
    for name, allowed in (("tf32", True), ("bf16", True), ("float32", False), ("float64", False)):
        with precise(name):
            assert torch.backends.cudnn.allow_tf32 is allowed
            assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.backends.cudnn.allow_tf32 is before


def test_busy_time_counts_overlapping_kernels_once() -> None:
    assert covered([]) == 0
    assert covered([(0, 10), (20, 25)]) == 15
    assert covered([(20, 25), (0, 10), (5, 22), (6, 7)]) == 25


def test_steps_in_a_row_are_timed_one_by_one_and_together() -> None:
    problem = deep_prior("cpu", batch=1, height=8, width=8, steps=2)
    taken: list[float] = []

    def step() -> list[Tensor]:
        time.sleep(0.002)
        taken.append(time.perf_counter())
        return []

    notes = launch_overhead(step, problem, "plain PyTorch")
    assert set(notes) == {"host_ms", "row_ms"}
    assert len(taken) == 15
    assert notes["host_ms"] >= 2
    assert 2 <= notes["row_ms"] <= 1000 * (taken[-1] - taken[4]) / 10 + 50
