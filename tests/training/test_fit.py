"""Training: stages, run folders, resuming after SIGKILL bit for bit, DDP, and what is said when it goes wrong."""

from __future__ import annotations

import itertools
import json
import random
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.bundle_entropy import BundleEntropy
from spen.domains import Box, Reals
from spen.energies import Energy, EntropySmoothed, Sum
from spen.gradients import Auto, Checkpointed
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent
from spen.training import (
    DeadEnergyWarning,
    NonFinite,
    Run,
    Stage,
    TensorSource,
    clamped,
    fit,
    joint,
    load_weights,
    pretrain,
)
from spen.training.health import Vitals, explain_non_finite, term_gradients
from tests.training import toy


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = toy.train(tmp_path_factory.mktemp("whole") / "run")
    assert run is not None
    return run


def test_training_lowers_the_loss_and_keeps_the_best(whole: Run) -> None:
    entries = whole.metrics()
    assert [e["stage"] for e in entries] == ["pretrain"] * 2 + ["clamped"] * 2 + ["joint"] * 3
    joint_scores = [e["dev"] for e in entries if e["stage"] == "joint"]
    assert min(joint_scores) < entries[0]["dev"]
    best = load_weights(whole.best(2))
    assert {k: v.tolist() for k, v in whole.load().items()} == {k: v.tolist() for k, v in best.items()}
    assert set(entries[-1]["terms"]) == {"local", "prior", "entropy"}
    assert len(entries[-1]["rates"]) == 3


def test_the_run_folder_says_what_was_done(whole: Run) -> None:
    description = Run.open(whole.folder).description()
    assert description["recipe"] == {"name": "toy", "epochs": 3}
    assert description["seed"] == 0
    assert description["versions"]["torch"] == torch.__version__
    assert description["hardware"]
    assert not list(whole.folder.rglob("*.ckpt"))
    assert not list(whole.folder.rglob("*.pkl"))


def test_the_run_folder_says_which_strategy_was_chosen(tmp_path: Path) -> None:
    model, (train, dev) = toy.build_model(), toy.build_data()
    model.minimizer.gradient = Auto()
    run = fit(model, [joint(EndToEnd(squared_error), epochs=1)], train, dev, toy.MSE(), out=tmp_path, progress=False)
    assert run is not None
    (choice,) = json.loads((run.folder / "strategy.json").read_text())
    assert (choice["strategy"], choice["energy"], choice["steps"]) == ("Exact()", "EntropySmoothed", 3)
    again = toy.build_model()
    again.minimizer.gradient = Auto.from_choice(choice)
    again(torch.randn(8, 6)).output.sum().backward()
    assert again.minimizer.gradient.explain().endswith("given by an earlier choice")


def test_the_best_model_scores_what_the_log_says(whole: Run) -> None:
    model = toy.build_model()
    model.load_state_dict(whole.load())
    model.eval()
    _, dev = toy.build_data()
    with torch.no_grad():
        error = squared_error(model(dev.x).output, dev.target).mean()
    best = min(e["dev"] for e in whole.metrics() if e["stage"] == "joint")
    assert float(error) == pytest.approx(best, rel=1e-5)


def test_killed_and_resumed_runs_end_the_same(whole: Run, tmp_path: Path) -> None:
    """SIGKILL at a random moment, resumed until done: weights equal those of the undisturbed run, bit for bit."""
    chance = random.Random(0)
    metrics = tmp_path / "run" / "metrics.jsonl"
    kills = 0
    for _ in range(8):
        lines = len(metrics.read_text().splitlines()) if metrics.exists() else 0
        process = toy.start(toy.train, tmp_path / "run")
        give_up = time.monotonic() + 60
        while process.is_alive() and time.monotonic() < give_up:  # wait until training proper has begun
            if metrics.exists() and len(metrics.read_text().splitlines()) > lines:
                break
            time.sleep(0.005)
        time.sleep(chance.random() * 0.15)
        if process.is_alive() and kills < 2:
            process.kill()
            kills += 1
        process.join()
        if process.exitcode == 0:
            break
    assert kills >= 1
    resumed, expected = Run.open(tmp_path / "run").load(), whole.load()
    for name, value in expected.items():
        assert torch.equal(resumed[name], value), name
    stages = [(e["stage"], e["epoch"]) for e in Run.open(tmp_path / "run").metrics()]
    assert stages == [(e["stage"], e["epoch"]) for e in whole.metrics()]


