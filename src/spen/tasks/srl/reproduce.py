"""Table 2: every row trained, evaluated and written to results.json; resumable at any point.

    python -m spen.tasks.srl.reproduce --data DIR --out DIR --device cuda --rows local,spen --seeds 0,1,2

A row is a recipe trained with a seed on a corpus: `ewt` (columns dev and test) or `ewt` without a genre (column out of
domain). Each is a run folder of its own under OUT/runs, so rows can be trained side by side and in any order; a row
whose base is not trained yet trains it first. `--seconds` stops early; the same command goes on from there.
A row may change its recipe: `spen:steps=5:context_dropout=0.3`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spen.tasks.srl.conll2005 import write_props
from spen.tasks.srl.corpora import Prepared, Splits, builtin_splits, ewt_splits, prepare, without_genre
from spen.tasks.srl.decoding import Decoder
from spen.tasks.srl.evaluate import evaluate, follow, label_sentences, throughput
from spen.tasks.srl.recipes import ABLATIONS, RECIPES, SrlRecipe, find_recipe
from spen.tasks.srl.report import write_report
from spen.tasks.srl.table import print_table, summarise
from spen.tasks.srl.training import accelerator_of, load_system, train

__all__ = ["Job", "Settings", "main", "reproduce"]

ROWS = ("local", "spen", "convex", "ssvm", "structured", "best-local", "spen-best")


OUT_OF_TIME = 3
"""The exit status that asks for the same command again."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to reproduce, with which data, and where."""

    out: Path
    data: Path | None  # None: the built-in corpus
    rows: tuple[str, ...] = ROWS
    seeds: tuple[int, ...] = (0, 1, 2)
    genre: str | None = None  # the one left out for the out-of-domain column; None: no such column
    device: str = "cpu"
    seconds: float | None = None
    workers: int = 1
    quick: bool = False
    sentences: int | None = None  # train on the first so many only
    dev_only: bool = False  # leave the test data alone, as tuning must


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
        self._splits: Splits | None = None
        self._prepared: dict[tuple[str, str], Prepared] = {}

    def splits(self, corpus: str) -> Splits:
        if self._splits is None:
            data = self.settings.data
            whole = builtin_splits(600 if self.settings.quick else 3000) if data is None else ewt_splits(data)
            if self.settings.sentences is not None:
                whole = {**whole, "train": whole["train"][: self.settings.sentences]}
            self._splits = whole
        return self._splits if corpus == "whole" else without_genre(self._splits, corpus.removeprefix("without-"))

    def get(self, corpus: str, templates: str) -> Prepared:
        key = (corpus, templates)
        if key not in self._prepared:
            data = self.settings.data
            vectors = data / "embeddings" if data is not None and (data / "embeddings").is_dir() else None
            name = f"{'builtin' if data is None else 'ewt'}-{corpus}"
            self._prepared[key] = prepare(
                self.splits(corpus),
                name=name,
                templates=templates,
                vectors=vectors,
                cache=self.settings.out / "cache",
                device=self.settings.device,
            )
        return self._prepared[key]


def recipe_for(job: Job, settings: Settings) -> SrlRecipe:
    recipe = find_recipe(job.row)
    return recipe.quick() if settings.quick else recipe


def run_job(job: Job, settings: Settings, corpora: Corpora, seconds: float | None) -> bool:
    """Train and evaluate; False when time ran out."""
    recipe = recipe_for(job, settings)
    data = corpora.get(job.corpus, recipe.templates)
    base = None if recipe.base is None else Job(recipe.base, job.seed, job.corpus).folder(settings.out)
    began = time.monotonic()
    accelerator = accelerator_of(settings.device)
    folder = job.folder(settings.out)
    model = train(recipe, data, folder, seed=job.seed, base=base, accelerator=accelerator, seconds=seconds)
    spent = _add_seconds(folder, time.monotonic() - began)
    if model is None:
        return False
    result = evaluate_job(job, settings, data, spent)
    _write_json(job.result(settings.out), result)
    # The optimiser's state is three times the model, and a finished run does not go on.
    shutil.rmtree(folder / "state", ignore_errors=True)
    print(f"{job.corpus} {job.row} seed {job.seed}: {_short(result)}", flush=True)
    return True


