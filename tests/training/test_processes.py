"""Two processes under torchrun, one of which is killed; signals, locks and full disks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from spen.storage import load_weights
from spen.training import Run, Terminated
from spen.training import checkpoints as checkpoint_files
from spen.training.module import StageModule
from spen.training.processes import sizes
from tests.training import elastic, toy

LIMIT = 400  # seconds, for a busy machine; a run that hangs would take longer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of ``elastic``, after one of its processes was killed at a random update of twelve."""
    out = tmp_path_factory.mktemp("elastic")
    elastic.whole(out / "begun by one", seconds=0.0)
    at = random.randrange(12)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = subprocess.run(
        [*torchrun, "--monitor-interval=0.2", "-m", "tests.training.elastic", str(out), str(at)],
        env=toy.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, (at, done.stderr[-3000:])
    assert "exitcode: -9" in done.stderr, at
    return out


def test_a_killed_worker_changes_no_bit(runs: Path) -> None:
    expected, found = (load_weights(Run(runs / name).weights_path) for name in ("undisturbed", "killed"))
    assert expected
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    scores = [[e["dev"] for e in Run(runs / name).metrics()] for name in ("undisturbed", "killed")]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 3


def test_uneven_batches_and_an_empty_share_do_not_hang(runs: Path) -> None:
    assert Run(runs / "uneven").complete


@pytest.mark.parametrize("task", ["labels", "roles"])
def test_label_sets_and_roles_train_with_two_processes(runs: Path, task: str) -> None:
    run = Run(runs / task)
    assert run.complete
    assert all(0 <= e["dev"] <= 100 for e in run.metrics())


def test_a_run_begun_by_one_process_goes_on_with_two(runs: Path) -> None:
    run = Run(runs / "begun by one")
    assert run.complete
    assert [e["epoch"] for e in run.metrics()] == [0, 1, 2]


def test_a_run_begun_by_two_processes_goes_on_with_one(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(runs / "begun by two")
    assert not run.complete
    assert elastic.whole(run.folder).complete
    assert "the run began with 2 processes and goes on with 1" in capsys.readouterr().err
    assert [e["epoch"] for e in run.metrics()] == [0, 1, 2]


def test_torchrun_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(2, 3) == (2, 3)
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert sizes(1, 1) == sizes(4, 2) == (4, 2)
    with pytest.raises(ValueError, match="torchrun has started 4 processes on each of 2 nodes, not 3 on each of 1"):
        sizes(3, 1)


def test_a_sigterm_stops_and_the_same_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = elastic.whole(tmp_path / "whole").load()
    step, steps = StageModule.training_step, []

    def training_step(self: Any, batch: Any, index: int) -> Any:
        steps.append(self.global_step)
        if len(steps) == 12:  # in the second epoch
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, index)

    monkeypatch.setattr(StageModule, "training_step", training_step)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated) as end:
        elastic.whole(tmp_path / "run")
    assert end.value.code == 3
    assert signal.getsignal(signal.SIGTERM) == before
    assert len(steps) == 12  # the state of the first epoch is there: nothing to wait for
    run = elastic.whole(tmp_path / "run")
    assert run.complete
    assert all(torch.equal(value, expected[name]) for name, value in run.load().items())


def test_a_sigterm_waits_for_a_state_that_is_not_written_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = StageModule.training_step

    def training_step(self: Any, batch: Any, index: int) -> Any:
        if self.global_step == 10:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, index)

    monkeypatch.setattr(StageModule, "training_step", training_step)
    with pytest.raises(Terminated):
        elastic.whole(tmp_path / "run", state_every=1e9)
    assert [e["epoch"] for e in Run(tmp_path / "run").metrics()] == [0, 1]
    assert Run(tmp_path / "run").state(0).exists()
    assert elastic.whole(tmp_path / "run", state_every=1e9).complete


def test_the_command_line_ends_with_the_resumable_status(tmp_path: Path) -> None:
    spen = [sys.executable, "-c", "from spen.cli import main; main()"]
    small = ("batches=100000", "per_epoch=10", "batch_size=2", "crop=24x32", "width=4", "gradient=exact")
    train = ["train", "dp-3", "--out", str(tmp_path), "--device", "cpu", *(f"--set={change}" for change in small)]
    process = subprocess.Popen([*spen, *train], env=toy.ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        give_up = time.monotonic() + LIMIT
        while not (tmp_path / "lock").exists() and time.monotonic() < give_up and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 3, err
    assert "goes on from there" in err


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        Run(tmp_path).locked(),
        pytest.raises(ValueError, match=r"another process trains in .*: wait until"),
    ):
        elastic.whole(tmp_path)
    assert elastic.whole(tmp_path).complete


def test_a_lock_ends_though_a_child_holds_the_file_open(tmp_path: Path) -> None:
    with Run(tmp_path).locked():
        child = os.fork()
        if child == 0:  # as a worker of a DataLoader that persists
            time.sleep(60)
            os._exit(0)
    try:
        with Run(tmp_path).locked():
            assert (tmp_path / "lock").exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_full_disk_loses_nothing_that_was_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = elastic.whole(tmp_path / "whole").load()
    written, save = [], checkpoint_files.save_file

    def full(tensors: Any, path: Path, **options: Any) -> None:
        written.append(path)
        if len(written) == 2:  # the state of the second epoch
            Path(path).write_bytes(b"half of it")
            raise OSError(28, "No space left on device")
        save(tensors, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "save_file", full)
        with pytest.raises(OSError, match="No space left on device"):
            elastic.whole(tmp_path / "run")
    assert not list((tmp_path / "run").rglob("part-*"))
    run = elastic.whole(tmp_path / "run")
    assert all(torch.equal(value, expected[name]) for name, value in run.load().items())
