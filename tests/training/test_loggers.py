"""Loggers of Lightning get the loss and the dev score of every epoch, as metrics.jsonl has them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from pytorch_lightning.loggers import CSVLogger, Logger

from spen.training import Run, fit
from tests.training import toy


class Kept(Logger):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "kept"

    @property
    def version(self) -> int:
        return 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.told.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any, *args: Any, **options: Any) -> None:
        pass


def train(out: Path, **options: Any) -> Run | None:
    """Two epochs without a descent, then one with it, whose start is scored first."""
    source, dev = toy.build_data()
    first, _, last = toy.build_stages(1)
    model = toy.build_model()
    return fit(model, [first, last], source, dev, toy.MSE(), out=out, accelerator="cpu", progress=False, **options)


def expected(run: Run) -> list[tuple[int, dict[str, float]]]:
    return [
        (step, {f"{e['stage']}/loss": e["loss"], f"{e['stage']}/dev": e["dev"]}) for step, e in enumerate(run.metrics())
    ]


def test_every_epoch_is_logged_and_steps_go_on_over_stages(tmp_path: Path) -> None:
    one, other = Kept(), Kept()
    run = train(tmp_path, logger=[one, other])
    assert run is not None
    assert [(step, *values) for step, values in one.told] == [
        (0, "pretrain/loss", "pretrain/dev"),
        (1, "pretrain/loss", "pretrain/dev"),
        (2, "joint/loss", "joint/dev"),
    ]
    assert one.told == other.told == expected(run)


def test_an_interrupted_run_goes_on_with_its_steps(tmp_path: Path) -> None:
    kept = Kept()
    pieces = 1
    while not (run := train(tmp_path, logger=kept, seconds=0.0)).complete:
        pieces += 1
    assert pieces > 1
    assert kept.told == expected(run)


def test_a_logger_does_not_change_the_result(tmp_path: Path) -> None:
    with_one, without = train(tmp_path / "a", logger=Kept()), train(tmp_path / "b")
    assert with_one is not None
    assert without is not None
    assert with_one.weights_path.read_bytes() == without.weights_path.read_bytes()
    again = train(tmp_path / "a")  # no other run: the folder is taken
    assert again is not None


def test_lightning_s_own_logger_writes_its_file(tmp_path: Path) -> None:
    run = train(tmp_path / "run", logger=CSVLogger(tmp_path / "logs", name="toy"))
    assert run is not None
    (path,) = (tmp_path / "logs").rglob("metrics.csv")
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "1", "2"]
    dev = [float(row["pretrain/dev"] or row["joint/dev"]) for row in rows]
    assert dev == pytest.approx([e["dev"] for e in run.metrics()])
    assert not (tmp_path / "run" / "logs").exists()


@pytest.mark.parametrize("given", [True, "logs", ["logs"], Kept])
def test_what_is_no_logger_is_refused(tmp_path: Path, given: Any) -> None:
    shown = given[0] if isinstance(given, list) else given
    with pytest.raises(TypeError) as error:
        train(tmp_path, logger=given)
    assert str(error.value) == (
        f"logger must be a logger of Lightning, such as CSVLogger('logs'), or a list of them, not {shown!r}"
    )
    assert not list(tmp_path.iterdir())
