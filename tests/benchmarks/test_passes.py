"""Passes switched off one by one at toy size: entries, patches that come back, the table; never a figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import passes
from benchmarks.kinds import TOY
from benchmarks.passes import PASSES, Entry, measure_kind, replaced, table
from spen.gradients.compiled import cpu, keep, lower, trace

QUICK = {"seconds": 60.0, "row_seconds": 0.0, "repeats": 3}


def test_every_pass_of_a_cpu_is_measured_written_and_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = trace.simplified, cpu._channels_last, keep.simplified
    options = ["--device", "cpu", "--size", "toy", "--kinds", "label-sets", "--here", "--out", str(tmp_path)]
    passes.main([*options, "--row-seconds", "0", "--repeats", "3"])
    assert "label-sets   without softplus" in capsys.readouterr().err
    entries = json.loads((tmp_path / "results.json").read_text())["entries"]
    names = [name for name, p in PASSES.items() if "cpu" in p.devices]
    assert [e["name"] for e in entries] == names
    assert {e["problem"] for e in entries} == {None}
    assert all(e["time"] > 0 and e["memory"] > 0 and e["error"] < 1e-5 for e in entries)
    assert (trace.simplified, cpu._channels_last, keep.simplified) == before
    other = vars(Entry("srl", "softplus", 1.25, 0.5, error=0.5)), vars(Entry("srl", "zeros", problem="too hard"))
    lines = table([*entries, *other]).splitlines()
    assert lines[0] == "| without | label-sets | srl |"
    assert lines[2 + names.index("zeros")].endswith(" | — |")
    assert lines[2 + names.index("softplus")].endswith(" | 1.25, 0.50 |")
    assert lines[-2:] == ["- zeros on srl: too hard", "- softplus on srl: gradients differ by 5e-01"]


def test_a_pass_of_the_gpu_changes_what_lowering_asks_for() -> None:
    before = lower.Passes
    for name, changed in (("pairs", "pairs"), ("turned", "turned"), ("kernels", "kernels"), ("pointwise", "pointwise")):
        with PASSES[name].off():
            assert getattr(lower.Passes(), changed) is False
    assert lower.Passes is before


def test_a_pass_that_is_gone_is_named() -> None:
    with (
        pytest.raises(LookupError, match=r"there is no cpu\.abacus any more"),
        replaced("cpu", "abacus", lambda f: f),
    ):
        pass


def test_no_time_left_is_said() -> None:
    (entry,) = measure_kind("graph", ["simplify"], "cpu", TOY, **{**QUICK, "seconds": -1.0})
    assert entry.problem == "the time was up"


@pytest.mark.parametrize("given", [["--kinds", "abacus"], ["--passes", "abacus"]])
def test_unknown_names_get_the_list(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        passes.parse(given)
    assert "abacus; there are " in capsys.readouterr().err
