"""Markdown of a results file, for docs/performance.md.

python -m benchmarks.table runs/benchmarks/results.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import read_all

Json = dict[str, Any]
PLAIN = "plain PyTorch"


def document(results: Json, only: Sequence[str] = ()) -> str:
    """Everything: where it was measured, a table a suite, what was skipped, and the ratios that matter.

    ``only`` names the columns wanted, all if empty.
    """
    parts = [header(results)]
    for suite in dict.fromkeys(row["suite"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["suite"] == suite]
        parts.append(f"### {suite}\n\n" + (sweep(rows) if suite.startswith("sweep") else tables(rows, only)))
    if skipped := skips(results["skipped"]):
        parts.append("### Skipped\n\n" + skipped)
    if short := "\n".join(f"- {line}" for line in ratios(results["rows"])):
        parts.append("### Ratios\n\n" + short)
    return "\n\n".join(parts) + "\n"


def header(results: Json) -> str:
    """Command, machine, versions and the measured ceilings."""
    machine, versions = results["machine"], dict(results["versions"])
    jax = [row["notes"]["version"] for row in results["rows"] if row["system"].startswith("JAX") and row["notes"]]
    versions |= {"jax": jax[0]} if jax else {}
    place = machine.get("gpu") or f"{machine['processor']}, cores: {machine['cores']}, threads: {machine['threads']}"
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [f"`{results['command']}` on {place}; {named}."]
    if ceilings := results.get("ceilings"):
        rates = ", ".join(f"{rate / 1e12:.3g} Tflop/s in {name}" for name, rate in ceilings["rates"].items())
        lines.append(
            f"Ceilings measured in the same run: {rates}; a copy moves {ceilings['bandwidth'] / 1e9:.4g} GB/s."
        )
    return "\n".join(lines)


def tables(rows: list[Json], only: Sequence[str] = ()) -> str:
    """One table for each problem and size."""
    found = []
    for key in dict.fromkeys(_key(row) for row in rows):
        own = [row for row in rows if _key(row) == key]
        found.append(f"{own[0]['problem']}: {_sizes(own[0]['sizes'])}\n\n{table(own, only)}")
    return "\n\n".join(found)


def table(rows: list[Json], only: Sequence[str] = ()) -> str:
    """Systems on one problem. Columns that no row fills are left out."""
    plain = next((row["milliseconds"] for row in rows if row["system"] == PLAIN), None)
    columns: dict[str, list[str]] = {
        "way": [_name(row) for row in rows],
        "ms a step": [f"{_number(row['milliseconds'])} ± {_number(row['spread_ms'])}" for row in rows],
        "best ms": [_number(row["best_ms"]) for row in rows],
        "processor ms": [_note(row, "cpu_ms") for row in rows],
        "faster than plain": ["" if plain is None else f"{plain / row['milliseconds']:.2f} ×" for row in rows],
        "peak MiB": [_number(row["peak_mib"]) for row in rows],
        "resident MiB": [_note(row, "rss_mib") for row in rows],
        "gradient error": [_error(row) for row in rows],
        "× floor": [_ratio(row, "floor_ms") for row in rows],
        "× kernels": [_ratio(row, "kernels_ms") for row in rows],
        "host ms": [_note(row, "host_ms") for row in rows],
        "ms in a row": [_note(row, "row_ms") for row in rows],
        "GPU busy ms": [_note(row, "busy_ms") for row in rows],
        "GPU idle": [_idle(row) for row in rows],
        "waits": [str(row["notes"].get("waits", "")) for row in rows],
    }
    if unknown := [name for name in only if name not in columns]:
        raise ValueError(f"there is no column {', '.join(unknown)}; there are {', '.join(columns)}")
    return markdown({name: cells for name, cells in columns.items() if any(cells) and (not only or name in only)})


def sweep(rows: list[Json]) -> str:
    """Milliseconds and MiB of every system, one line for each value of what varies."""
    varying = [k for k in rows[0]["sizes"] if len({row["sizes"][k] for row in rows}) > 1] or ["steps"]
    points = list(dict.fromkeys(tuple(row["sizes"][k] for k in varying) for row in rows))
    columns: dict[str, list[str]] = {" × ".join(varying): [" × ".join(map(str, point)) for point in points]}
    for system in dict.fromkeys(row["system"] for row in rows):
        own = {tuple(row["sizes"][k] for k in varying): row for row in rows if row["system"] == system}
        columns[f"{system}, ms"] = [_number(own[p]["milliseconds"]) if p in own else "" for p in points]
        columns[f"{system}, MiB"] = [_number(own[p]["peak_mib"]) if p in own else "" for p in points]
    return markdown(columns)


def skips(skipped: list[Json]) -> str:
    """Each reason once, with the suites it holds for."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for skip in skipped:
        suites = grouped.setdefault((skip["system"], skip["reason"]), [])
        if skip["suite"] not in suites:
            suites.append(skip["suite"])
    return "\n".join(f"- {system} ({', '.join(suites)}): {reason}" for (system, reason), suites in grouped.items())


