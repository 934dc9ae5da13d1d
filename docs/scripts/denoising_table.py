"""The tables and pictures of the pages on denoising in docs/experiments, from what `reproduce` wrote.

python docs/scripts/denoising_table.py runs/table1 --ablation runs/ablation --as-printed runs/paper --pictures
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
PAGES = [DOCS / "experiments" / name for name in ("denoising.md", "redkitchen.md")]
DATA = ("simulated", "rooms", "redkitchen", "gaussian")
NOTHING = "*Not made yet.*"


def main_table(whole: dict[str, Any]) -> str:
    """Mean ± spread over seeds, the paper's figure beside it; the PSNR of the authors' code for rows as printed."""
    depth = whole["data"] != "gaussian"
    as_printed = any(line["recipe"].startswith("paper/") for line in whole["table"])
    like_the_paper = whole["data"] in ("simulated", "rooms")  # noise near 30 dB on depth images
    head = [
        "",
        "PSNR, dB",
        *(["surfaces, dB", "holes, mm"] if depth else []),
        *(["every pixel, dB"] if as_printed else []),
        "seeds",
        "batches",
        "training, s",
        *(["paper"] if like_the_paper else []),
    ]
    raw = whole["raw"]
    noisy = ["noisy", f"{raw['psnr']:.2f}"]
    noisy += [f"{raw['surface_psnr']:.2f}", _number(raw["hole_rmse_mm"], 0)] if depth else []
    noisy += [_number(raw["clamped_psnr"], 2)] if as_printed else []
    rows = [noisy + [""] * (len(head) - len(noisy))]
    for line in whole["table"]:
        if ":" in line["recipe"] or line["psnr"] is None:
            continue
        row = [f"`{line['recipe']}`", _with_spread(line["psnr"], line["spread"])]
        if depth:
            row += [_with_spread(line["surface_psnr"], line["surface_spread"]), _number(line["hole_rmse_mm"], 0)]
        row += [_number(line["clamped_psnr"], 2)] if as_printed else []
        row += [str(line["seeds"]), _number(line["batches"], 0), _number(line["train_seconds"], 0)]
        rows.append([*row, _number(line["paper"], 2)] if like_the_paper else row)
    return _markdown(head, rows)


def ablation_table(whole: dict[str, Any]) -> str:
    """Every changed recipe, and how far it lies from the one that was changed."""
    from spen.tasks.denoising.report import ablation_lines

    rows = [
        [
            changed,
            _with_spread(line["psnr"], line["spread"]),
            str(line["seeds"]),
            "" if better is None else f"{better:+.2f}",
            _number(line["surface_psnr"], 2),
            _number(line["train_seconds"], 0),
        ]
        for changed, line, better in ablation_lines(whole)
        if line["psnr"] is not None
    ]
    return _markdown(["", "PSNR, dB", "seeds", "difference", "surfaces, dB", "training, s"], rows)


def put(name: str, table: str) -> None:
    """What stands between the marks of ``name`` replaced, on the page that has them."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if pattern.search(text):
            page.write_text(pattern.sub(lambda marks: f"{marks[1]}{table}\n{marks[2]}", text), encoding="utf-8")
            return
    raise ValueError(f"no page has a place for {name}")


def picture(whole: dict[str, Any], rows: tuple[str, ...]) -> None:
    """A test frame as some rows answer it, into docs/figures."""
    from spen.models import open_model
    from spen.tasks.denoising.datasets import open_splits
    from spen.tasks.denoising.energy import Observation
    from spen.tasks.denoising.losses import observation
    from spen.tasks.denoising.regimes import find_regime
    from spen.tasks.denoising.report import images_figure

    test = open_splits(find_regime(whole["data"]), quick=whole["quick"]).test
    frame = test.frame(len(test) // 2)
    x = Observation(*(part[None] for part in observation(frame)))
    runs = {r["recipe"]: r["folder"] for r in whole["results"] if "psnr" in r and r["seed"] == 0}
    answers = {name: open_model(runs[name]).denoise(x)[0] for name in rows if name in runs}
    images_figure(frame, answers).savefig(DOCS / "figures" / f"denoised-{whole['data']}.png", dpi=80)


def _with_spread(value: float | None, spread: float | None) -> str:
    return _number(value, 2) + ("" if spread is None else f" ± {spread:.2f}")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None or value != value else f"{value:,.{digits}f}"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--ablation", type=Path)
    parser.add_argument("--as-printed", type=Path)
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--rows", default="bm3d,foe-20+,dp-20,dp-3,spen-best", help="of the pictures")
    a = parser.parse_args()
    for data in DATA:
        path = a.results / data / "results.json"
        if not path.exists():
            continue
        whole = json.loads(path.read_text(encoding="utf-8"))
        put(f"table {data}", main_table(whole))
        if a.pictures and data == "rooms":  # the other sets' images are not ours to show
            picture(whole, tuple(a.rows.split(",")))
    if a.ablation is not None:
        ablation = json.loads((a.ablation / "simulated" / "results.json").read_text(encoding="utf-8"))
        put("ablation", ablation_table(ablation))
    if a.as_printed is not None:
        printed = json.loads((a.as_printed / "redkitchen" / "results.json").read_text(encoding="utf-8"))
        put("table as printed", main_table(printed))


if __name__ == "__main__":
    main()
