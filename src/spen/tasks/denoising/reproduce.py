"""Table 1: train every row, score it, put the paper's figure beside it.

Finished rows are not trained again, interrupted rows resume, and the results hold every finished row of the folder:
OUT/DATA/results.json, OUT/DATA/report.html and a run folder OUT/DATA/RECIPE/seed-N for each row and seed.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from spen.models import open_model
from spen.storage import write_json, write_whole
from spen.tasks.denoising.datasets import open_splits
from spen.tasks.denoising.holes import fill_pyramid
from spen.tasks.denoising.methods import Classical, Recipe, System
from spen.tasks.denoising.recipes import ABLATION, RECIPES, expand_rows, find_recipe
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.report import write_report
from spen.tasks.denoising.train import describe_run, evaluate, train
from spen.tasks.options import resolve_device
from spen.tasks.tables import merge_runs, run_folder
from spen.tasks.task import Reproduced, ReproduceOrder
from spen.training import Run

QUICK_ROWS = ("tv", "foe-3", "dp-3")
QUICK_OPTIONS = {
    "batches": 1040,
    "batch_size": 4,
    "per_epoch": 80,
    "warmup": 30,
    "crop": (48, 64),
    "width": 16,
    "gradient": "exact",  # the fastest one on a CPU
}
SHIPPED = "dp-3"
DETERMINISTIC = ("bm3d", "tv")
MEANS = ("psnr", "surface_psnr", "hole_rmse_mm", "clamped_psnr", "seconds_per_frame", "train_seconds", "batches")


@dataclass(frozen=True)
class Job:
    """One row with one seed."""

    recipe: str
    seed: int
    order: ReproduceOrder
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return run_folder(results_folder(self.order), self.recipe, self.seed)

    def planned(self) -> Recipe:
        """The recipe with all options; with ``quick`` a small version that shows the same in minutes."""
        recipe = find_recipe(self.recipe, self.order.data)
        if self.order.quick and isinstance(recipe.method, System):
            recipe = recipe.with_options(**QUICK_OPTIONS)
        return recipe.with_options(**self.options)


def reproduce(order: ReproduceOrder) -> Reproduced:
    """Train and score rows × seeds; write and return the results, the table as text, and the report.

    The results also hold what the folder held before, and what the folders of ``order.merge`` hold of this data set.
    With ``rows=("none",)`` nothing is trained. A setting is ``key`` for every row that has this option, or ``row:key``.
    """
    order = replace(order, data=order.data or "rooms")
    out = results_folder(order)
    names = tuple(name for name in expand_rows(order.rows or (QUICK_ROWS if order.quick else ())) if name != "none")
    chosen = options_by_row(names, order.data, order.settings)  # mistakes are raised before anything is trained
    for source in order.merge:
        merge_runs(Path(source), order.out, out.name, "test.json")
    # All rows with the first seed, then with the next: what the first had to compile is cached for the others.
    jobs = [
        Job(name, seed, replace(order, log=print), chosen[name])
        for seed in order.seeds
        for name in names
        if seed == order.seeds[0] or name not in DETERMINISTIC
    ]
    results = []
    for result in _run_all(jobs, order.jobs):
        results.append(result)
        text = f"{result['psnr']:.2f} dB" if "psnr" in result else result.get("problem", "unfinished")
        order.log(f"  {result['recipe']} (seed {result['seed']}): {text}")
    done = {(r["recipe"], r["seed"]) for r in results}
    results += [r for r in finished(order) if (r["recipe"], r["seed"]) not in done]
    results.sort(key=lambda r: (_place(r["recipe"]), r["recipe"], r["seed"]))
    noisy, shipped = _references(order)
    results += shipped
    whole: dict[str, Any] = {
        "data": order.data,
        "quick": order.quick,
        "results": results,
        "table": summary(results),
        "raw": noisy,
    }
    write_json(out / "results.json", whole)
    first = f"{'noisy':32s} {noisy['psnr']:7.2f} {'':6s} {noisy['surface_psnr']:8.2f} {noisy['hole_rmse_mm']:4.0f} mm"
    lines = (HEAD, first, *map(line_of, whole["table"]))
    return Reproduced(whole, lines, write_report(whole, out), not any(r.get("unfinished") for r in results))


def run_job(job: Job) -> dict[str, Any]:
    """Train (or resume training) and score. An error is returned as text, so that the other rows still come.

    A finished run with the same settings is not run again: its scores are read from its folder.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True  # crops have one size, so the search for the best kernel pays
    order, recipe, regime = job.order, job.planned(), find_regime(job.order.data)
    common = _common(job.recipe, order.data, job.seed, job.folder)
    scores = job.folder / f"{_split(order)}.json"
    try:
        if scores.exists():
            Run.begin(job.folder, describe_run(recipe, regime, quick=order.quick), job.seed)
            return {**common, **json.loads(scores.read_text())}
        began = time.monotonic()
        splits = open_splits(regime, quick=order.quick)
        run = train(
            recipe,
            regime,
            job.folder,
            seed=job.seed,
            quick=order.quick,
            splits=splits,
            accelerator=order.device,
            progress=False,
            seconds=order.seconds,
        )
        if run is None:
            return {**common, "unfinished": True}
        opened: Any = open_model(job.folder, resolve_device(order.device))
        result: dict[str, Any] = evaluate(opened.denoise, getattr(splits, _split(order)))
        if opened.model is not None:
            result["parameters"] = sum(p.numel() for p in opened.model.parameters())
        metrics = run.metrics()
        spent = {entry["stage"]: entry.get("seconds", 0.0) for entry in metrics}  # a stage counts from its own start
        result["train_seconds"] = round(sum(spent.values()), 1)
        trained = not isinstance(recipe.method, Classical)
        result["batches"] = len(metrics) * recipe.schedule.epoch_batches if trained else None
        result["wall_seconds"] = round(time.monotonic() - began, 1)
        write_whole(scores, json.dumps(result))
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        return {**common, "problem": str(error)}
    return {**common, **result}