def evaluate_job(job: Job, settings: Settings, data: Prepared, seconds: float) -> dict[str, Any]:
    """dev and test figures, the course of the descent on dev, and speed."""
    recipe, model = load_system(job.folder(settings.out), data)
    plain = recipe.objective in ("local", "structured")
    decoders: tuple[Decoder, ...] = ("argmax", "greedy", "ad3")
    result: dict[str, Any] = {"row": job.row, "seed": job.seed, "corpus": job.corpus, "train_seconds": seconds}
    for split in ("dev",) if settings.dev_only else ("dev", "test"):
        result[split] = evaluate(model, data, split, decoders=decoders, feedforward=plain).as_dict()
        found = label_sentences(
            model, data.corpora[split], data.sentences(split), data.roles, data.core, feedforward=plain
        )
        write_props(job.folder(settings.out) / f"{split}.props.gz", found)
    if not plain:
        course = follow(model, data, "dev")
        result["descent"] = {"energy": course.energy, "f1": course.f1, "violations": course.violations}
        result["sentences_per_second"] = throughput(model, data, "dev", repeats=2)
    result["device"] = torch.cuda.get_device_name() if torch.device(settings.device).type == "cuda" else "cpu"
    return result


def reproduce(settings: Settings) -> dict[str, Any] | None:
    """All jobs, here or in `workers` processes; then the table. None when time ran out first."""
    settings.out.mkdir(parents=True, exist_ok=True)
    deadline = None if settings.seconds is None else time.monotonic() + settings.seconds
    corpora = Corpora(settings)
    pending = [job for job in jobs(settings) if not job.result(settings.out).exists()]
    for corpus, templates in dict.fromkeys((j.corpus, find_recipe(j.row).templates) for j in pending):
        corpora.get(corpus, templates)  # encodings are in the cache before anybody asks for them twice
    finished = True
    if settings.workers > 1 and len(pending) > 1:
        finished = _side_by_side(settings, pending, deadline)
    else:
        for job in pending:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                finished = False
                break
            if not _base_ready(job, settings) or not run_job(job, settings, corpora, left):
                finished = False
    summary = summarise(_all_results(settings.out), _describe(settings))
    _write_json(settings.out / "results.json", summary)
    sentences = corpora.splits("whole")["dev"]
    write_report(summary, sentences, settings.out / "runs" / "whole", settings.out / "report.html")
    print_table(summary)
    return summary if finished else None


def _all_results(out: Path) -> list[dict[str, Any]]:
    """Every evaluation in the folder, of this call or an earlier one, in the order of the recipes."""
    results = [json.loads(path.read_text()) for path in out.glob("runs/*/*/evaluation.json")]
    order = {name: k for k, name in enumerate([*ROWS, *ABLATIONS])}
    return sorted(results, key=lambda r: (order.get(r["row"], len(order)), r["row"], r["corpus"] != "whole", r["seed"]))


def _base_ready(job: Job, settings: Settings) -> bool:
    base = find_recipe(job.row).base
    return base is None or Job(base, job.seed, job.corpus).result(settings.out).exists()