def test_pieces_of_time_end_the_same(whole: Run, tmp_path: Path) -> None:
    """Also where a state is written for nothing but the end of the time."""
    pieces = 0
    while not (run := toy.train(tmp_path, seconds=0.0, state_every=1e9)).complete:
        pieces += 1
        assert pieces < 9
    assert pieces == 4, "the last epoch of a stage needs no state"
    assert all(torch.equal(value, whole.load()[name]) for name, value in run.load().items())
    expected, found = ([{k: v for k, v in e.items() if k != "seconds"} for e in r.metrics()] for r in (whole, run))
    assert found == expected


def test_a_state_that_is_written_seldom_changes_nothing(whole: Run, tmp_path: Path) -> None:
    seldom = toy.train(tmp_path, state_every=1e9)
    assert whole.state(2).exists()
    assert not seldom.state(2).exists(), "no epoch of this run lasted so long"
    assert all(torch.equal(value, whole.load()[name]) for name, value in seldom.load().items())


def test_the_seed_matters(whole: Run, tmp_path: Path) -> None:
    other = toy.train(tmp_path / "run", seed=1)
    assert other is not None
    assert any(not torch.equal(v, whole.load()[n]) for n, v in other.load().items())


def test_a_folder_of_another_run_is_refused(whole: Run) -> None:
    with pytest.raises(ValueError, match=r"holds another run \(recipe.epochs: 3 there, 7 now\); give another folder"):
        toy.train(whole.folder, epochs=7)
    with pytest.raises(ValueError, match="is not a run: it has no run.json"):
        Run.open(whole.folder / "state")
    with pytest.raises(ValueError, match="has no trained weights yet"):
        Run.begin(whole.folder.parent / "new", {}, 0).load()


def test_stages_move_what_they_may(tmp_path: Path) -> None:
    source, dev = toy.build_data()
    model = toy.build_model()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    stage = clamped(EndToEnd(squared_error), epochs=1, clamp=("features.*",), learning_rate=0.05)
    fit(model, [stage], source, dev, toy.MSE(), out=tmp_path, accelerator="cpu", progress=False)
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]) == (name.startswith("features.") or name.endswith("net.2.bias")), name
    assert all(p.requires_grad for p in model.parameters())


def test_patience_ends_a_stage_and_keeps_its_best(tmp_path: Path) -> None:
    source, dev = toy.build_data()
    stage = joint(EndToEnd(squared_error), epochs=50, learning_rate=0.2, patience=2)
    run = fit(toy.build_model(), [stage], source, dev, toy.MSE(), out=tmp_path, accelerator="cpu", progress=False)
    assert run is not None
    scores = [e["dev"] for e in run.metrics()]
    assert len(scores) < 50
    assert len(scores) - 1 - scores.index(min(scores)) == 2


@pytest.mark.parametrize("keep", [False, True])
def test_a_stage_that_only_overfits_can_be_undone(tmp_path: Path, keep: bool) -> None:
    """A last stage whose learning rate wrecks the model: with keep_start, what it started from is the result."""
    source, dev = toy.build_data()
    objective = EndToEnd(squared_error)
    good = joint(objective, epochs=3, learning_rate=0.01)
    wreck = Stage(name="wreck", objective=objective, epochs=2, learning_rate=10.0, patience=1, keep_start=keep)
    run = fit(toy.build_model(), [good, wreck], source, dev, toy.MSE(), out=tmp_path, accelerator="cpu", progress=False)
    assert run is not None
    best, last = load_weights(run.best(0)), run.load()
    assert all(torch.equal(best[name], value) for name, value in last.items()) == keep
    wrecked = [e for e in run.metrics() if e["stage"] == "wreck"]
    assert len(wrecked) == (1 if keep else 2)  # patience counts from the start that is kept
    assert any(e["best"] for e in wrecked) != keep


