"""Table 2: every row trained, evaluated and written to OUT/DATA/results.json; resumable at any point.

A row is a recipe, which may have changed options (`spen:steps=5:hidden=100`). It is trained for every seed on
the whole data set (columns dev and test) and, with a genre to leave out, on the data set without it (column out of
domain). Each run has a folder of its own, OUT/DATA/ROW/seed-N or OUT/DATA/without-GENRE/ROW/seed-N, so that rows can be
trained in parallel and in any order; the base of a row is trained first.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from spen.rules import GradientDescent
from spen.storage import noted, write_json
from spen.tasks.options import resolve_device
from spen.tasks.srl.corpora import Prepared, Splits, open_corpus, prepare, without_genre
from spen.tasks.srl.evaluate import evaluate, follow, throughput
from spen.tasks.srl.formats.conll2005 import write_props
from spen.tasks.srl.formats.folder import find_splits, locate
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.recipes import ABLATIONS, RECIPES, find_recipe
from spen.tasks.srl.report import write_report
from spen.tasks.srl.table import pairs_of, rows_of, table_text
from spen.tasks.srl.train import train
from spen.tasks.tables import merge_runs, run_folder
from spen.tasks.task import Reproduced, ReproduceOrder
from spen.training import Run

WHOLE = "whole"
RESULT = "evaluation.json"
LAST_START = 20.0
"""Seconds before the end after which no job is started in parallel."""


@dataclass(frozen=True)
class Job:
    """One row, one seed, one corpus: "whole", or "without-GENRE"."""

    row: str
    seed: int
    corpus: str = WHOLE

    @property
    def base(self) -> Job | None:
        """The job whose F(x) this one starts from."""
        base = find_recipe(self.row).base
        return None if base is None else replace(self, row=base)


class Table:
    """The jobs of an order, their folders and their data, which is read once per process."""

    def __init__(self, order: ReproduceOrder) -> None:
        self.order, self.device = order, resolve_device(order.device)
        self.folder = order.out / (Path(order.data).name or "builtin")
        self._prepared: dict[tuple[str, str], Prepared] = {}

    def jobs(self) -> list[Job]:
        """Every job, bases before the jobs that start from them."""
        genre = self.order.options.get("genre")
        wanted: list[Job] = []
        for corpus in (WHOLE, f"without-{genre}") if genre else (WHOLE,):
            for seed in self.order.seeds:
                for row in self.order.rows:
                    chain = [Job(row, seed, corpus)]
                    while (base := chain[-1].base) is not None:
                        chain.append(base)
                    wanted += reversed(chain)
        return list(dict.fromkeys(wanted))

    def run(self, job: Job) -> Path:
        """The run folder of a job."""
        return run_folder(self.folder if job.corpus == WHOLE else self.folder / job.corpus, job.row, job.seed)

    def is_done(self, job: Job) -> bool:
        path = self.run(job) / RESULT
        return path.exists() and (self.order.dev_only or "test" in json.loads(path.read_text(encoding="utf-8")))

    def is_ready(self, job: Job) -> bool:
        """Whether the base of the job has been trained."""
        return job.base is None or (self.run(job.base) / RESULT).exists()

    @cached_property
    def whole(self) -> tuple[str, Splits, Path | None]:
        """The name, the splits and the word vectors of the data."""
        name, splits, vectors = open_corpus(self.order.data, size=600 if self.order.quick else 3000)
        return name, {**splits, "train": splits["train"][: self.order.options.get("sentences")]}, vectors

    def prepared(self, job: Job) -> Prepared:
        """The data of a job, in memory for the next one."""
        key = job.corpus, find_recipe(job.row).templates
        if key not in self._prepared:
            name, splits, vectors = self.whole
            self._prepared[key] = prepare(
                splits if job.corpus == WHOLE else without_genre(splits, job.corpus.removeprefix("without-")),
                name=f"{name}-{job.corpus}",
                templates=key[1],
                vectors=vectors,
                cache=self.folder / "cache",
                device=self.device,
            )
        return self._prepared[key]

    def train(self, job: Job, seconds: float | None) -> dict[str, Any] | None:
        """Train and evaluate; None when the time ran out."""
        recipe, data, folder = find_recipe(job.row), self.prepared(job), self.run(job)
        if not Run(folder).weights_path.is_file():  # a trained run may lack its scores on test
            began = time.monotonic()
            model = train(
                recipe.quick() if self.order.quick else recipe,
                data,
                folder,
                seed=job.seed,
                base=None if job.base is None else self.run(job.base),
                accelerator=self.device,
                seconds=seconds,
            )
            _add_seconds(folder, time.monotonic() - began)
            if model is None:
                return None
        result = self.evaluate(job, data)
        write_json(folder / RESULT, result)
        # The optimiser's state is three times the size of the model, and a finished run is not resumed.
        shutil.rmtree(folder / "state", ignore_errors=True)
        return result

    def evaluate(self, job: Job, data: Prepared) -> dict[str, Any]:
        """Scores on dev and test, energy and F1 by iteration of the descent on dev, and speed."""
        labeller = Labeller.open(self.run(job), device=self.device)
        model, plain = labeller.model, labeller.feedforward
        result: dict[str, Any] = {"row": job.row, "seed": job.seed, "corpus": job.corpus}
        result["train_seconds"] = _add_seconds(self.run(job), 0.0)
        for split in ("dev",) if self.order.dev_only else ("dev", "test"):
            result[split], props = evaluate(model, data.corpora[split], feedforward=plain)
            write_props(self.run(job) / f"{split}.props.gz", props["ad3"])
        if not plain:
            rule = model.minimizer.rule
            assert isinstance(rule, GradientDescent)
            result["rates"] = rule.rates().tolist()
            result["descent"] = follow(model, data.corpora["dev"])
        result["sentences_per_second"] = throughput(model, data.corpora["dev"], feedforward=plain)
        result["device"] = torch.cuda.get_device_name() if torch.device(self.device).type == "cuda" else "cpu"
        return result

    def results(self) -> list[dict[str, Any]]:
        """Every evaluation in the folder, of this call or an earlier one, in the order of the recipes."""
        found = [json.loads(path.read_text(encoding="utf-8")) for path in self.folder.glob(f"**/seed-*/{RESULT}")]
        order = {name: k for k, name in enumerate(RECIPES | ABLATIONS)}
        return sorted(found, key=lambda r: (order.get(r["row"], len(order)), r["row"], r["corpus"] != WHOLE, r["seed"]))

    def write(self) -> dict[str, Any]:
        """results.json and report.html from every run in the folder."""
        left_out = sorted(path.name.removeprefix("without-") for path in self.folder.glob("without-*"))
        about = {"data": self.order.data or "builtin", "genre": ", ".join(left_out), "quick": self.order.quick}
        runs = self.results()
        rows, splits, split = rows_of(runs), self.whole[1], "dev" if self.order.dev_only else "test"
        names = [name for name in dict.fromkeys(row["row"] for row in rows) if name not in ABLATIONS]
        pairs = pairs_of(self.folder, names, splits[split], split)
        summary = {"about": about, "rows": rows, "runs": runs, "pairs": pairs}
        write_json(self.folder / "results.json", summary)
        write_report(summary, splits["dev"], self.folder)
        return summary


def reproduce(order: ReproduceOrder) -> Reproduced:
    """Train and evaluate what is missing, `order.jobs` jobs at a time, then write the results and the report."""
    table = Table(order)
    # Mistakes in the data are errors now, not after hours.
    if (genre := order.options.get("genre")) is not None:
        without_genre(open_corpus(order.data, size=60)[1], genre)
    elif (source := locate(order.data)) is not None:
        find_splits(source)
    asked = {"data": order.data or "builtin", "quick": order.quick, "sentences": order.options.get("sentences")}
    known, asked = noted(table.folder / "asked.json", asked)
    if known != asked:
        raise ValueError(f"{table.folder} holds results of other data or another size; give another folder")
    for source in order.merge:
        merge_runs(source, order.out, table.folder.name, RESULT)
    deadline = None if order.seconds is None else time.time() + order.seconds
    pending = [job for job in table.jobs() if not table.is_done(job)]
    parallel = order.jobs > 1 and len(pending) > 1
    finished = (_in_parallel if parallel else _one_by_one)(table, pending, deadline)
    summary = table.write()
    return Reproduced(summary, tuple(table_text(summary).splitlines()), table.folder / "report.html", finished)


def _one_by_one(table: Table, pending: list[Job], deadline: float | None) -> bool:
    finished = True
    for job in pending:
        left = None if deadline is None else deadline - time.time()
        if left is not None and left <= 0:
            return False
        result = table.train(job, left) if table.is_ready(job) else None
        finished = finished and result is not None
        if result is not None:
            table.order.log(_line(job, result))
    return finished


def _in_parallel(table: Table, pending: list[Job], deadline: float | None) -> bool:
    """Processes with their own copy of the data; bases first, then the jobs that take longest."""
    for job in pending:
        table.prepared(job)  # into the cache, which the processes share
    waiting = sorted(pending, key=lambda job: _rank(job, pending))
    running: dict[Future[Any], Job] = {}
    failed: list[tuple[Job, BaseException]] = []
    workers, log = table.order.jobs, table.order.log
    threads = max(1, min(2, (os.cpu_count() or 1) // workers))
    context = get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(workers, context, _start, (replace(table.order, log=print), threads)) as pool:
        while not any(isinstance(error, BrokenProcessPool) for _, error in failed):
            if deadline is None or deadline - time.time() > LAST_START:
                startable = [job for job in waiting if table.is_ready(job)]
                for job in startable[: workers - len(running)]:
                    waiting.remove(job)
                    running[pool.submit(_work, job, deadline)] = job
            if not running:
                break  # done, out of time, or every job left waits for a base that failed
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                if error := future.exception():
                    failed.append((job, error))
                elif future.result() is not None:
                    log(_line(job, future.result()))
    for job, error in failed:
        log(f"{job.corpus} {job.row} seed {job.seed} failed: {type(error).__name__}: {error}")
    return not failed and all(table.is_done(job) for job in pending)


def _rank(job: Job, pending: Sequence[Job]) -> tuple[bool, int, int]:
    """Bases first; then the systems that take longest, so that none of them runs alone at the end."""
    recipe = find_recipe(job.row)
    is_base = any(other.base == job for other in pending)
    descends = recipe.objective in ("end_to_end", "ssvm")
    return not is_base, -(2 * (recipe.encoder == "contextual") + descends), pending.index(job)


_worker: Table
"""The table of a worker process."""


def _start(order: ReproduceOrder, threads: int) -> None:
    global _worker
    torch.set_num_threads(threads)
    _worker = Table(order)


def _work(job: Job, deadline: float | None) -> dict[str, Any] | None:
    # Evaluation takes some seconds after the last epoch.
    left = None if deadline is None else max(1.0, deadline - time.time() - LAST_START / 2)
    try:
        return _worker.train(job, left)
    finally:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # for the other processes


def _add_seconds(folder: Path, more: float) -> float:
    """Add to the training time that is stored in the run folder, and return it."""
    path = folder / "seconds.json"
    total = (json.loads(path.read_text()) if path.exists() else 0.0) + more
    path.write_text(json.dumps(total))
    return total


def _line(job: Job, result: dict[str, Any]) -> str:
    splits = [split for split in ("dev", "test") if split in result]
    parts = [f"{split} {d} {result[split]['f1'][d]:.2f}" for split in splits for d in ("greedy", "ad3")]
    parts += [f"{result['dev']['violations']} violations", f"trained in {result['train_seconds']:.0f} s"]
    parts += [f"{result['sentences_per_second']:.0f} sentences a second"]
    return f"{job.corpus} {job.row} seed {job.seed}: {', '.join(parts)}"
