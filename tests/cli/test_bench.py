"""spen bench: every strategy on a small model of each task, the answer for people and programs, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from spen import tasks
from spen.cli.bench import lines
from spen.gradients import Exact
from spen.tasks import bench
from spen.tasks.bench import Report, Timed, time_strategies
from spen.tasks.task import Opened
from tests.cli.world import spen

STRATEGIES = {"Exact()", "Checkpointed()", "ForwardOverReverse()"}


PLAIN = bench._strategies()[:3]  # programs take seconds to be compiled


def fields_of_experts() -> Opened:
    return tasks.find("denoising").fresh("foe-3")


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Every strategy for dp-3 by the command line."""
    answer = spen("bench", "dp-3", "--batch", "2", "--size", "12x16", "--repeats", "1", "--json")
    assert answer.status == 0, answer.err
    whole: dict[str, Any] = json.loads(answer.out)
    return whole


def test_from_the_command_line(trained: dict[str, Any]) -> None:
    assert trained["model"] == "dp-3"
    assert trained["task"] == "denoising"
    assert trained["steps"] == 3
    assert trained["device"] == "cpu" or torch.cuda.is_available()
    check([Timed(**t) for t in trained["strategies"]], trained)


def test_every_strategy_of_a_fresh_model_is_timed() -> None:
    report = time_strategies(tasks.find("multilabel").fresh("bibtex-end-to-end"), batch=2, repeats=1)
    check(report.strategies, asdict(report))


def check(strategies: Sequence[Timed], report: dict[str, Any]) -> None:
    found = {t.strategy: t for t in strategies}
    assert set(found) >= STRATEGIES
    assert any(strategy.startswith("FiniteDifference") for strategy in found)
    assert any(strategy.startswith("Compiled") for strategy in found)
    assert report["batch"] == 2
    assert report["memory"] == "kept for the backward pass"
    possible = [t for t in strategies if t.problem is None]
    assert all(t.milliseconds is not None and t.milliseconds > 0 for t in possible)
    fastest = min(possible, key=lambda t: t.milliseconds or 0.0)
    assert report["fastest"] == fastest.strategy
    assert report["chosen"] in {t.strategy for t in possible}
    assert found["Exact()"].error is None
    assert found["Checkpointed()"].error is not None
    assert found["Checkpointed()"].error < 1e-4


def test_memory_is_what_the_backward_pass_keeps(trained: dict[str, Any]) -> None:
    found = {t["strategy"]: t["memory_mib"] for t in trained["strategies"]}
    exact, replayed = found["Exact()"], found["Checkpointed()"]
    assert exact > 20 * replayed  # activations of a network of 32 channels against iterates
    iterate = 2 * 12 * 16 * 4 / 2**20
    assert 4 * iterate <= replayed <= 14 * iterate


def test_role_labelling_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_strategies", lambda: PLAIN)
    opened = tasks.find("srl").fresh("spen")
    assert opened.batch(2).mask.shape[0] == 2
    opened.model.minimizer.rule.steps = 2
    report = time_strategies(opened, batch=2, repeats=1)
    assert report.steps == 2
    assert {t.strategy for t in report.strategies} >= STRATEGIES


def test_repeats_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = fields_of_experts()
    calls: list[str] = []
    monkeypatch.setattr(bench, "_strategies", lambda: [Exact()])
    monkeypatch.setattr(bench, "_seconds", lambda strategy, *_: calls.append(str(strategy)) or 1.0)
    said: list[str] = []
    report = time_strategies(opened, batch=1, image_size=(12, 16), repeats=5, log=said.append)
    assert calls == ["Exact()"] * 5
    assert said == ["timing Exact() (1 of 1)"]
    assert (report.chosen, report.fastest) == ("Exact()", "Exact()")


def test_the_models_own_strategy_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_strategies", lambda: PLAIN)
    opened = fields_of_experts()
    own = opened.model.minimizer.gradient = Exact()
    before = [p.clone() for p in opened.model.parameters()]
    time_strategies(opened, batch=1, image_size=(12, 16), repeats=1)
    assert opened.model.minimizer.gradient is own
    assert all(torch.equal(a, b) for a, b in zip(before, opened.model.parameters(), strict=True))
    assert all(p.grad is None for p in opened.model.parameters())


def test_the_answer_for_people_puts_the_fastest_first() -> None:
    timed = (
        Timed("Exact()", 20.0, 80.0, None, None),
        Timed("FiniteDifference()", 10.0, 2.0, 7e-4, None),
        Timed("ForwardOverReverse()", None, None, None, "no forward mode"),
    )
    report = Report("FiniteDifference()", "NVIDIA H200", 32, 20, "peak", timed)
    assert lines("dp-20", report) == [
        "dp-20, batch 32, 20 steps, on NVIDIA H200: FiniteDifference() is the fastest",
        "  FiniteDifference()        10.00 ms       2.00 MiB  gradient error 7e-04",
        "  Exact()                   20.00 ms      80.00 MiB  the reference",
        "  ForwardOverReverse()  not possible: no forward mode",
        "  (memory: peak)",
    ]
    assert lines("x", replace(report, steps=1))[0].startswith("x, batch 32, 1 step, ")
    assert lines("x", replace(report, chosen="FiniteDifference()"))[0].endswith("FiniteDifference() is the fastest")
    assert lines("x", replace(report, chosen="Exact()"))[0].endswith(
        "FiniteDifference() is the fastest; Auto would use Exact() at first"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "spen: 'nowhere' is no run folder and no model of the package (depth, dp-3"),
        (["convnet"], "spen: convnet has no descent to differentiate; name a recipe with an energy, dp-3 say"),
        (["bibtex-feedforward"], "spen: bibtex-feedforward has no descent to differentiate"),
        (
            ["dp-3", "--size", "96"],
            "spen: invalid value for '--size': it is HxW in pixels, 8x8 or more, as 96x128, not '96'",
        ),
        (
            ["dp-3", "--size", "4x4"],
            "spen: invalid value for '--size': it is HxW in pixels, 8x8 or more, as 96x128, not '4x4'",
        ),
        (["bibtex-end-to-end", "--size", "8x8"], "spen: --size is an option of denoising, not of multilabel"),
        (["dp-3", "--batch", "0"], "spen: invalid value for '--batch'"),
    ],
    ids=lambda a: " ".join(a) if isinstance(a, list) else "",
)
def test_mistakes_end_in_one_line(arguments: list[str], line: str) -> None:
    answer = spen("bench", *arguments)
    assert answer.status == 2
    assert answer.err.startswith(line), answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_card_that_is_not_there_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = spen("bench", "dp-3", "--device", "cuda")
    assert answer.status == 2
    assert answer.err.startswith("spen: there is no cuda here")
