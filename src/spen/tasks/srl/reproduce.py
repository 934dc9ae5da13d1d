"""Table 2: every row trained, evaluated and written to results.json; resumable at any point.

A row is a recipe trained with a seed on a corpus: `ewt` (columns dev and test) or `ewt` without a genre (column out of
domain). Each is a run folder of its own under OUT/runs, so rows can be trained side by side and in any order; a row
whose base is not trained yet trains it first. `workers` processes share the work: each reads the data once and takes
one job after another. A row may change its recipe: `spen:steps=5:context_dropout=0.3`.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from spen.rules import GradientDescent
from spen.storage import noted, write_json
from spen.tasks.options import accelerator_of, resolve_device
from spen.tasks.srl.corpora import Prepared, Splits, open_corpus, prepare, without_genre
from spen.tasks.srl.decoding import Decoder
from spen.tasks.srl.evaluate import evaluate, follow, throughput
from spen.tasks.srl.formats.conll2005 import write_props
from spen.tasks.srl.formats.folder import find_splits, locate
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.recipes import ABLATIONS, SrlRecipe, find_recipe
from spen.tasks.srl.report import write_report
from spen.tasks.srl.table import pairs_of, summarise, table_text
from spen.tasks.srl.task import changed_row
from spen.tasks.srl.train import train
from spen.tasks.task import Reproduced, ReproduceOrder
from spen.training import Run

__all__ = ["Job", "Settings", "from_order", "reproduce"]

ROWS = ("local", "spen", "convex", "ssvm", "structured", "best-local", "spen-best")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to reproduce, with which data, and where."""

    out: Path
    data: str = "builtin"  # or another data set, or a folder
    rows: tuple[str, ...] = ROWS
    seeds: tuple[int, ...] = (0, 1, 2)
    genre: str | None = None  # the one left out for the out-of-domain column; None: no such column
    device: str = "cpu"
    seconds: float | None = None
    workers: int = 1
    quick: bool = False
    sentences: int | None = None  # train on the first so many only
    dev_only: bool = False  # leave the test data alone, as tuning must
    merge: tuple[Path, ...] = ()  # folders whose finished runs are added


def from_order(order: ReproduceOrder, rows: tuple[str, ...]) -> Reproduced:
    """All rows that were asked for, the table as text, and the report."""
    genre = order.options.get("genre")
    # What is wrong with the data is an error now, not after hours.
    if genre is not None:
        without_genre(open_corpus(order.data, size=60)[1], genre)
    elif (folder := locate(order.data)) is not None:
        find_splits(folder)
    settings = Settings(
        out=order.out,
        data=order.data or "builtin",
        rows=tuple(changed_row(row, order.settings) for row in rows or ROWS if row != "none"),
        seeds=order.seeds,
        genre=genre,
        device=resolve_device(order.device),
        seconds=order.seconds,
        workers=order.jobs,
        quick=order.quick,
        sentences=order.options.get("sentences"),
        dev_only=order.dev_only,
        merge=order.merge,
    )
    finished = reproduce(settings, order.tell) is not None
    whole = json.loads((order.out / "results.json").read_text(encoding="utf-8"))
    return Reproduced(whole, tuple(table_text(whole).splitlines()), order.out / "report.html", finished)


@dataclass(frozen=True)
class Job:
    """One row, one seed, one corpus."""

    row: str
    seed: int
    corpus: str  # "whole", or "without-GENRE"

    def folder(self, out: Path) -> Path:
        return out / "runs" / self.corpus / f"{self.row.replace(':', ',')}-{self.seed}"

    def result(self, out: Path) -> Path:
        return self.folder(out) / "evaluation.json"


def jobs(settings: Settings) -> list[Job]:
    """Every job, bases before those that build on them."""
    corpora = ["whole", *([f"without-{settings.genre}"] if settings.genre else [])]
    wanted: list[Job] = []
    for corpus in corpora:
        for seed in settings.seeds:
            for row in settings.rows:
                chain = [row]
                while (base := find_recipe(chain[-1]).base) is not None:
                    chain.append(base)
                wanted += [Job(name, seed, corpus) for name in reversed(chain)]
    return list(dict.fromkeys(wanted))


