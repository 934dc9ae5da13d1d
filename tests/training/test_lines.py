"""A line an epoch on stderr: in a pipe, on a terminal above the bar, or none at all."""

from __future__ import annotations

import os
import pty
import re
import threading
from pathlib import Path

import pytest

from spen.objectives import EndToEnd, squared_error
from spen.training import fit, joint
from tests.training import toy

LINES = [
    r"pretrain  1/2  loss 0\.\d+  dev 0\.\d+ \*  \d+\.\d s",
    r"pretrain  2/2  loss 0\.\d+  dev 0\.\d+( \*)?  \d+\.\d s",
    r"joint  1/1  loss 0\.\d+  dev 0\.\d+ \*  \d+\.\d s",
]


def _train(out: Path, progress: bool | None, **options: float) -> None:
    train, dev = toy.build_data()
    first, _, last = toy.build_stages(1)
    stages = [joint(EndToEnd(squared_error), epochs=1, **options)] if options else [first, last]  # type: ignore[arg-type]
    fit(toy.build_model(), stages, train, dev, toy.MSE(), out=out, accelerator="cpu", progress=progress)


def _train_on_a_terminal(out: Path) -> None:
    os.environ.update(TERM="xterm", COLUMNS="120")
    _train(out, None)


def test_a_line_an_epoch_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _train(tmp_path, None)
    said = capsys.readouterr()
    assert said.out == ""
    shown = [line for line in said.err.splitlines() if "loss" in line]
    assert len(shown) == 3
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(LINES, shown, strict=True))


def test_a_stage_of_so_many_seconds_counts_its_epochs_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _train(tmp_path, None, seconds=1e6)
    assert capsys.readouterr().err.startswith("joint  1  loss ")


def test_no_line_where_progress_is_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _train(tmp_path, False, clip=1.0)
    assert capsys.readouterr() == ("", "")


def test_lines_stand_above_the_bar_on_a_terminal(tmp_path: Path) -> None:
    end, other = pty.openpty()
    process = toy.start(_train_on_a_terminal, tmp_path, stderr=os.ttyname(other))
    threading.Thread(target=lambda: (process.join(), os.close(other))).start()
    shown = b""
    try:
        while part := os.read(end, 4096):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(end)
    assert process.exitcode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    assert any("Epoch" in line for line in lines)
    assert all(any(re.fullmatch(pattern, line) for line in lines) for pattern in LINES)
