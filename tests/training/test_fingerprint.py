"""A run folder answers for one run only: whatever changes the result is refused by name, or trained anew."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.loggers.logger import DummyLogger
from torch import Tensor, nn

import spen
import spen.domains
import spen.gradients
import spen.objectives
import spen.rules
from spen.descent.convergence import RelativeChange
from spen.domains import Box, Domain, Simplex
from spen.energies import EntropySmoothed, Linear, Sum
from spen.gradients import Checkpointed, Compiled, Exact, FiniteDifference, GradientStrategy
from spen.objectives import (
    EndToEnd,
    Feedforward,
    Hamiltonian,
    binary_log_loss,
    squared_error,
)
from spen.protocols import Objective, StepRule
from spen.rules import GradientDescent, Momentum
from spen.training import Stage, TensorSource, fit
from spen.training.fingerprint import describe, differences, fingerprint, hash_weights
from tests.training import toy

STAGE = Stage(name="joint", objective=EndToEnd(squared_error), epochs=1)


def _options(out: Path) -> dict[str, Any]:
    train, dev = toy.build_data()
    return {
        "model": toy.build_model(),
        "stages": [STAGE],
        "train": train,
        "dev": dev,
        "metric": toy.MSE(),
        "out": out,
        "accelerator": "cpu",
        "progress": False,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    assert fit(**_options(out)) is not None
    return out


def _refused(out: Path, **changes: Any) -> str:
    with pytest.raises(ValueError, match="holds another run") as refusal:
        fit(**{**_options(out), **changes})
    return str(refusal.value)


# ── what fit says ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_run_was_finished_earlier(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "metrics.jsonl").read_text()
    run = fit(**_options(finished))
    assert run is not None
    assert capsys.readouterr().err == f"finished earlier, nothing trained: the weights are those of {finished}\n"
    assert (finished / "metrics.jsonl").read_text() == before


def test_a_refusal_names_what_differs_and_what_to_do(finished: Path) -> None:
    message = _refused(finished, stages=[replace(STAGE, objective=EndToEnd(binary_log_loss), clip=0.5)])
    assert message == (
        f"{finished} holds another run (stage.joint.objective.loss: squared_error there, binary_log_loss now; "
        "stage.joint.clip: nothing there, 0.5 now); give another folder, or delete it to start anew. If the difference "
        "does not matter, delete its fingerprint.json to go on with it"
    )


def test_many_differences_are_counted() -> None:
    words = differences({str(i): i for i in range(9)}, {str(i): -i for i in range(9)})
    assert words.startswith("1: 1 there, -1 now; 2: 2 there, -2 now; ")
    assert words.endswith("; and 2 more")
    assert len(differences({"a": "x" * 500}, {"a": "y" * 500})) < 300


def test_other_first_weights_are_said(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(**{**_options(finished), "model": toy.build_model(5)})
    said = f"the weights of the model are not those that {finished} began with; those of the run replace them\n"
    assert said in capsys.readouterr().err


def test_a_folder_without_a_fingerprint_is_not_vouched_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(**_options(tmp_path))
    (tmp_path / "fingerprint.json").unlink()
    fit(**_options(tmp_path))
    said = f"{tmp_path} has no fingerprint.json: whether it holds the run that is asked for is not known\n"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "fingerprint.json").exists()


def test_a_fingerprint_that_cannot_be_read(tmp_path: Path) -> None:
    fit(**_options(tmp_path))
    (tmp_path / "fingerprint.json").write_text("{")
    with pytest.raises(ValueError, match=r"fingerprint\.json cannot be read"):
        fit(**_options(tmp_path))


# ── every option of fit and Stage ─────────────────────────────────────────────────────────────────────────────────────

NO_PART: dict[str, Any] = {
    "out": None,
    "accelerator": "auto",
    "devices": 2,
    "nodes": 2,
    "progress": True,
    "vitals_every": 0,
    "seconds": 1.0,
    "state_every": 9.0,
    "logger": DummyLogger(),
}
"""Options of fit that do not change the result, as docs/training.md says, with other values."""

OF_FIT: dict[str, tuple[Callable[[], Any], str]] = {
    "model": (lambda: _with(gradient=Exact()), "minimizer.(whole).gradient"),
    "stages": (lambda: [replace(STAGE, epochs=2)], "stage.joint.epochs: 1 there, 2 now"),
    "train": (lambda: toy.build_data(4)[0], "train.batch_size: 8 there, 4 now"),
    "dev": (lambda: replace_last(toy.build_data()[1]), "dev.target: float32 (32, 3, 4) "),
    "metric": (lambda: toy.MSE(squared=False), "metric options.squared: True there, False now"),
    "seed": (lambda: 1, "seed: 0 there, 1 now"),
    "recipe": (lambda: {"width": 2}, "recipe.width: nothing there, 2 now"),
    "precision": (lambda: "bf16-mixed", "precision: nothing there, bf16-mixed now"),
    "higher_is_better": (lambda: False, "higher_is_better: nothing there, False now"),
}

OF_STAGE: dict[str, Any] = {
    "name": "other",
    "objective": Feedforward(squared_error),
    "clamp": ("features.*",),
    "patience": 3,
    "clip": 1.0,
    "seconds": 1e6,
    "decay_to": 0.5,
    "average": 0.5,
    "keep_start": True,
}


def _with(**options: Any) -> spen.SPEN:
    model = toy.build_model()
    for name, value in options.items():
        setattr(model.minimizer, name, value)
    return model


def replace_last(source: TensorSource) -> TensorSource:
    target = source.target.clone()
    target[-1, -1, -1] += 1e-6
    return TensorSource(source.x, target, source.batch_size, shuffle=False)


@pytest.mark.parametrize("name", inspect.signature(fit).parameters)
def test_every_option_of_fit_is_compared_or_changes_nothing(name: str, finished: Path) -> None:
    if name in NO_PART:
        assert fit(**{**_options(finished), **({} if name == "out" else {name: NO_PART[name]})}) is not None
        return
    build, sentence = OF_FIT[name]
    assert sentence in _refused(finished, **{name: build()})


def test_options_that_change_nothing_are_documented() -> None:
    text = (toy.ROOT / "docs" / "training.md").read_text()
    assert all(f"`{name}`" in text for name in NO_PART)


@pytest.mark.parametrize("name", [f.name for f in fields(Stage)])
def test_every_option_of_a_stage_is_compared(name: str, finished: Path) -> None:
    changed = replace(STAGE, **{name: OF_STAGE[name] if name in OF_STAGE else _other(getattr(STAGE, name))})
    where = "stages: joint there, other now" if name == "name" else f"(stage.joint.{name}"
    assert where in _refused(finished, stages=[changed])


# ── every option of rules, domains, objectives, strategies ────────────────────────────────────────────────────────────


def _network_loss(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().flatten(1).sum(1)


OTHER: dict[str, Any] = {
    "backtracks": 2,
    "draw_steps": (2, 3),
    "rate_limit": 0.5,
    "rule": Momentum(3, 0.1),
    "loss": binary_log_loss,
    "anchor_loss": binary_log_loss,
    "value": binary_log_loss,
    "truth": torch.relu,
    "weights": "last",
    "start": "init",
    "sampler": Hamiltonian(),
    "fit": "squared",
    "draw": ("truth",),
    "player": "energy",
    "direction": "towards",
    "probes": None,
    "through": FiniteDifference(),
    "precision": torch.bfloat16,
    "radius": 1e-3,
    "rows": 2,
    "fuse": False,
    "graphs": False,
    "compiled": False,
    "update": "through_logits",
    "rate": 0.7,
    "margin": 0.2,
    "keep": 0.5,
    "domain": Box("logits"),
    "gradient": Exact(),
    "stop": RelativeChange(1e-3),
    "dim": 1,
}
"""Another value of an option, where a number plus one or the other truth value is not one."""

FIRST: dict[str, Any] = {
    "loss": squared_error,
    "value": squared_error,
    "steps": 3,
    "tolerance": 1e-3,
    "domain": Simplex(),
    "rule": GradientDescent(3, 0.1),
}
"""What constructors ask for."""


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    assert isinstance(value, int | float), "an option without another value: name one in OTHER or OF_STAGE"
    return value + 1 if isinstance(value, int) else value * 0.5 if value else 0.25


def _cases(module: Any, kind: type) -> Iterator[Any]:
    for class_ in vars(module).values():
        if not (inspect.isclass(class_) and issubclass(class_, kind)) or inspect.isabstract(class_):
            continue
        for option, parameter in inspect.signature(class_).parameters.items():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                yield pytest.param(class_, option, id=f"{class_.__name__}-{option}")


def _made(class_: type, **options: Any) -> Any:
    needed = [n for n, p in inspect.signature(class_).parameters.items() if p.default is p.empty]
    return class_(**{**{n: FIRST[n] for n in needed if n in FIRST}, **options})


def _changed(class_: type, option: str) -> Any:
    default = inspect.signature(class_).parameters[option].default
    value = OTHER[option] if option in OTHER else _other(FIRST.get(option, default))
    if class_ is Compiled and option == "through":
        value = Checkpointed()
    return _made(class_, **{option: value})


PARTS = [
    *_cases(spen.objectives, Objective),
    *_cases(spen.objectives, spen.objectives.Sampler),
    *_cases(spen.gradients, GradientStrategy),
    *_cases(spen.domains, Domain),
    *_cases(spen.rules, StepRule),
]


@pytest.mark.parametrize(("class_", "option"), PARTS)
def test_every_option_of_a_part_is_in_the_description(class_: type, option: str) -> None:
    first, again, changed = (describe(p) for p in (_made(class_), _made(class_), _changed(class_, option)))
    assert first == again
    if class_ is spen.rules.LearnedOptimizer and option == "rate":
        return  # a learned rate is a first weight
    assert first != changed


def test_parts_are_found() -> None:
    assert {"EndToEnd-loss", "Langevin-rate", "Truncated-steps", "Box-update", "Momentum-decay"} <= {
        p.id for p in PARTS
    }


def test_a_first_weight_is_no_option_but_is_seen() -> None:
    slow, fast = toy.build_model(), toy.build_model()
    fast.minimizer.rule = Momentum(3, 0.7, decay=0.25, learn_rates=True)
    train, dev = toy.build_data()
    prints = [fingerprint(m, [STAGE], train, dev, toy.MSE(), 1) for m in (slow, fast)]
    assert prints[0] == prints[1]
    assert hash_weights(slow) != hash_weights(fast)
    assert hash_weights(slow) == hash_weights(toy.build_model())


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: _with(domain=Simplex("mirror")), "minimizer.domain.update: logits there, mirror now"),
        (lambda: _with(rule=GradientDescent(3, 0.5)), "minimizer.rule"),
        (lambda: _with(rule=Momentum(4, 0.5, decay=0.25, learn_rates=True)), "minimizer.rule.steps: 3 there, 4 now"),
        (lambda: _with(gradient=Checkpointed()), "gradient"),
        (lambda: _with(stop=RelativeChange(1e-3)), "minimizer.(whole).stop"),
        (lambda: _energy(Sum(local=Linear(), prior=toy.Global())), "energy.(whole)"),
        (lambda: _energy(EntropySmoothed(Sum(local=Linear(), prior=toy.Global()), 2.0)), "energy.entropy.weight"),
        (lambda: _energy(EntropySmoothed(Sum(local=Linear(), other=toy.Global()), 1.0)), "energy.energy.parts.other"),
        (lambda: _wider(), "energy.energy.parts.prior.net.0.options: in_features=4, out_features=8"),
    ],
)
def test_another_model_is_refused_by_name(build: Callable[[], spen.SPEN], name: str, finished: Path) -> None:
    assert name in _refused(finished, model=build())


def _energy(energy: nn.Module) -> spen.SPEN:
    model = toy.build_model()
    model.energy = energy
    return model


def _wider() -> spen.SPEN:
    prior = toy.Global()
    prior.net = nn.Sequential(nn.Linear(4, 9), nn.Softplus(), nn.Linear(9, 1))
    return _energy(EntropySmoothed(Sum(local=Linear(), prior=prior), 1.0))