def options_by_row(names: tuple[str, ...], data: str, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Which options each row takes; one that no row takes is an error. A classical method takes none."""
    known = {}
    for name in names:
        recipe = find_recipe(name, data)
        known[name] = set() if isinstance(recipe.method, Classical) else recipe.option_names()
    chosen: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in sorted(settings.items(), key=lambda option: ":" in option[0]):  # row:key overrides key
        row, _, short = key.rpartition(":")
        takers = [name for name in names if row in ("", name) and short in known[name]]
        if not takers:
            raise ValueError(f"no row among {', '.join(names)} takes the option {key!r}")
        for name in takers:
            chosen[name][short] = value
    return chosen


def finished(order: ReproduceOrder) -> list[dict[str, Any]]:
    """The results of every finished run of a data set in a folder."""
    results = []
    for path in sorted(results_folder(order).glob(f"*/seed-*/{_split(order)}.json")):
        run = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
        if run["recipe"]["quick"] == order.quick:
            common = _common(run["recipe"]["name"], order.data, run["seed"], path.parent)
            results.append({**common, **json.loads(path.read_text(encoding="utf-8"))})
    return results


def _references(order: ReproduceOrder) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The scores of the noisy images with filled holes; in a quick table of rooms the row of the shipped model, too.

    The shipped model was trained longer on the same rooms.
    """
    frames = getattr(open_splits(find_regime(order.data), quick=order.quick), _split(order))
    noisy = evaluate(lambda x: fill_pyramid(x.image, x.seen), frames)
    if not order.quick or order.data != "rooms":
        return noisy, []
    model: Any = open_model(SHIPPED)
    row = {"recipe": f"{SHIPPED}, shipped", "data": "rooms", "seed": 0, "paper": find_recipe(SHIPPED).paper}
    return noisy, [{**row, "model": SHIPPED, **evaluate(model.denoise, frames)}]


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per row: mean and standard deviation over the seeds that finished."""
    table = []
    for name in dict.fromkeys(r["recipe"] for r in results):
        mine = [r for r in results if r["recipe"] == name]
        done = [r for r in mine if "psnr" in r]
        line: dict[str, Any] = {"recipe": name, "paper": mine[0]["paper"], "seeds": len(done)}
        for key in MEANS:
            values = [r[key] for r in done if r.get(key) is not None]
            line[key] = statistics.fmean(values) if values else None
        for key, spread in (("psnr", "spread"), ("surface_psnr", "surface_spread")):
            line[spread] = statistics.stdev([r[key] for r in done]) if len(done) > 1 else None
        line["problem"] = next((r["problem"] for r in mine if "problem" in r), None)
        table.append(line)
    return table


def line_of(line: dict[str, Any]) -> str:
    """A row of the table as text: mean ± standard deviation, the paper's figure beside it."""
    if line["psnr"] is None:
        return f"{line['recipe']:32s} {line['problem'] or 'unfinished'}"
    spread = "      " if line["spread"] is None else f"±{line['spread']:5.2f}"
    hole = line["hole_rmse_mm"]
    holes = "       " if hole is None or math.isnan(hole) else f"{hole:4.0f} mm"
    paper = "" if line["paper"] is None else f"{line['paper']:.2f}"
    return (
        f"{line['recipe']:32s} {line['psnr']:7.2f} {spread} {line['surface_psnr']:8.2f} {holes} {paper:>7s} "
        f"{line['seeds']:3d} {line['train_seconds'] or 0:8.0f}"
    )


HEAD = f"{'':32s} {'PSNR':>7s} {'±':>6s} {'surface':>8s} {'holes':>7s} {'paper':>7s} {'n':>3s} {'train, s':>8s}"


def results_folder(order: ReproduceOrder) -> Path:
    """OUT/DATA; a wrong data set is an error."""
    return order.out / find_regime(order.data).name


def _split(order: ReproduceOrder) -> str:
    return "dev" if order.dev_only else "test"


def _common(recipe: str, data: str, seed: int, folder: Path) -> dict[str, Any]:
    paper = find_recipe(recipe, data).paper
    return {"recipe": recipe, "data": data, "seed": seed, "paper": paper, "folder": str(folder)}


def _place(name: str) -> int:
    order = list(dict.fromkeys([*RECIPES, *ABLATION]))
    return order.index(name) if name in order else len(order)


def _run_all(todo: list[Job], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs <= 1:
        yield from map(run_job, todo)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(run_job, todo)
