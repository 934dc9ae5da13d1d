"""Two processes, of Lightning and of torchrun, one of which is killed; signals, locks and full disks."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from spen.cli import main as command_line
from spen.storage import load_weights
from spen.training import Run, Terminated
from spen.training.module import StageModule
from spen.training.processes import devices_and_nodes
from tests.training import ddp, elastic, toy

LIMIT = 400  # seconds, for a busy machine; a run that hangs would take longer


@pytest.fixture
def handlers() -> Iterator[None]:
    """torchrun's agent leaves its signal handlers behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_two_processes_of_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One is killed at a random update of six. One test checks everything that they train, because they are slow."""
    elastic.whole(tmp_path / "begun by one", seconds=0.0)
    toy.forkserver()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        monitor_interval=0.1,
        start_method="forkserver",
        run_id=tmp_path.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
    )
    at = random.randrange(6)
    elastic_launch(config, elastic.main)(tmp_path, at)  # what torchrun calls
    assert (tmp_path / "attempt 1").exists(), at

    def run(name: str) -> Run:
        return Run(tmp_path / name)

    undisturbed, killed = run("undisturbed").load(), run("killed").load()
    assert all(torch.equal(killed[name], value) for name, value in undisturbed.items()), "a kill changes no bit"
    scores = [[e["dev"] for e in run(name).metrics()] for name in ("undisturbed", "killed")]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 3
    assert run("uneven").complete, "uneven batches and an empty share do not hang"
    for task in ("labels", "roles"):
        assert run(task).complete
        assert all(0 <= e["dev"] <= 100 for e in run(task).metrics())
    assert run("begun by one").complete, "a run begun by one process goes on with two"
    assert not run("begun by two").complete
    assert elastic.whole(tmp_path / "begun by two").complete, "and the other way round"
    assert "the run began with 2 processes and goes on with 1" in capsys.readouterr().err
    for name in ("begun by one", "begun by two"):
        assert [e["epoch"] for e in run(name).metrics()] == [0, 1, 2]


def test_two_devices(tmp_path: Path) -> None:
    """Two processes with half the batch each step with the gradients of the whole, and score every example once."""
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir()
    ddp.run(one, 1)
    process = toy.start(ddp.run_two, two, stderr=two / "stderr")
    process.join(LIMIT)
    err = (two / "stderr").read_text()
    assert process.exitcode == 0, err[-3000:]
    assert "was called before the ``update`` method" not in err
    expected, found = (load_weights(folder / "gradients.safetensors") for folder in (one, two))
    assert len(expected) == len(found) > 20
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-6, rtol=1e-5), name
    names = ["2-Kept", "2-MSE", "5-Kept", "5-MSE"]
    scores = [[Run.open(folder / name).metrics()[0]["dev"] for name in names] for folder in (one, two)]
    assert scores[1] == pytest.approx(scores[0], rel=1e-4)


def test_torchrun_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices_and_nodes(2, 3) == (2, 3)
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert devices_and_nodes(1, 1) == devices_and_nodes(4, 2) == (4, 2)
    with pytest.raises(ValueError, match="torchrun has started 4 processes on each of 2 nodes, not 3 on each of 1"):
        devices_and_nodes(3, 1)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return elastic.whole(tmp_path_factory.mktemp("whole")).load()


def test_a_sigterm_stops_and_the_same_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, torch.Tensor]
) -> None:
    step, steps = StageModule.training_step, []

    def training_step(self: Any, batch: Any, index: int) -> Any:
        steps.append(self.global_step)
        if len(steps) == 6:  # in the second epoch
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, index)

    monkeypatch.setattr(StageModule, "training_step", training_step)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated) as end:
        elastic.whole(tmp_path / "run")
    assert end.value.code == 3
    assert signal.getsignal(signal.SIGTERM) == before
    assert len(steps) == 6  # the state of the first epoch is there: nothing to wait for
    run = elastic.whole(tmp_path / "run")
    assert run.complete
    assert all(torch.equal(value, expected[name]) for name, value in run.load().items())


def test_a_sigterm_waits_for_a_state_that_is_not_written_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = StageModule.training_step

    def training_step(self: Any, batch: Any, index: int) -> Any:
        if self.global_step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, index)

    monkeypatch.setattr(StageModule, "training_step", training_step)
    with pytest.raises(Terminated):
        elastic.whole(tmp_path / "run", state_every=1e9)
    assert [e["epoch"] for e in Run(tmp_path / "run").metrics()] == [0, 1]
    assert Run(tmp_path / "run").state(0).exists()
    assert elastic.whole(tmp_path / "run", state_every=1e9).complete


def spen(*arguments: str) -> None:
    sys.argv = ["spen", *arguments]
    command_line()


def test_the_command_line_ends_with_the_resumable_status(tmp_path: Path) -> None:
    data, out, err = tmp_path / "data.npz", tmp_path / "run", tmp_path / "stderr"
    np.savez(data, x=np.eye(40), y=np.eye(40)[:, :3])
    endless = ["--set=epochs=100000", "--set=patience=none", "--set=pretrain_epochs=100000"]
    train = ["train", "labels", "--data", str(data), "--out", str(out), "--device", "cpu", *endless]
    process = toy.start(spen, *train, stderr=err)
    try:
        give_up = time.monotonic() + LIMIT
        while not (out / "lock").exists() and time.monotonic() < give_up and process.is_alive():
            time.sleep(0.05)
        os.kill(process.pid or 0, signal.SIGTERM)
        process.join(LIMIT)
    finally:
        process.kill()
    assert process.exitcode == 3, err.read_text()
    assert "goes on from there" in err.read_text()


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


def test_a_full_disk_loses_nothing_that_was_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, torch.Tensor]
) -> None:
    states, save = [], safetensors.torch.save_file

    def full(tensors: Any, path: Path, **options: Any) -> None:
        states.extend([path] if path.name.endswith("stage-0.safetensors") else [])
        if len(states) == 2:  # the second epoch
            Path(path).write_bytes(b"half of it")
            raise OSError(28, "No space left on device")
        save(tensors, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        with pytest.raises(OSError, match="No space left on device"):
            elastic.whole(tmp_path / "run")
    assert not list((tmp_path / "run").rglob("part-*"))
    run = elastic.whole(tmp_path / "run")
    assert all(torch.equal(value, expected[name]) for name, value in run.load().items())
