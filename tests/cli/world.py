"""A folder in which every example of the command line's help can be run as it is printed, and a way to run it here.

Commands run in this process: the code is the user's, `main` included, without seconds of imports for each. What is too
large for a test is made small from outside: rooms and sentences by patches, data sets by tiny ones under SPEN_DATA,
downloads by a mirror on disk. `SMALLER` holds what is appended to an example so that it trains for two batches.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spen.cli import main
from spen.pretrained import write_config
from spen.tasks.srl.formats.conll2005 import write_props
from spen.tasks.srl.formats.ewt import tsv_text
from spen.tasks.srl.grammar.corpus import make_corpus
from spen.tasks.srl.sentences import write_text

CONLLU = """1\tAnn\tAnn\tPROPN\tNNP\t_\t2\tnsubj\t_\t_
2\tsold\tsell\tVERB\tVBD\t_\t0\troot\t_\t_
3\tthe\tthe\tDET\tDT\t_\t4\tdet\t_\t_
4\tboat\tboat\tNOUN\tNN\t_\t2\tobj\t_\t_

"""
MINE = """import torch
import spen
from spen.domains import Simplex
from spen.energies import EntropySmoothed, Linear
from spen.rules import GradientDescent

def make_model():
    minimizer = spen.Minimizer(Simplex(), GradientDescent(steps=3, rate=0.5))
    return spen.SPEN(features=torch.nn.Linear(4, 3), init=torch.nn.Identity(), energy=EntropySmoothed(2.0 * Linear()),
                     minimizer=minimizer)

def accuracy(y, target):
    return (y.argmax(-1) == target.argmax(-1)).float()
"""
"""A user's own module."""

_DENOISING = "--set batches=2 --set per_epoch=2 --set batch_size=1 --set width=4 --set crop=24x32 --device cpu"
_ROLES = "--set pretrain_epochs=1 --set clamped_epochs=1 --set joint_epochs=1 --device cpu"
_SETS = "--set hidden=8 --set network=8 --set pretrain_epochs=1 --set epochs=1 --device cpu"

SMALLER = {
    "spen train dp-3": _DENOISING,
    "spen train denoise": _DENOISING,
    "spen train srl/spen": _ROLES,
    "spen train sudoku-small": "--set width=4 --set rounds=1 --set steps=2 --set epochs=1",
    "spen train bibtex-": _SETS,
    "spen train labels": _SETS,
    "spen reproduce table1 --quick": "--rows tv",
    "spen reproduce table1 --data simulated": "--rows tv --json",
    "spen reproduce table2 --data ewt": "--rows local --seeds 1 --quick --device cpu --out runs/ewt",
    "spen reproduce table2 --quick": "--device cpu",
    "spen compare bibtex": "--ways feedforward --seeds 1 --updates 2",
    "spen compare mine-train.arff": "--seconds 0.5",
    "spen compare mine.npz": "--updates 2",
    "spen view": "--port 0 --no-browser",
}
"""What an example that begins so gets in addition. A later option overrides an earlier one."""


@dataclass(frozen=True)
class Answer:
    """Exit status and what was printed."""

    status: int
    out: str
    err: str


