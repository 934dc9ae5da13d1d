"""Table 1: train every row, score it, put the paper's figure beside it.

A row that is done is kept; one that was interrupted goes on. The results hold every row that the folder holds.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spen.storage import write_whole
from spen.tasks.denoising.recipes import (
    ABLATION,
    RECIPES,
    Classical,
    Recipe,
    System,
    expand_rows,
    find_recipe,
    find_regime,
)
from spen.tasks.options import accelerator_of
from spen.tasks.task import Reproduced, ReproduceOrder

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
DETERMINISTIC = ("bm3d", "tv")
NONE = "none"

Option = tuple[str, Any]  # "key" or "row:key", and its value


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
    options: tuple[Option, ...] = ()
    cache: str | None = None
    split: str = "test"

    @property
    def folder(self) -> Path:
        return Path(self.out) / self.data / self.recipe.replace(":", ",").replace("/", "-") / f"seed-{self.seed}"

    def planned(self) -> Recipe:
        """The recipe with everything that was asked for."""
        recipe = plan(find_recipe(self.recipe, self.data), quick=self.quick)
        return recipe.with_options(**dict(self.options))


def reproduce(order: ReproduceOrder, data: str) -> Reproduced:
    """All rows that were asked for, the table as text, and the report."""
    from spen.tasks.denoising.report import write_report

    def tell(result: dict[str, Any]) -> None:
        text = f"{result['psnr']:.2f} dB" if "psnr" in result else result.get("problem", "unfinished")
        order.tell(f"  {result['recipe']} (seed {result['seed']}): {text}")

    whole = table1(
        data,
        order.out,
        rows=order.rows or None,
        seeds=order.seeds,
        quick=order.quick,
        jobs=order.jobs,
        accelerator=accelerator_of(order.device),
        seconds=order.seconds,
        options=tuple(order.settings.items()),
        merge=order.merge,
        split="dev" if order.dev_only else "test",
        tell=tell,
    )
    noisy = whole["raw"]
    first = f"{'noisy':32s} {noisy['psnr']:7.2f} {'':6s} {noisy['surface_psnr']:8.2f} {noisy['hole_rmse_mm']:4.0f} mm"
    lines = (HEAD, first, *map(line_of, whole["table"]))
    finished = not any(result.get("unfinished") for result in whole["results"])
    return Reproduced(whole, lines, Path(write_report(whole, order.out)), finished)


def run_job(job: Job) -> dict[str, Any]:
    """Train (or go on training) and score. What fails is told, so that the other rows still come.

    A finished run is answered from its folder, if it is the run that is asked for.
    """
    import torch

    from spen.models import find_model
    from spen.tasks.denoising.opened import Denoiser
    from spen.tasks.denoising.train import describe_run, evaluate, open_splits, train
    from spen.training import Run

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True  # crops have one size, so the search for the best kernel pays
    regime, recipe = find_regime(job.data), job.planned()
    common = _common(job.recipe, job.data, job.seed, job.folder)
    scores = job.folder / f"{job.split}.json"
    try:
        if scores.exists():
            Run.begin(job.folder, describe_run(recipe, regime, quick=job.quick), job.seed)
            return {**common, **json.loads(scores.read_text())}
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
            cache=job.cache,
        )
        if run is None:
            return {**common, "unfinished": True}
        device = "cuda" if job.accelerator != "cpu" and torch.cuda.is_available() else "cpu"
        opened = Denoiser.open(find_model(job.folder), device)
        frames = getattr(open_splits(regime, quick=job.quick, cache=job.cache), job.split)
        result: dict[str, Any] = evaluate(opened.denoise, frames)
        if opened.model is not None:
            result["parameters"] = sum(p.numel() for p in opened.model.parameters())
        result["train_seconds"] = round(sum(_seconds_of_stages(run.metrics()).values()), 1)
        result["batches"] = _batches(recipe, run.metrics())
        result["wall_seconds"] = round(time.monotonic() - began, 1)
        write_whole(scores, json.dumps(result))
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
    options: tuple[Option, ...] = (),
    merge: tuple[Path | str, ...] = (),
    split: str = "test",
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train and score rows × seeds; write DATA/results.json and return it. Finished rows are not trained again.

    The results hold what the folder held before as well, and what the folders of ``merge`` hold of this data set. With
    ``rows=("none",)`` nothing is trained. An option is ``(key, value)`` for every row that has it, or
    ``("row:key", value)`` for one.
    """
    names = expand_rows(rows or (QUICK_ROWS if quick else ()))
    names = tuple(name for name in names if name != NONE)
    find_regime(data)
    chosen = options_by_row(names, data, options)  # a mistake is told before anything is made
    for source in merge:
        join(source, out, data)
    cache = _prepared(data, quick, out, jobs) if jobs > 1 and names else None
    # All rows with the first seed, then with the next: what the first had to compile is there for the others.
    todo = [
        Job(name, data, seed, str(out), quick, accelerator, seconds, chosen[name], cache, split)
        for seed in seeds
        for name in names
        if seed == seeds[0] or name not in DETERMINISTIC
    ]
    results = []
    for result in _run_all(todo, jobs):
        results.append(result)
        if tell is not None:
            tell(result)
    if cache is not None:
        shutil.rmtree(cache, ignore_errors=True)
    done = {(r["recipe"], r["seed"]) for r in results}
    results += [r for r in found(out, data, quick, split) if (r["recipe"], r["seed"]) not in done]
    results.sort(key=lambda r: (_place(r["recipe"]), r["recipe"], r["seed"]))
    if quick and data == "rooms":
        results.append(shipped(split))
    ordered = tuple(dict.fromkeys(r["recipe"] for r in results))
    whole = {"data": data, "quick": quick, "results": results, "table": summary(results, ordered)}
    whole["raw"] = raw(data, quick, split)
    place = Path(out) / data / "results.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, json.dumps(whole, indent=1))
    return whole