class Corpora:
    """Splits read once, prepared once for each set of templates."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._prepared: dict[tuple[str, str], Prepared] = {}

    @cached_property
    def whole(self) -> tuple[str, Splits, Path | None]:
        """The name, the splits and the word vectors of the data."""
        name, splits, vectors = open_corpus(self.settings.data, size=600 if self.settings.quick else 3000)
        return name, {**splits, "train": splits["train"][: self.settings.sentences]}, vectors

    def splits(self, corpus: str) -> Splits:
        splits = self.whole[1]
        return splits if corpus == "whole" else without_genre(splits, corpus.removeprefix("without-"))

    def get(self, corpus: str, templates: str) -> Prepared:
        key = (corpus, templates)
        if key not in self._prepared:
            name, _, vectors = self.whole
            self._prepared[key] = prepare(
                self.splits(corpus),
                name=f"{name}-{corpus}",
                templates=templates,
                vectors=vectors,
                cache=self.settings.out / "cache",
                device=self.settings.device,
            )
        return self._prepared[key]


def recipe_for(job: Job, settings: Settings) -> SrlRecipe:
    recipe = find_recipe(job.row)
    return recipe.quick() if settings.quick else recipe


def run_job(job: Job, settings: Settings, corpora: Corpora, seconds: float | None) -> dict[str, Any] | None:
    """Train and evaluate; None when time ran out."""
    recipe = recipe_for(job, settings)
    data = corpora.get(job.corpus, recipe.templates)
    base = None if recipe.base is None else Job(recipe.base, job.seed, job.corpus).folder(settings.out)
    began = time.monotonic()
    accelerator = accelerator_of(settings.device)
    folder = job.folder(settings.out)
    if not Run(folder).weights_path.is_file():  # else only the test data was left alone
        model = train(recipe, data, folder, seed=job.seed, base=base, accelerator=accelerator, seconds=seconds)
        _add_seconds(folder, time.monotonic() - began)
        if model is None:
            return None
    result = evaluate_job(job, settings, data, _add_seconds(folder, 0.0))
    write_json(job.result(settings.out), result)
    # The optimiser's state is three times the model, and a finished run does not go on.
    shutil.rmtree(folder / "state", ignore_errors=True)
    return result


def evaluate_job(job: Job, settings: Settings, data: Prepared, seconds: float) -> dict[str, Any]:
    """dev and test figures, the course of the descent on dev, and speed."""
    labeller = Labeller.open(job.folder(settings.out), device=settings.device)
    model, plain = labeller.model, labeller.feedforward
    decoders: tuple[Decoder, ...] = ("argmax", "greedy", "ad3")
    result: dict[str, Any] = {"row": job.row, "seed": job.seed, "corpus": job.corpus, "train_seconds": seconds}
    for split in ("dev",) if settings.dev_only else ("dev", "test"):
        figures = evaluate(model, data, split, decoders=decoders, feedforward=plain)
        result[split] = figures.as_dict()
        write_props(job.folder(settings.out) / f"{split}.props.gz", figures.props["ad3"])
    if not plain:
        rule = model.minimizer.rule
        assert isinstance(rule, GradientDescent)
        result["rates"] = rule.rates().tolist()
        result["descent"] = follow(model, data, "dev")
    result["sentences_per_second"] = throughput(model, data, "dev", repeats=2, feedforward=plain)
    result["device"] = torch.cuda.get_device_name() if torch.device(settings.device).type == "cuda" else "cpu"
    return result


def reproduce(settings: Settings, tell: Callable[[str], None] = print) -> dict[str, Any] | None:
    """All jobs, here or in `workers` processes; then the results. None when time ran out first."""
    settings.out.mkdir(parents=True, exist_ok=True)
    _check_folder(settings)
    for source in settings.merge:
        _join(source, settings.out)
    deadline = None if settings.seconds is None else time.time() + settings.seconds
    corpora = Corpora(settings)
    pending = [job for job in jobs(settings) if not _is_done(job, settings)]
    if settings.workers > 1 and len(pending) > 1:
        finished = _side_by_side(settings, pending, corpora, deadline, tell)
    else:
        finished = _one_by_one(settings, pending, corpora, deadline, tell)
    summary = summarise(_all_results(settings.out), _describe(settings))
    splits, runs = corpora.splits("whole"), settings.out / "runs" / "whole"
    split = "dev" if settings.dev_only else "test"
    names = [name for name in dict.fromkeys(row["row"] for row in summary["rows"]) if name not in ABLATIONS]
    summary["pairs"] = pairs_of(runs, names, splits[split], split)
    write_json(settings.out / "results.json", summary)
    write_report(summary, splits["dev"], runs, settings.out / "report.html")
    return summary if finished else None


def _join(source: Path, out: Path) -> None:
    """Copy the finished runs of another folder; what is there already stays."""
    if not source.is_dir():
        raise ValueError(f"{source} is no folder to merge")
    for path in sorted(source.glob("runs/*/*/evaluation.json")):
        target = out / path.parent.relative_to(source)
        if not (target / path.name).exists():
            shutil.copytree(path.parent, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("state"))


def _check_folder(settings: Settings) -> None:
    """Refuse a folder whose results come from other data: they would stand in this table."""
    asked = {"data": settings.data, "quick": settings.quick, "sentences": settings.sentences}
    known, asked = noted(settings.out / "asked.json", asked)
    if known != asked:
        raise ValueError(f"{settings.out} holds results of other data or another size; give another folder")


def _is_done(job: Job, settings: Settings) -> bool:
    path = job.result(settings.out)
    return path.exists() and (settings.dev_only or "test" in json.loads(path.read_text(encoding="utf-8")))


def _one_by_one(
    settings: Settings, pending: list[Job], corpora: Corpora, deadline: float | None, tell: Callable[[str], None]
) -> bool:
    finished = True
    for job in pending:
        left = None if deadline is None else deadline - time.time()
        if left is not None and left <= 0:
            return False
        result = run_job(job, settings, corpora, left) if _base_ready(job, settings) else None
        if result is None:
            finished = False
        else:
            tell(_line(job, result))
    return finished


def _all_results(out: Path) -> list[dict[str, Any]]:
    """Every evaluation in the folder, of this call or an earlier one, in the order of the recipes."""
    results = [json.loads(path.read_text()) for path in out.glob("runs/*/*/evaluation.json")]
    order = {name: k for k, name in enumerate([*ROWS, *ABLATIONS])}
    return sorted(results, key=lambda r: (order.get(r["row"], len(order)), r["row"], r["corpus"] != "whole", r["seed"]))


def _base_ready(job: Job, settings: Settings) -> bool:
    base = find_recipe(job.row).base
    return base is None or Job(base, job.seed, job.corpus).result(settings.out).exists()


def _side_by_side(
    settings: Settings, pending: list[Job], corpora: Corpora, deadline: float | None, tell: Callable[[str], None]
) -> bool:
    """`workers` processes, each with its own copy of the data; bases first, then the longest."""
    for corpus, templates in dict.fromkeys((job.corpus, find_recipe(job.row).templates) for job in pending):
        corpora.get(corpus, templates)  # into the cache, which the processes share
    waiting = sorted(pending, key=lambda job: _rank(job, pending))
    running: dict[Future[Any], Job] = {}
    failed: list[tuple[Job, BaseException]] = []
    threads = max(1, min(2, (os.cpu_count() or 1) // settings.workers))
    context = get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(settings.workers, context, torch.set_num_threads, (threads,)) as pool:
        while not any(isinstance(error, BrokenProcessPool) for _, error in failed):
            if deadline is None or deadline - time.time() > LAST_START:
                startable = [job for job in waiting if _base_ready(job, settings)]
                for job in startable[: settings.workers - len(running)]:
                    waiting.remove(job)
                    running[pool.submit(_work, job, settings, deadline)] = job
            if not running:
                break  # done, out of time, or every job left waits for a base that failed
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                if error := future.exception():
                    failed.append((job, error))
                elif future.result() is not None:
                    tell(_line(job, future.result()))
    for job, error in failed:
        tell(f"{job.corpus} {job.row} seed {job.seed} failed: {type(error).__name__}: {error}")
    return not failed and all(_is_done(job, settings) for job in pending)


LAST_START = 20.0
"""Seconds before the end after which no job is begun."""


def _rank(job: Job, pending: Sequence[Job]) -> tuple[bool, int, int]:
    """Bases before what is built on them; then the systems that take longest, so that none is left alone at the end."""
    recipe = find_recipe(job.row)
    is_base = any(find_recipe(other.row).base == job.row for other in pending)
    descends = recipe.objective in ("end_to_end", "ssvm")
    return not is_base, -(2 * (recipe.encoder == "contextual") + descends), pending.index(job)


@cache
def _data(settings: Settings) -> Corpora:
    """A worker's data, read once a process."""
    return Corpora(settings)


