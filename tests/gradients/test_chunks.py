"""A batch in chunks: every row once, the same gradients by value, less memory to work in."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import cpu_peak
from spen.domains import Reals, Simplex
from spen.gradients import Checkpointed, Compiled, Exact
from spen.gradients.compiled.keep import cache_results
from spen.gradients.compiled.program import Chunks, Program, zeroed
from spen.protocols import Domain
from spen.testing import check_strategy
from tests.helpers import distance, gradients, prior


@given(batch=st.integers(1, 60), most=st.none() | st.integers(1, 70))
def test_every_row_counts_once(batch: int, most: int | None) -> None:
    chunks, rows = Chunks(batch, most), torch.arange(batch)
    cut = [rows[part] for part, _ in chunks]
    assert len(cut) == chunks.number
    assert {len(part) for part in cut} == {chunks.size}
    assert chunks.size <= (most or batch)
    assert torch.equal(chunks.joined(cut), rows)
    counted = torch.zeros(batch)
    for part, again in chunks:
        counted[part] += zeroed(torch.ones(chunks.size), again)
    assert torch.equal(counted, torch.ones(batch))


@pytest.mark.parametrize(("domain", "rows"), [(Reals(), 1), (Simplex("through_logits"), 2)], ids=str)
def test_the_contract_of_a_strategy_holds_in_chunks(domain: Domain, rows: int) -> None:
    strategy = Compiled(rows=rows, patience=0)
    check_strategy(strategy, tolerance=1e-8, domains=[domain])
    made = [p for energy in strategy._slots for p in strategy.programs(energy)]
    assert all(isinstance(p, Program) and p.chunks.size <= rows and p.chunks.number > 1 for p in made)


def test_chunks_with_kept_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spen.gradients.compiled.program.cache_results", lambda g, p: cache_results(g, p, density=0.01))
    check_strategy(Compiled(Checkpointed(), keep=0.5, rows=3, patience=0), tolerance=1e-8, domains=[Reals()])


def test_a_convolutional_energy_in_uneven_chunks() -> None:
    energy, x = prior(size=3).double(), torch.rand(5, 1, 6, 7, dtype=torch.float64)
    exact = gradients(energy, Exact(), x)
    for rows in (2, 3):
        assert distance(gradients(energy, Compiled(rows=rows, patience=0), x), exact) < 1e-10


def test_chunks_work_in_less_memory() -> None:
    energy, x = prior(), torch.rand(8, 1, 32, 32)
    peaks = {}
    for rows in (None, 1):
        strategy = Compiled(rows=rows, patience=0)
        gradients(energy, strategy, x)  # the program is made
        peaks[rows] = cpu_peak(lambda strategy=strategy: gradients(energy, strategy, x))  # type: ignore[misc]
    assert peaks[1] < 0.3 * peaks[None]


def test_misuse_is_explained() -> None:
    with pytest.raises(ValueError, match="rows is how many examples are computed at once, 1 or more, not 0"):
        Compiled(rows=0)
    assert str(Compiled(rows=4)) == "Compiled(ForwardOverReverse(), rows=4)"