def options_by_row(names: tuple[str, ...], data: str, options: tuple[Option, ...]) -> dict[str, tuple[Option, ...]]:
    """Which options each row takes; one that no row takes is a mistake. A classical method chooses its own number."""
    chosen: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in sorted(options, key=lambda option: ":" in option[0]):  # what is said of one row stands
        row, _, short = key.rpartition(":")
        takers = []
        for name in names:
            recipe = find_recipe(name, data)
            if row in ("", name) and not isinstance(recipe.method, Classical) and short in recipe.option_names():
                takers.append(name)
        if not takers:
            raise ValueError(f"no row among {', '.join(names)} takes the option {key!r}")
        for name in takers:
            chosen[name][short] = value
    return {name: tuple(mine.items()) for name, mine in chosen.items()}


def found(out: Path | str, data: str, quick: bool, split: str = "test") -> list[dict[str, Any]]:
    """Every finished run of a data set in a folder."""
    results = []
    for path in sorted((Path(out) / data).glob(f"*/seed-*/{split}.json")):
        description = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
        if description["recipe"]["quick"] == quick:
            common = _common(description["recipe"]["name"], data, description["seed"], path.parent)
            results.append({**common, **json.loads(path.read_text(encoding="utf-8"))})
    return results


def join(source: Path | str, out: Path | str, data: str) -> list[Path]:
    """Copy the finished runs of a data set from one folder into another; what is there stays."""
    if not Path(source).is_dir():
        raise ValueError(f"{source} is no folder to join")
    copied = []
    for path in sorted((Path(source) / data).glob("*/seed-*/test.json")):
        target = Path(out) / path.parent.relative_to(source)
        if not (target / "test.json").exists():
            shutil.copytree(path.parent, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("state"))
            copied.append(target)
    return copied


def shipped(split: str = "test") -> dict[str, Any]:
    """The model that comes with the package, trained longer on the same rooms, on the quick test frames."""
    from spen.models import find_model
    from spen.tasks.denoising.opened import Denoiser
    from spen.tasks.denoising.train import evaluate, open_splits

    frames = getattr(open_splits(find_regime("rooms"), quick=True), split)
    result = evaluate(Denoiser.open(find_model(SHIPPED)).denoise, frames)
    paper = find_recipe(SHIPPED).paper
    return {"recipe": SHIPPED_ROW, "data": "rooms", "seed": 0, "paper": paper, "model": SHIPPED, **result}