def _work(job: Job, settings: Settings, deadline: float | None) -> dict[str, Any] | None:
    # Evaluation needs some seconds after the last epoch.
    left = None if deadline is None else max(1.0, deadline - time.time() - LAST_START / 2)
    try:
        return run_job(job, settings, _data(settings), left)
    finally:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the other processes want it


def _describe(settings: Settings) -> dict[str, Any]:
    left_out = [path.name.removeprefix("without-") for path in settings.out.glob("runs/without-*")]
    return {
        "data": settings.data,
        "genre": ", ".join(left_out),
        "quick": settings.quick,
    }


def _add_seconds(folder: Path, more: float) -> float:
    path = folder / "seconds.json"
    before = json.loads(path.read_text()) if path.exists() else 0.0
    path.write_text(json.dumps(before + more))
    return before + more


def _line(job: Job, result: dict[str, Any]) -> str:
    splits = [split for split in ("dev", "test") if split in result]
    parts = [f"{split} {d} {result[split]['f1'][d]:.2f}" for split in splits for d in ("greedy", "ad3")]
    parts += [f"{result['dev']['violations']} violations", f"trained in {result['train_seconds']:.0f} s"]
    parts += [f"{result['sentences_per_second']:.0f} sentences a second"]
    return f"{job.corpus} {job.row} seed {job.seed}: {', '.join(parts)}"
