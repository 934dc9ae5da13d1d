"""Table 1: train every row, score it on the test split, put the paper's figure beside it.

``python -m spen.tasks.denoising.reproduce --help`` is the same as ``spen reproduce table1`` without its terminal
dress, and runs several rows side by side on one card.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spen.tasks.denoising.recipes import RECIPES, Classical, Recipe, System, find_recipe, find_regime

QUICK_ROWS = ("tv", "foe-3", "dp-3")
QUICK_OPTIONS = {
    "batches": 1040,
    "batch_size": 4,
    "per_epoch": 80,
    "warmup": 30,
    "crop": (48, 64),
    "width": 16,
    "gradient": "exact",  # the fast one on a CPU
}
SHIPPED = "dp-3"
SHIPPED_ROW = "dp-3, shipped"


@dataclass(frozen=True)
class Job:
    """One row with one seed."""

    recipe: str
    data: str
    seed: int
    out: str
    quick: bool
    accelerator: str
    seconds: float | None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def folder(self) -> Path:
        return Path(self.out) / self.data / self.recipe / f"seed-{self.seed}"


def run_job(job: Job) -> dict[str, Any]:
    """Train (or go on training) and score. What fails is told, so that the other rows still come."""
    import torch

    from spen.tasks.denoising.experiment import evaluate, load_run, open_splits, train

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True  # crops have one size, so the search for the best kernel pays
    regime = find_regime(job.data)
    recipe = plan(find_recipe(job.recipe), quick=job.quick)
    if not isinstance(recipe.method, Classical):  # a classical method chooses its one number itself
        recipe = recipe.with_options(**dict(job.options))
    common = {
        "recipe": job.recipe,
        "data": job.data,
        "seed": job.seed,
        "paper": recipe.paper,
        "folder": str(job.folder),
    }
    scores = job.folder / "test.json"
    if scores.exists():
        return {**common, **json.loads(scores.read_text())}
    try:
        began = time.monotonic()
        run = train(
            recipe,
            regime,
            job.folder,
            seed=job.seed,
            quick=job.quick,
            accelerator=job.accelerator,
            progress=False,
            seconds=job.seconds,
        )
        if run is None:
            return {**common, "unfinished": True}
        device = "cuda" if job.accelerator != "cpu" and torch.cuda.is_available() else "cpu"
        denoise, _ = load_run(job.folder, device)
        result = evaluate(denoise, open_splits(regime, quick=job.quick).test)
        result["train_seconds"] = round(max((e.get("seconds", 0) for e in run.metrics()), default=0), 1)
        result["wall_seconds"] = round(time.monotonic() - began, 1)
        scores.write_text(json.dumps(result))
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        return {**common, "problem": str(error)}
    return {**common, **result}


def plan(recipe: Recipe, *, quick: bool) -> Recipe:
    """The recipe, or a small version of it that shows the same thing in a minute."""
    if not quick or not isinstance(recipe.method, System):
        return recipe
    return recipe.with_options(**QUICK_OPTIONS)


def table1(
    data: str,
    out: Path | str,
    *,
    rows: tuple[str, ...] | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    quick: bool = False,
    accelerator: str = "auto",
    jobs: int = 1,
    seconds: float | None = None,
    options: tuple[tuple[str, Any], ...] = (),
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train and score rows × seeds; write results.json and return it. Finished rows are not trained again."""
    names = rows or (QUICK_ROWS if quick else tuple(RECIPES))
    find_regime(data)
    deterministic = {"bm3d", "tv"}
    todo = [
        Job(find_recipe(name).name, data, seed, str(out), quick, accelerator, seconds, options)
        for name in names
        for seed in (seeds[:1] if name in deterministic else seeds)
    ]
    results = []
    for result in _run_all(todo, jobs):
        results.append(result)
        if tell is not None:
            tell(result)
    if quick and data == "rooms":
        results.append(shipped())
        names = (*names, SHIPPED_ROW)
    whole = {"data": data, "quick": quick, "results": results, "table": summary(results, names)}
    whole["raw"] = raw(data, quick)
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / f"results-{data}.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
    return whole


def shipped() -> dict[str, Any]:
    """The model that comes with the package, trained longer on the same rooms, on the quick test frames."""
    from spen.tasks.denoising.experiment import evaluate, open_splits
    from spen.tasks.denoising.predict import load_model

    result = evaluate(load_model(SHIPPED), open_splits(find_regime("rooms"), quick=True).test)
    paper = find_recipe(SHIPPED).paper
    return {"recipe": SHIPPED_ROW, "data": "rooms", "seed": 0, "paper": paper, "model": SHIPPED, **result}


def raw(data: str, quick: bool) -> dict[str, float]:
    """The scores of the noisy image itself, holes filled."""
    from spen.tasks.denoising.baselines.holes import fill_pyramid
    from spen.tasks.denoising.experiment import evaluate, open_splits

    return evaluate(lambda x: fill_pyramid(x.image, x.seen), open_splits(find_regime(data), quick=quick).test)


def summary(results: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """One line a row: mean and spread over the seeds that finished."""
    table = []
    for name in names:
        mine = [r for r in results if r["recipe"] == name]
        done = [r for r in mine if "psnr" in r]
        line: dict[str, Any] = {"recipe": name, "paper": mine[0]["paper"] if mine else None, "seeds": len(done)}
        for key in ("psnr", "surface_psnr", "hole_rmse_mm", "seconds_per_frame", "train_seconds"):
            values = [r[key] for r in done if key in r]
            line[key] = statistics.fmean(values) if values else None
        line["spread"] = statistics.stdev([r["psnr"] for r in done]) if len(done) > 1 else None
        line["problem"] = next((r["problem"] for r in mine if "problem" in r), None)
        table.append(line)
    return table


def _run_all(todo: list[Job], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs <= 1:
        yield from map(run_job, todo)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(run_job, todo)


def main() -> None:
    """The plain command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="rooms")
    parser.add_argument("--out", default="runs/table1")
    parser.add_argument("--rows", default="")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="options")
    a = parser.parse_args()
    whole = table1(
        a.data,
        a.out,
        rows=tuple(a.rows.split(",")) if a.rows else None,
        seeds=tuple(int(s) for s in a.seeds.split(",")),
        quick=a.quick,
        accelerator=a.accelerator,
        jobs=a.jobs,
        seconds=a.seconds,
        options=tuple(tuple(o.split("=", 1)) for o in a.options),  # type: ignore[arg-type]
        tell=lambda r: print(
            r["recipe"], r["seed"], r.get("psnr", r.get("problem", "unfinished")), r.get("train_seconds"), flush=True
        ),
    )
    print(f"{'raw':14s} {whole['raw']['psnr']:7.2f} {whole['raw']['surface_psnr']:7.2f}")
    for line in whole["table"]:
        if line["psnr"] is not None:
            print(
                f"{line['recipe']:14s} {line['psnr']:7.2f} {line['surface_psnr']:7.2f} "
                f"±{line['spread'] or 0:.2f} hole {line['hole_rmse_mm']:.0f} mm, paper {line['paper']}"
            )


if __name__ == "__main__":
    main()