def raw(data: str, quick: bool, split: str = "test") -> dict[str, float]:
    """The scores of the noisy image itself, holes filled."""
    from spen.tasks.denoising.holes import fill_pyramid
    from spen.tasks.denoising.train import evaluate, open_splits

    frames = getattr(open_splits(find_regime(data), quick=quick), split)
    return evaluate(lambda x: fill_pyramid(x.image, x.seen), frames)


def summary(results: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """One line a row: mean and spread over the seeds that finished."""
    table = []
    for name in names:
        mine = [r for r in results if r["recipe"] == name]
        done = [r for r in mine if "psnr" in r]
        line: dict[str, Any] = {"recipe": name, "paper": mine[0]["paper"] if mine else None, "seeds": len(done)}
        for key in (
            "psnr",
            "surface_psnr",
            "hole_rmse_mm",
            "clamped_psnr",
            "seconds_per_frame",
            "train_seconds",
            "batches",
        ):
            values = [r[key] for r in done if r.get(key) is not None]
            line[key] = statistics.fmean(values) if values else None
        for key, spread in (("psnr", "spread"), ("surface_psnr", "surface_spread")):
            line[spread] = statistics.stdev([r[key] for r in done]) if len(done) > 1 else None
        line["problem"] = next((r["problem"] for r in mine if "problem" in r), None)
        table.append(line)
    return table


def line_of(line: dict[str, Any]) -> str:
    """A row of the table as text: mean ± spread, the paper's figure beside it."""
    if line["psnr"] is None:
        return f"{line['recipe']:32s} {line['problem'] or 'unfinished'}"
    spread = "      " if line["spread"] is None else f"±{line['spread']:5.2f}"
    hole = "" if line["hole_rmse_mm"] is None or line["hole_rmse_mm"] != line["hole_rmse_mm"] else line["hole_rmse_mm"]
    holes = f"{hole:4.0f} mm" if hole != "" else "       "
    paper = "" if line["paper"] is None else f"{line['paper']:.2f}"
    return (
        f"{line['recipe']:32s} {line['psnr']:7.2f} {spread} {line['surface_psnr']:8.2f} {holes} {paper:>7s} "
        f"{line['seeds']:3d} {line['train_seconds'] or 0:8.0f}"
    )


HEAD = f"{'':32s} {'PSNR':>7s} {'±':>6s} {'surface':>8s} {'holes':>7s} {'paper':>7s} {'n':>3s} {'train, s':>8s}"


def _common(recipe: str, data: str, seed: int, folder: Path) -> dict[str, Any]:
    paper = find_recipe(recipe, data).paper
    return {"recipe": recipe, "data": data, "seed": seed, "paper": paper, "folder": str(folder)}


def _place(name: str) -> int:
    order = list(dict.fromkeys([*RECIPES, *ABLATION]))
    return order.index(name) if name in order else len(order)


def _seconds_of_stages(metrics: list[dict[str, Any]]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for entry in metrics:
        spent[entry["stage"]] = max(spent.get(entry["stage"], 0.0), entry.get("seconds", 0.0))
    return spent


def _batches(recipe: Recipe, metrics: list[dict[str, Any]]) -> int | None:
    if isinstance(recipe.method, Classical):
        return None
    return len(metrics) * recipe.schedule.epoch_batches


def _prepared(data: str, quick: bool, out: Path | str, jobs: int) -> str | None:
    """Frames that take long to make are made once, on every core, for all rows."""
    from spen.tasks.denoising.frame_cache import keep
    from spen.tasks.denoising.train import SPLIT_NAMES, kept_path, open_splits

    if not find_regime(data).many:
        return None
    cache = Path(out) / f"frames-{data}"
    splits = open_splits(find_regime(data), quick=quick)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for name in SPLIT_NAMES:
            frames = getattr(splits, name)
            todo = [(data, quick, name, index) for index in range(len(frames))]
            keep(frames, kept_path(cache, name, quick), pool.imap(_made, todo, chunksize=8))
    return str(cache)


def _made(which: tuple[str, bool, str, int]) -> Any:
    from spen.tasks.denoising.data import Frame
    from spen.tasks.denoising.train import open_splits

    data, quick, name, index = which
    frame = getattr(open_splits(find_regime(data), quick=quick), name).frame(index)
    return Frame(*(part.clone() for part in frame))


def _run_all(todo: list[Job], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs <= 1:
        yield from map(run_job, todo)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(run_job, todo)