def spen(*arguments: str) -> Answer:
    """`spen ARGUMENTS…` in this process."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["spen", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        sys.argv = before
    return Answer(status, out.getvalue(), err.getvalue())


def smaller(example: str) -> list[str]:
    """The words of an example after `spen`, with what makes it small."""
    extra = [more for start, more in SMALLER.items() if example.startswith(start)]
    return shlex.split(" ".join([example, *extra]))[1:]


def build(folder: Path) -> None:
    """Every file that an example names."""
    random = np.random.default_rng(0)
    depth = (2000 + 20 * random.standard_normal((24, 32))).astype(np.uint16)
    for part in ("frames", "photos"):
        (folder / part).mkdir(parents=True)
    photos = [f"photos/{k}.png" for k in range(3)]
    for name in ("noisy.png", "depth.png", "frames/a.png", "frames/b.png", *photos):
        Image.fromarray(depth).save(folder / name)
    (folder / "sentences.conllu").write_text(CONLLU, encoding="utf-8")
    (folder / "puzzles.txt").write_text("....1.3..2..3...\n", encoding="utf-8")
    corpus = make_corpus(6, seed=1)
    for name in ("gold.props.gz", "pred.props", "other.props"):
        write_props(folder / name, corpus)
    _label_sets(folder, folder / "data" / "multilabel")
    depth_pairs(folder / "data" / "denoising" / "redkitchen")
    _roles(folder / "data" / "srl" / "ewt")
    _downloads(folder)
    own_model(folder)


def own_model(folder: Path) -> None:
    """mine.py, a run folder of its model, and files of arrays for it."""
    from spen.training import Run

    (folder / "mine.py").write_text(MINE)
    module: dict[str, Any] = {}
    exec(MINE, module)
    torch.manual_seed(0)
    model = module["make_model"]()
    run = Run.begin(folder / "runs" / "mine", {"name": "mine"}, 0)
    write_config(run.folder, None)
    run.save(model.state_dict())
    random = np.random.default_rng(3)
    x = random.standard_normal((5, 4))
    np.savez(folder / "examples.npz", x=x, y=np.eye(3)[x[:, :3].argmax(-1)])
    np.save(folder / "new.npy", x)


def _label_sets(folder: Path, data: Path) -> None:
    random = np.random.default_rng(1)
    data.mkdir(parents=True)
    x = (random.random((60, 12)) < 0.4).astype(np.float32)
    y = np.stack([x[:, 0], x[:, 1] * x[:, 2], 1 - x[:, 3]], 1)
    parts = {"x_train": x[:40], "y_train": y[:40], "x_test": x[40:], "y_test": y[40:]}
    np.savez(data / "bibtex.npz", **parts)
    np.savez(folder / "mine.npz", **parts)
    songs = [f"{100 + i % 7},{'CD'[i % 2]},{int(i % 7 > 3)},{i % 2}" for i in range(40)]
    (folder / "songs.csv").write_text("\n".join(["tempo,key,happy,calm", *songs]) + "\n")
    (folder / "new-songs.csv").write_text("key,tempo\nC,120\nD,90\n")
    for name, rows in (("train", slice(0, 40)), ("test", slice(40, 60))):
        lines = ["@relation 'mine: -C 3'", *(f"@attribute l{i} {{0,1}}" for i in range(3))]
        lines += [f"@attribute x{i} numeric" for i in range(12)] + ["@data"]
        lines += [",".join(f"{v:g}" for v in [*b, *a]) for a, b in zip(x[rows], y[rows], strict=True)]
        (folder / f"mine-{name}.arff").write_text("\n".join(lines) + "\n")


def depth_pairs(folder: Path, train: int = 2) -> None:
    random = np.random.default_rng(2)
    for split in ("train", "dev", "test"):
        (folder / split).mkdir(parents=True)
        for i in range(train if split == "train" else 2):
            clean = np.full((40, 48), 8000 + 400 * i, np.uint16) + np.arange(48, dtype=np.uint16) * 20
            raw = (clean / 4 + 5 * random.standard_normal(clean.shape)).astype(np.uint16)
            Image.fromarray(clean).save(folder / split / f"{i:06d}.clean.png")
            Image.fromarray(raw).save(folder / split / f"{i:06d}.raw.png")


def _roles(folder: Path) -> None:
    folder.mkdir(parents=True)
    for seed, split in enumerate(("train", "dev", "test")):
        sentences = make_corpus(40 if split == "train" else 12, seed=seed)
        named = [replace(s, sent_id=f"{('weblog', 'email')[i % 2]}-{i}") for i, s in enumerate(sentences)]
        write_text(folder / f"ewt-srl.{split}.tsv.gz", tsv_text(map(_benchmark_labels, named)))


def _benchmark_labels(sentence):  # type: ignore[no-untyped-def]
    """CoNLL's names back to PropBank's, which is what the TSV holds: A0 → ARG0."""
    propositions = tuple(
        replace(p, pieces=tuple(replace(x, role=_long(x.role)) for x in p.pieces)) for p in sentence.propositions
    )
    return replace(sentence, propositions=propositions)


def _long(role: str) -> str:
    prefix = role[:2] if role[:2] in ("C-", "R-") else ""
    body = role[len(prefix) :]
    return role if body == "V" else prefix + ("ARGM-" + body[3:] if body.startswith("AM-") else "ARG" + body[1:])


def _downloads(folder: Path) -> None:
    """A scene as its publisher packs it, the two archives of EWT, the shared task and a treebank."""
    from tests.tasks.denoising.test_denoising_fusion import write_scene
    from tests.tasks.srl import raw_ewt, test_penn

    write_scene(folder / "redkitchen", per_sequence=4)
    (folder / "mirror").mkdir()
    with zipfile.ZipFile(folder / "mirror" / "redkitchen.zip", "w") as archive:
        for path in sorted((folder / "redkitchen").rglob("*")):
            archive.write(path, path.relative_to(folder))
    raw = folder / "cache" / "spen" / "raw" / "ewt"
    raw.mkdir(parents=True)
    raw_ewt.as_tar(raw_ewt.TREEBANK, raw / "UD_English-EWT-15d613d.tar.gz", "UD/")
    raw_ewt.as_tar(raw_ewt.PROPBANK, raw / "propbank-release-4abade0.tar.gz", "propbank/")
    props = folder / "conll05st-release" / "train" / "props"
    props.mkdir(parents=True)
    (props / "train.02.props").write_text(test_penn.PROPS)
    treebank = folder / "treebank_3" / "parsed" / "mrg" / "wsj" / "02"
    treebank.mkdir(parents=True)
    (treebank / "wsj_0200.mrg").write_text(test_penn.TREES)


def shrink(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Stand in the folder, with small rooms, few sentences, and downloads from a folder."""
    from spen.tasks import bench
    from spen.tasks.denoising import datasets
    from spen.tasks.denoising.data import Rooms
    from spen.tasks.denoising.sevenscenes import download
    from spen.tasks.denoising.sevenscenes import prepare as sevenscenes
    from spen.tasks.srl import corpora, obtain
    from spen.viewer import server
    from tests.tasks.denoising.test_denoising_fusion import CAMERA

    patch.chdir(folder)
    patch.setenv("SPEN_DATA", str(folder / "data"))
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    plain = bench._strategies()[:4]
    patch.setattr(bench, "_strategies", lambda: plain)  # programs take seconds to be compiled
    few = corpora.builtin_splits
    rooms = datasets.Splits(Rooms("train", 2), Rooms("dev", 1), Rooms("test", 2))
    patch.setattr(datasets, "open_rooms", lambda regime, quick: rooms)
    patch.setattr(corpora, "builtin_splits", lambda size, **options: few(45, **options))
    mirror = (folder / "mirror").as_uri()
    patch.setattr(download, "fetch_sevenscenes", partial(download.fetch_sevenscenes, base=mirror))
    patch.setattr(sevenscenes, "prepare", partial(sevenscenes.prepare, camera=CAMERA, voxel=0.03))
    patch.setattr(server, "listen", lambda app, listening: None)  # the page is built, and nobody waits for visitors
    patch.setattr(obtain, "check_ewt", lambda *_: None)


def environment() -> dict[str, str]:
    """For commands in a process of their own: one thread, no colours asked for, a wide terminal."""
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "TERMINAL_WIDTH")}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
