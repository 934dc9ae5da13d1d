"""How many source files a reader opens to follow a command or a training step: files of spen that run, and switches.

    python -m benchmarks.walks

A file counts when one of its functions is called. A switch is a call or return from one file to another. Imports do
not count: they run whatever the reader wants to follow.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from PIL import Image

import spen

SOURCE = str(Path(spen.__file__).parent)
CONLLU = "1\tAnn\tAnn\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n2\tsold\tsell\tVERB\tVBD\t_\t0\troot\t_\t_\n\n"


def followed(walk: Callable[[], object]) -> tuple[list[str], int]:
    """(files in the order in which they are first entered, switches between files)."""
    files: dict[str, None] = {}
    last, switches, loading = "", 0, 0

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal last, switches, loading
        if event not in ("call", "return"):
            return
        if frame.f_code.co_name == "<module>":  # a module that is imported, and what its top level calls
            loading += 1 if event == "call" else -1
            return
        name = frame.f_code.co_filename
        if loading or not name.startswith(SOURCE):
            return
        if name != last:
            switches += bool(last)
            last = name
        files[name] = None

    sys.setprofile(watch)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return [str(Path(name).relative_to(SOURCE)) for name in files], switches


def command(*words: str) -> Callable[[], object]:
    """A command line, as a walk."""

    def run() -> None:
        from spen.cli import main

        before, sys.argv = sys.argv, ["spen", *words]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
                main()
        finally:
            sys.argv = before

    return run


def estimator() -> None:
    """A table to a trained estimator to labels."""
    from spen.sklearn import SPENClassifier

    draw = np.random.default_rng(0)
    x = draw.normal(size=(40, 5)).astype(np.float32)
    y = (x[:, :3] > 0).astype(int)
    model = SPENClassifier(max_iter=1).fit(x, y)
    model.predict(x)


def training_step(gradient: Any) -> Callable[[], object]:
    """A forward and backward pass of a small model with a strategy."""
    from spen.domains import Reals
    from spen.energies import Linear
    from spen.objectives import EndToEnd, squared_error
    from spen.rules import GradientDescent

    minimizer = spen.Minimizer(Reals(), GradientDescent(3, 0.1), gradient)
    parts = {"features": torch.nn.Linear(4, 4), "init": torch.nn.Identity(), "energy": Linear() + Square()}
    model = spen.SPEN(**parts, minimizer=minimizer)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    return lambda: EndToEnd(squared_error)(model, x, y).backward()


class Square(spen.Energy):
    """½‖W y‖²."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, y: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return 0.5 * self.layer(y).square().sum(1)


def main() -> None:
    from spen.gradients import Compiled, Exact, FiniteDifference

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Image.fromarray(np.full((24, 32), 2000, np.uint16)).save("noisy.png")
        Path("s.conllu").write_text(CONLLU)
        walks = {
            "a noisy PNG to a clean one": command("predict", "dp-3", "noisy.png", "-o", "clean.png"),
            "a CoNLL-U sentence to roles": command("predict", "srl-grammar", "s.conllu", "-o", "s.props"),
            "a table to an estimator to labels": estimator,
            "spen reproduce table1 (tv, quick)": command("reproduce", "table1", "--quick", "--rows", "tv"),
            "a training step, Exact": training_step(Exact()),
            "a training step, FiniteDifference": training_step(FiniteDifference()),
            "a training step, Compiled": training_step(Compiled(patience=0)),
        }
        for name, walk in walks.items():
            files, switches = followed(walk)
            print(f"{name:36s} {len(files):3d} files {switches:6d} switches  {' '.join(files[:60])}", flush=True)


if __name__ == "__main__":
    main()