def _side_by_side(settings: Settings, pending: list[Job], deadline: float | None) -> bool:
    """A process a job, `workers` at a time, bases first."""
    waiting, running = list(pending), dict[Job, subprocess.Popen[bytes]]()
    failed: set[Job] = set()
    while waiting or running:
        left = None if deadline is None else deadline - time.monotonic()
        for job in list(waiting):
            if len(running) >= settings.workers or (left is not None and left < 20):
                break
            if _base_ready(job, settings):
                waiting.remove(job)
                running[job] = subprocess.Popen(list(_command(job, settings, left)), env=_environment())
        if not running:
            break  # out of time, or every job left waits for a base that failed
        for job, process in list(running.items()):
            if process.poll() is not None:
                del running[job]
                if process.returncode not in (0, OUT_OF_TIME):
                    failed.add(job)
        time.sleep(0.2)
    for job in failed:
        print(f"{job.corpus} {job.row} seed {job.seed} failed", file=sys.stderr)
    return not failed and all(job.result(settings.out).exists() for job in pending)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}


def _command(job: Job, settings: Settings, left: float | None) -> Iterator[str]:
    yield from (sys.executable, "-m", "spen.tasks.srl.reproduce", "--out", str(settings.out), "--device")
    yield from (settings.device, "--only", f"{job.corpus}/{job.row}/{job.seed}")
    if settings.data is not None:
        yield from ("--data", str(settings.data))
    if left is not None:
        yield from ("--seconds", str(max(1.0, left - 10)))
    if settings.quick:
        yield "--quick"
    if settings.dev_only:
        yield "--dev-only"
    if settings.sentences is not None:
        yield from ("--sentences", str(settings.sentences))


def _describe(settings: Settings) -> dict[str, Any]:
    left_out = [path.name.removeprefix("without-") for path in settings.out.glob("runs/without-*")]
    return {
        "data": "built-in" if settings.data is None else "ewt",
        "genre": ", ".join(left_out),
        "quick": settings.quick,
    }


def _add_seconds(folder: Path, more: float) -> float:
    path = folder / "seconds.json"
    before = json.loads(path.read_text()) if path.exists() else 0.0
    path.write_text(json.dumps(before + more))
    return before + more


def _write_json(path: Path, value: Any) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def _short(result: dict[str, Any]) -> str:
    splits = [split for split in ("dev", "test") if split in result]
    parts = [f"{split} {d} {result[split]['f1'][d]:.2f}" for split in splits for d in ("greedy", "ad3")]
    return ", ".join(parts) + f", {result['train_seconds']:.0f} s"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything is done, 3 when time ran out and the same command should be run again."""
    parser = argparse.ArgumentParser(prog="python -m spen.tasks.srl.reproduce", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", type=Path, help="the folder with ewt/ and embeddings/; without it the built-in corpus"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--rows",
        default=",".join(ROWS),
        help=f"of {', '.join([*RECIPES, *ABLATIONS])}, or `ablation` for those after spen-best",
    )
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--genre", help="leave this genre out and test on it: the out-of-domain column")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, help="stop at the end of the epoch in which they run out")
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    parser.add_argument("--quick", action="store_true", help="few epochs and, on the built-in corpus, few sentences")
    parser.add_argument("--sentences", type=int, help="train on the first so many")
    parser.add_argument("--dev-only", action="store_true", help="evaluate on dev alone, for tuning")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # corpus/row/seed: one job, for a worker process
    given = parser.parse_args(arguments)
    rows = tuple(x for row in given.rows.split(",") if row for x in (ABLATIONS if row == "ablation" else (row,)))
    for row in rows:
        find_recipe(row)
    settings = Settings(
        out=given.out,
        data=given.data,
        rows=rows,
        seeds=tuple(int(s) for s in given.seeds.split(",")),
        genre=given.genre,
        device=given.device,
        seconds=given.seconds,
        workers=given.workers,
        quick=given.quick,
        sentences=given.sentences,
        dev_only=given.dev_only,
    )
    if given.only:
        corpus, row, seed = given.only.split("/")
        return 0 if run_job(Job(row, int(seed), corpus), settings, Corpora(settings), given.seconds) else OUT_OF_TIME
    return 0 if reproduce(settings) is not None else OUT_OF_TIME


if __name__ == "__main__":
    sys.exit(main())