def ratios(rows: list[Json]) -> list[str]:
    """The fastest way of spen, by precision, against plain PyTorch and the fastest JAX, wherever all were measured.

    A way whose gradient disagrees does not count.
    """
    lines = []
    sound = [r for r in rows if r["agrees"] is not False and not r["suite"].startswith(("sweep", "overhead"))]
    for key in dict.fromkeys(_case(row) for row in sound):
        own = [row for row in sound if _case(row) == key]
        for precision in dict.fromkeys(row["precision"] for row in own):
            ours = [r for r in own if r["system"].startswith("spen ") and r["precision"] == precision]
            for name, others in ((PLAIN, [PLAIN]), ("JAX", ["JAX scan", "JAX scan, checkpoint"])):
                theirs = [r for r in own if r["system"] in others]
                if ours and theirs:
                    lines.append(_against(min(ours, key=_time), name, min(theirs, key=_time)))
    return lines


def _against(ours: Json, name: str, theirs: Json) -> str:
    time, memory = ours["milliseconds"] / theirs["milliseconds"], ours["peak_mib"] / max(theirs["peak_mib"], 1e-9)
    whom = name if theirs["system"] == name else f"{name} ({theirs['system']})"
    where = f"{ours['suite']}, steps {ours['sizes']['steps']}, {ours['precision']}"
    return f"{where}: {ours['system']} takes {time:.2f} of the time of {whom} and {memory:.3f} of its memory"


def markdown(columns: dict[str, list[str]]) -> str:
    """A table from columns of equal length."""
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(cells) + " |" for cells in zip(*columns.values(), strict=True)]
    return "\n".join(lines)


def _key(row: Json) -> tuple[Any, ...]:
    return row["suite"], row["problem"], tuple(row["sizes"].items())


def _case(row: Json) -> tuple[Any, ...]:
    return row["suite"], tuple(row["sizes"].items())  # fused and unfused attention stand side by side


def _time(row: Json) -> float:
    return row["milliseconds"]


def _name(row: Json) -> str:
    bold = row["system"].startswith("spen ")
    return f"**{row['system']}**" if bold else row["system"]


def _sizes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in sizes.items())


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _error(row: Json) -> str:
    if row["error"] is None:
        return ""
    return f"{row['error']:.0e}" + ("" if row["agrees"] else " (disagrees)")


def _ratio(row: Json, key: str) -> str:
    return "" if not row[key] else f"{row['milliseconds'] / row[key]:.2f}"


def _note(row: Json, key: str) -> str:
    return _number(row["notes"][key]) if key in row["notes"] else ""


def _idle(row: Json) -> str:
    busy = row["notes"].get("busy_ms")
    whole = row["notes"].get("row_ms", row["milliseconds"])
    return "" if not busy else f"{max(0.0, 1 - busy / whole):.1%}"


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="one or more runs on the same machine")
    parser.add_argument("--only", default="", help="these suites alone, separated by commas")
    parser.add_argument("--columns", default="", help="these columns alone, separated by commas")
    options = parser.parse_args(None if arguments is None else list(arguments))
    results = read_all(options.results)
    wanted = {name.strip() for name in options.only.split(",") if name.strip()}
    for part in ("rows", "skipped"):
        results[part] = [entry for entry in results[part] if not wanted or entry["suite"] in wanted]
    columns = [name.strip() for name in options.columns.split(",") if name.strip()]
    print(document(results, columns), end="")


if __name__ == "__main__":
    main()
