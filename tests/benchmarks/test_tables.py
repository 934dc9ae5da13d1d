"""Markdown and figures from results that are written down here: every number is checked by value."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plots, table
from benchmarks.results import SCHEMA, Row, Skip

SIZES = {"batch": 32, "height": 96, "width": 128, "steps": 20, "channels": 32}


def row(suite: str, system: str, ms: float, mib: float, **more: Any) -> dict[str, Any]:
    sizes = {**SIZES, **more.pop("sizes", {})}
    values = {"precision": "tf32", **more}
    precision = values.pop("precision")
    return asdict(Row(suite, "DeepPrior", sizes, system, precision, ms, ms / 100, 0.9 * ms, 20, mib, **values))


@pytest.fixture
def results() -> dict[str, Any]:
    sound = {"error": 8e-4, "worst_error": 3e-3, "agrees": True, "floor_ms": 10.0, "kernels_ms": 80.0}
    rows = [
        row("deep-prior-20", "plain PyTorch", 342.0, 8467.0, **{**sound, "error": 0.0}),
        row("deep-prior-20", "spen Compiled", 85.5, 400.0, **sound),
        row("deep-prior-20", "spen fast but wrong", 5.0, 1.0, error=0.5, worst_error=0.9, agrees=False),
        row("deep-prior-20", "spen Compiled, bf16", 45.0, 300.0, precision="bf16", **{**sound, "error": 9e-3}),
        row("deep-prior-20", "JAX scan", 123.0, 7434.0, **sound),
        row("deep-prior-20", "JAX scan, checkpoint", 140.0, 668.0, **sound),
        row("overhead", "spen Compiled", 85.5, 400.0, notes={"host_ms": 2.0, "busy_ms": 81.225, "waits": 0}),
        row("overhead", "spen Auto", 85.5, 400.0, notes={"row_ms": 83.0, "busy_ms": 81.225}),
        *(
            row("sweep-steps", system, factor * t, memory * t, sizes={"steps": t})
            for t in (3, 20, 200)
            for system, factor, memory in (("plain PyTorch", 17.0, 420.0), ("spen Compiled", 4.0, 1.0))
        ),
        row("sweep-jax", "JAX scan", 1200.0, 74000.0, sizes={"steps": 200}),
    ]
    skipped = [
        asdict(Skip(suite, "DeepPrior", SIZES, "TorchOpt", "torchopt cannot be imported: No module named 'torchopt'"))
        for suite in ("deep-prior-20", "deep-prior-3")
    ]
    machine = {"device": "cuda", "gpu": "NVIDIA H200", "processor": "Xeon", "cores": 16, "threads": 16}
    return {
        "schema": SCHEMA,
        "command": "python -m benchmarks",
        "machine": machine,
        "versions": {"python": "3.12.1", "torch": "2.11.0"},
        "ceilings": {"rates": {"tf32": 4.2e14}, "bandwidth": 3.9e12},
        "rows": rows,
        "skipped": skipped,
    }


def test_the_head_names_command_machine_versions_and_ceilings(results: dict[str, Any]) -> None:
    assert table.header(results).splitlines() == [
        "`python -m benchmarks` on NVIDIA H200; python 3.12.1, torch 2.11.0.",
        "Ceilings measured in the same run: 420 Tflop/s in tf32; a copy moves 3900 GB/s.",
    ]


def test_a_table_has_time_memory_error_and_ratios(results: dict[str, Any]) -> None:
    text = table.document(results)
    assert "DeepPrior: batch 32, height 96, width 128, steps 20, channels 32" in text
    assert "| plain PyTorch | 342 ± 3.42 | 308 | 1.00 × | 8,467 | 0e+00 | 34.20 | 4.28 |" in text
    assert "| **spen Compiled** | 85.5 ± 0.85 | 77.0 | 4.00 × | 400 | 8e-04 | 8.55 | 1.07 |" in text
    assert "5e-01 (disagrees)" in text
    assert "| **spen Compiled** | 85.5 ± 0.85 | 77.0 | 400 | 2.00 |  | 81.2 | 5.0% | 0 |" in text
    assert "| **spen Auto** | 85.5 ± 0.85 | 77.0 | 400 |  | 83.0 | 81.2 | 2.1% |  |" in text


def test_systems_that_lie_together_have_their_numbers_together() -> None:
    places = {"spen Exact": (100.0, 50.0), "plain PyTorch": (100.0, 60.0), "spen Auto": (96.0, 52.0)}
    rows = [{"system": system, "milliseconds": ms, "peak_mib": mib} for system, (ms, mib) in places.items()]
    assert plots.numbered(rows) == {"1, 3": (100.0, 50.0), "2": (100.0, 60.0)}


def test_columns_can_be_chosen(results: dict[str, Any]) -> None:
    rows = [r for r in results["rows"] if r["suite"] == "deep-prior-20"][:1]
    assert table.table(rows, ["way", "peak MiB"]).splitlines()[2] == "| plain PyTorch | 8,467 |"
    with pytest.raises(ValueError, match="there is no column weight; there are way, ms a step, best ms,"):
        table.table(rows, ["weight"])


def test_a_sweep_is_one_table_with_a_line_for_each_value(results: dict[str, Any]) -> None:
    lines = table.sweep([r for r in results["rows"] if r["suite"] == "sweep-steps"]).splitlines()
    assert lines[0] == "| steps | plain PyTorch, ms | plain PyTorch, MiB | spen Compiled, ms | spen Compiled, MiB |"
    assert lines[2:] == [
        "| 3 | 51.0 | 1,260 | 12.0 | 3.00 |",
        "| 20 | 340 | 8,400 | 80.0 | 20.0 |",
        "| 200 | 3,400 | 84,000 | 800 | 200 |",
    ]


def test_skips_are_grouped_by_reason(results: dict[str, Any]) -> None:
    reason = "torchopt cannot be imported: No module named 'torchopt'"
    assert table.skips(results["skipped"]) == f"- TorchOpt (deep-prior-20, deep-prior-3): {reason}"


def test_ratios_are_of_the_fastest_that_agree(results: dict[str, Any]) -> None:
    assert table.ratios(results["rows"]) == [
        "deep-prior-20, steps 20, tf32: spen Compiled takes 0.25 of the time of plain PyTorch and 0.047 of its memory",
        "deep-prior-20, steps 20, tf32: spen Compiled takes 0.70 of the time of JAX (JAX scan) and 0.054 of its memory",
        "deep-prior-20, steps 20, bf16: spen Compiled, bf16 takes 0.13 of the time of plain PyTorch and 0.035 of its "
        "memory",
        "deep-prior-20, steps 20, bf16: spen Compiled, bf16 takes 0.37 of the time of JAX (JAX scan) and 0.040 of its "
        "memory",
    ]


def test_the_commands_print_and_draw(
    results: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    table.main([str(path), "--only", "overhead"])
    printed = capsys.readouterr().out
    assert "### overhead" in printed
    assert "deep-prior" not in printed
    plots.main([str(path), "--out", str(tmp_path / "figures")])
    drawn = {"speed-steps.png", "speed-deep-prior-20.png"}  # nothing was measured for the others
    assert {p.name for p in (tmp_path / "figures").iterdir()} == drawn
    assert all((tmp_path / "figures" / name).stat().st_size > 5000 for name in drawn)


def test_points_of_a_sweep_come_from_every_suite_that_has_them(results: dict[str, Any]) -> None:
    found = plots.points(results["rows"], "steps")
    assert found["plain PyTorch"] == [(3, 51.0, 1260.0), (20, 340.0, 8400.0), (200, 3400.0, 84000.0)]
    assert found["JAX scan"] == [(20, 123.0, 7434.0), (200, 1200.0, 74000.0)]
    assert "spen fast but wrong" not in found
    assert plots.points(results["rows"], "batch") == {}