def test_options_of_a_stage_do_something(tmp_path: Path) -> None:
    def trained(**options: float) -> Tensor:
        source, dev = toy.build_data()
        model = toy.build_model()
        stage = Stage(name="s", objective=EndToEnd(squared_error), epochs=1, learning_rate=0.01, **options)  # type: ignore[arg-type]
        fit(
            model, [stage], source, dev, toy.MSE(), out=tmp_path / str(next(folders)), accelerator="cpu", progress=False
        )
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    folders = itertools.count()
    plain = trained()
    assert torch.equal(trained(), plain)
    for name, value in {"clip": 1e-3, "warmup": 50, "decay_to": 0.01, "weight_decay": 0.5, "epsilon": 1e-2}.items():
        assert not torch.equal(trained(**{name: value}), plain), name


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda: pretrain(squared_error, epochs=0),
            "stage 'pretrain' needs a whole number of epochs, at least one, and a positive",
        ),
        (lambda: joint(squared_error, epochs=1.5), "stage 'joint' needs a whole number of epochs, .* not 1.5 and"),  # type: ignore[arg-type]
        (lambda: joint(EndToEnd(squared_error), epochs=1, epsilon=0.0), "stage 'joint': epsilon must be positive"),
        (lambda: joint(EndToEnd(squared_error), epochs=1, decay_to=0.0), r"decay_to must lie in \(0, 1\], not 0.0"),
        (
            lambda: clamped(EndToEnd(squared_error), epochs=1, clamp=("nothing.*",)).trained(toy.build_model()),
            r"stage 'clamped' clamps 'nothing\.\*', which names no parameter",
        ),
        (
            lambda: clamped(EndToEnd(squared_error), epochs=1, clamp=("*",)).trained(toy.build_model()),
            "clamps every parameter: there is nothing to train",
        ),
        (lambda: TensorSource(torch.ones(3), torch.ones(4), 2), r"must have the same number of examples, not \[3, 4\]"),
        (lambda: TensorSource(torch.ones(3), torch.ones(3), 0), "a batch has at least one example, not 0"),
    ],
)
def test_mistakes_are_named(build: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()  # type: ignore[operator]


class Explosive(Energy):
    """Finite for ten descents, then log of a negative number for one example."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.weight * torch.log(3 - y).sum(1)


class Quiet(Energy):
    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1) * power)

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.weight * (y - features).square().sum(1)


def _real_model(energy: nn.Module, rate: float = 1.0, steps: int = 5) -> spen.SPEN:
    return spen.SPEN(
        energy=energy,
        init=nn.Identity(),
        minimizer=spen.Minimizer(Reals(), GradientDescent(steps, rate), Checkpointed()),
    )


def test_a_non_finite_energy_stops_with_step_term_and_batch(tmp_path: Path) -> None:
    model = _real_model(Sum(local=Quiet(), prior=Explosive()))
    x = torch.zeros(8, 2)
    x[5] = 2.5
    source = TensorSource(x, torch.zeros(8, 2), 4, shuffle=False)
    stage = joint(EndToEnd(squared_error), epochs=1)
    sentence = r"the term 'prior' is not finite at step \d of the descent, examples \[1\] of batch 1 in epoch 0"
    with pytest.raises(NonFinite, match=sentence):
        fit(model, [stage], source, source, toy.MSE(), out=tmp_path, accelerator="cpu", progress=False)


def test_non_finite_init_and_backward_are_told_apart() -> None:
    model = _real_model(Quiet())
    assert "Init returned numbers that are not finite, examples [1] of batch 3" in str(
        explain_non_finite(model, torch.tensor([[0.0], [torch.nan]]), "batch 3")
    )
    model.energy.weight.grad = torch.tensor([torch.inf])
    assert "back-propagating it is not, in energy.weight, batch 3" in str(
        explain_non_finite(model, torch.zeros(2, 1), "batch 3")
    )


def test_a_minimizer_without_a_step_rule_is_explained_too(tmp_path: Path) -> None:
    energy = EntropySmoothed(Quiet(0.1), over="box")
    model = spen.SPEN(energy=energy, init=nn.Identity(), minimizer=BundleEntropy(Box("logits"), 4))  # type: ignore[arg-type]
    target = torch.ones(8, 2)
    target[6] = torch.nan
    source = TensorSource(torch.zeros(8, 2), target, 4, shuffle=False)
    stage = joint(EndToEnd(squared_error, weights="last"), epochs=1)
    with pytest.raises(NonFinite, match="finite at every step, but the loss of batch 1 in epoch 0 is nan: check the"):
        fit(model, [stage], source, source, toy.MSE(), out=tmp_path, accelerator="cpu", progress=False)
    sentence = "the energy of the term 'Quiet' is not finite at step 0 of the descent, examples [1] of batch 3"
    model.init = Middle()
    assert sentence in str(explain_non_finite(model, torch.tensor([[0.0], [torch.inf]]), "batch 3"))


class Middle(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return torch.zeros_like(features)


def test_a_dead_global_energy_is_reported_while_training(tmp_path: Path) -> None:
    class Dying(Energy):
        """A unit that one large update switches off for good, as a softplus far on its flat side."""

        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, y: Tensor, features: Tensor) -> Tensor:
            return nn.functional.softplus(-y + self.bias, beta=25).sum(1)

    model = _real_model(Sum(local=Quiet(0.1), prior=Dying()), rate=0.5)
    x = torch.rand(16, 2) * 0.1
    source = TensorSource(x, x.clone(), 4)
    stage = joint(EndToEnd(squared_error), epochs=12, learning_rate=0.3, clip=None)
    with pytest.warns(DeadEnergyWarning, match=r"the term 'prior' of the energy is dead: its gradient in y fell from"):
        run = fit(
            model, [stage], source, source, toy.MSE(), out=tmp_path, accelerator="cpu", progress=False, vitals_every=1
        )
    assert run is not None
    assert any("is dead" in report for entry in run.metrics() for report in entry["reports"])


def test_vitals_speak_once() -> None:
    vitals = Vitals(looks=2)
    assert vitals.observe({"prior": 1.0, "local": 2.0}) == []
    assert vitals.observe({"prior": 0.0, "local": 1.0}) == []  # one silent batch is no death
    assert vitals.observe({"prior": 0.5, "local": 1.0}) == []
    assert vitals.observe({"prior": 1e-9, "local": 1.0}) == []
    with pytest.warns(DeadEnergyWarning):
        assert len(vitals.observe({"prior": 1e-9, "local": 1.0})) == 1
    assert vitals.observe({"prior": 1e-9, "local": 1.0}) == []


def test_term_gradients_by_value() -> None:
    model = _real_model(Sum(local=Quiet(), prior=Quiet(0.5)), rate=0.1, steps=1)
    model.init = nn.Linear(2, 2)
    x = torch.randn(4, 2)
    y = model(x).output.detach()
    beside = y + 0.1 * y.std() * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    sizes = term_gradients(model, x)
    expected = max(float((2 * (point - x)).square().mean().sqrt()) for point in (y, beside))
    assert sizes["local"] == pytest.approx(expected, rel=1e-5)
    assert sizes["prior"] == pytest.approx(sizes["local"] / 2, rel=1e-5)


def test_metrics_survive_a_line_cut_short(tmp_path: Path) -> None:
    run = Run.begin(tmp_path, {}, 0)
    run.record({"stage": "a", "epoch": 0, "dev": 1.0})
    run.record({"stage": "a", "epoch": 0, "dev": 2.0})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"stage": "a", "ep')
    assert run.metrics() == [{"stage": "a", "epoch": 0, "dev": 1.0}]
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json cannot be read"):
        run.description()
    assert json.dumps(run.metrics())
