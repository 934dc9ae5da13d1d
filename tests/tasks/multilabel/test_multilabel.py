"""The multi-label task: metrics against scikit-learn, energies by contract, recipes built and trained, compare."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from spen.domains import Box
from spen.energies import EntropySmoothed, Linear
from spen.gradients import Exact, Implicit, Truncated
from spen.models import open_model
from spen.objectives import EndToEnd, binary_log_loss
from spen.storage import write_json
from spen.tasks.multilabel import compare as comparing
from spen.tasks.multilabel.build import build_model, build_stages
from spen.tasks.multilabel.energy import LabelNetwork, Present, label_energy
from spen.tasks.multilabel.features import LabelFeatures, LabelMLP, ScoresAsLogits, UnitRows, scores_of
from spen.tasks.multilabel.losses import F1AndLog, hamming, soft_f1
from spen.tasks.multilabel.metrics import THRESHOLDS, TunedExampleF1, scores, tune_threshold
from spen.tasks.multilabel.objectives import as_pairs, on_present
from spen.tasks.multilabel.recipes import RECIPES, WAYS, MultilabelRecipe, find_recipe
from spen.tasks.multilabel.tables import Schema
from spen.tasks.multilabel.train import evaluate, train
from spen.testing import check_energy
from tests.tasks.multilabel.small import small_splits

TINY = {"hidden": (16,), "network": (8,), "pretrain_epochs": 2, "epochs": 1, "batch_size": 70, "dropout": 0.1}


def test_metrics_are_scikit_learns() -> None:
    y, truth = torch.rand(40, 7), (torch.rand(40, 7) < 0.3).float()
    truth[0] = 0
    y[0] = 0
    found = scores(y, truth, 0.6)
    chosen, gold = (y > 0.6).numpy(), truth.numpy().astype(int)
    for name, average in (("example", "samples"), ("micro", "micro"), ("macro", "macro")):
        assert getattr(found, name) == pytest.approx(100 * f1_score(gold, chosen, average=average, zero_division=0))


def test_the_threshold_is_the_best_of_the_grid_and_the_metric_its_score() -> None:
    truth = (torch.rand(60, 5) < 0.4).float()
    y = (0.12 * truth + 0.1 * torch.rand(60, 5)).clamp(0, 1)
    cut = tune_threshold(y, truth)
    assert 0.05 < cut < 0.2
    best = max(scores(y, truth, c).example for c in THRESHOLDS)
    assert scores(y, truth, cut).example == best
    metric = TunedExampleF1()
    metric.update(y[:25], truth[:25])
    metric.update(as_pairs(y[25:]), truth[25:])
    assert float(metric.compute()) == pytest.approx(best)


def test_losses_by_value() -> None:
    target = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    sets = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    assert soft_f1(sets, target).tolist() == pytest.approx([0.5, 1.0])
    assert hamming(sets, target).tolist() == [2, 1]
    y = torch.rand(2, 3)
    assert torch.allclose(F1AndLog(0.3)(y, target), soft_f1(y, target) + 0.3 * binary_log_loss(y, target))
    assert torch.allclose(on_present(soft_f1, True)(as_pairs(y), target), soft_f1(y, target))
    with pytest.raises(ValueError, match="must not be negative"):
        F1AndLog(-1)


def features(batch: int = 4, hidden: int = 6, labels: int = 5) -> LabelFeatures:
    return LabelFeatures(
        torch.randn(batch, hidden, dtype=torch.float64), torch.randn(batch, labels, dtype=torch.float64)
    )


@pytest.mark.parametrize("context", [0, 6])
@pytest.mark.parametrize("pairs", [False, True])
def test_the_energy_keeps_its_contract(context: int, pairs: bool) -> None:
    energy = label_energy(LabelNetwork(5, (7, 4), context=context), pairs=pairs).double()
    y = 0.2 + 0.6 * torch.rand(4, 5, dtype=torch.float64)
    check_energy(energy, as_pairs(y) if pairs else y, features())


def test_the_energy_by_hand_and_the_same_over_pairs() -> None:
    network = LabelNetwork(5, (7,), context=6).double()
    box, pairs = label_energy(network, entropy=0.7), label_energy(network, entropy=0.7, pairs=True)
    y, f = torch.rand(4, 5, dtype=torch.float64), features()
    hidden = y @ network.first.weight.T + network.first.bias + f.hidden @ network.context.weight.T  # type: ignore[union-attr]
    expected = torch.log1p(torch.exp(hidden)) @ network.last.weight[0] - (f.scores * y).sum(1)
    expected = expected + 0.7 * (y * y.log() + (1 - y) * (1 - y).log()).sum(1)
    assert torch.allclose(box(y, f), expected)
    assert torch.allclose(pairs(as_pairs(y), f), expected)
    assert isinstance(pairs.energy, Present)
    with pytest.raises(ValueError, match="at least one hidden layer"):
        LabelNetwork(5, ())


def test_without_a_global_term_the_descent_stays_at_the_feed_forward_answer() -> None:
    recipe = MultilabelRecipe(name="t", way="end-to-end", hidden=(6,))
    model = build_model(recipe, Schema.numbered(3, 5)).eval()
    model.energy = EntropySmoothed(Linear(scores_of), over="box")
    x = torch.rand(4, 3)
    assert torch.allclose(model(x).output, model.feedforward(x), atol=1e-6)


def test_the_features() -> None:
    x = torch.rand(3, 12)
    assert torch.allclose(UnitRows(10.0)(x).norm(dim=1), torch.full((3,), 10.0))
    assert bool(UnitRows(1.0)(torch.zeros(1, 4)).isfinite().all())
    mlp = LabelMLP(12, 5, (7, 6), radius=2.0, input_dropout=0.3).eval()
    hidden, found = mlp(x)
    assert (hidden.shape, found.shape) == ((3, 6), (3, 5))
    assert torch.equal(ScoresAsLogits()(mlp(x)), found)
    pairs = ScoresAsLogits(pairs=True)(mlp(x))
    assert torch.allclose(torch.softmax(pairs, -1)[..., 1], torch.sigmoid(found))
    with pytest.raises(ValueError, match="radius must be positive"):
        UnitRows(0)
    with pytest.raises(ValueError, match="at least one hidden layer"):
        LabelMLP(3, 2, ())


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_built_and_trains_two_steps(name: str, tmp_path: Path) -> None:
    changes = {**TINY, "pretrain_epochs": 2 if name.endswith("implicit") else 1}
    recipe = replace(RECIPES[name], **changes)
    model, result = train(recipe, tmp_path, splits=small_splits(), progress=False)
    assert 0 <= result.test.example <= 100
    assert json.loads((tmp_path / "result.json").read_text())["recipe"] == name
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_recipes_differ_as_they_say() -> None:
    def strategy(way: str) -> object:
        return build_model(RECIPES[f"bibtex-{way}"], Schema.numbered(4, 3)).minimizer.gradient

    assert isinstance(strategy("end-to-end"), Exact)
    assert isinstance(strategy("truncated"), Truncated)
    assert isinstance(strategy("implicit"), Implicit)
    stages = build_stages(replace(RECIPES["bibtex-end-to-end"], clamped_epochs=2))
    assert [s.name for s in stages] == ["pretrain", "clamped", "end-to-end"]
    assert isinstance(stages[-1].objective, EndToEnd)
    assert [s.name for s in build_stages(RECIPES["bibtex-feedforward"])] == ["feedforward"]
    assert RECIPES["bibtex-feedforward"].published == 38.9
    with pytest.raises(ValueError, match="there is no way 'magic'"):
        MultilabelRecipe(name="t", way="magic")
    with pytest.raises(ValueError, match='domain must be "box" or "simplex"'):
        MultilabelRecipe(name="t", way="end-to-end", domain="ball")  # type: ignore[arg-type]


DENSITIES = ("contrastive-langevin", "contrastive-hamiltonian", "score-matching")


@pytest.mark.parametrize("way", WAYS)
def test_a_way_has_its_own_rate_and_decay_unless_others_are_given(way: str) -> None:
    recipe = RECIPES[f"bibtex-{way}"]
    stage = build_stages(recipe)[-1]
    assert (stage.name, stage.epochs) == (way, 16 if way == "feedforward" else 6)
    assert stage.learning_rate == (1e-4 if way in DENSITIES else 1e-3)
    assert stage.decay_to == (1.0 if way == "feedforward" else 0.02)
    assert (stage.weight_decay, stage.patience, stage.clip) == (0.0, None, None)
    given = {"learning_rate": "0.5", "decay_to": "0.3", "weight_decay": "0.1", "patience": "2", "clip": "1.5"}
    stage = build_stages(recipe.with_options(**given))[-1]
    assert [str(getattr(stage, key)) for key in given] == list(given.values())
    assert build_stages(comparing.changed(recipe.with_options(**given), "score-matching"))[-1].learning_rate == 0.5
    assert build_stages(comparing.changed(recipe, "score-matching"))[-1].learning_rate == 1e-4


def test_feedforward_trains_at_the_rate_of_pretraining_unless_another_is_given() -> None:
    recipe = replace(RECIPES["bibtex-feedforward"], pretrain_rate=0.2)
    assert build_stages(recipe)[0].learning_rate == 0.2
    assert build_stages(replace(recipe, learning_rate=0.1))[0].learning_rate == 0.1


def test_a_recipe_survives_its_description_and_takes_text() -> None:
    recipe = RECIPES["bibtex-implicit"]
    assert MultilabelRecipe.from_description(json.loads(json.dumps(recipe.describe()))) == recipe
    with pytest.raises(ValueError, match="the run is of task 'srl', not of label sets"):
        MultilabelRecipe.from_description({"task": "srl"})
    changed = recipe.with_options(
        hidden="40x20", radius="none", dropout="0.5", context="false", steps="3", patience="2", domain="box"
    )
    assert changed == replace(
        recipe, hidden=(40, 20), radius=None, dropout=0.5, context=False, steps=3, patience=2, domain="box"
    )
    for options, sentence in (
        ({"steps": "x"}, "steps is a whole number, not 'x'"),
        ({"dropout": "x"}, "dropout is a finite number, not 'x'"),
        ({"radius": "x"}, "radius is a finite number or none, not 'x'"),
        ({"patience": "x"}, "patience is a whole number or none, not 'x'"),
        ({"way": "magic"}, "recipe bibtex-implicit has no option 'way'; it has hidden, radius"),
    ):
        with pytest.raises(ValueError, match=sentence):
            recipe.with_options(**options)
    with pytest.raises(ValueError, match="there is no multilabel recipe 'x'; there are labels, bibtex-feedforward"):
        find_recipe("x")


def test_a_run_is_opened_again(tmp_path: Path) -> None:
    made = train(replace(RECIPES["bibtex-end-to-end"], **TINY), tmp_path, splits=small_splits())
    assert made is not None
    opened = open_model(tmp_path)
    again = evaluate(opened.recipe, opened.model, small_splits())
    assert (again.dev, again.test, again.threshold) == (made[1].dev, made[1].test, made[1].threshold)


def test_box_and_simplex_give_the_same_answers() -> None:
    """sigmoid(l) is softmax(0, l), and the difference of a pair's logits moves as the logit of the box does."""
    x = torch.rand(5, 12)
    answers = []
    for domain, rate in (("box", 0.4), ("simplex", 0.4)):
        torch.manual_seed(0)
        recipe = MultilabelRecipe(name="t", way="end-to-end", hidden=(8,), domain=domain, rate=rate)  # type: ignore[arg-type]
        output = build_model(recipe, Schema.numbered(12, 5)).eval()(x).output
        answers.append(output if domain == "box" else output[..., 1])
    assert torch.allclose(answers[0], answers[1], atol=1e-5)


def test_a_trained_model_beats_chance(tmp_path: Path) -> None:
    changes = {**TINY, "pretrain_epochs": 15, "epochs": 5, "batch_size": 20, "pretrain_rate": 0.01}
    _, result = train(replace(RECIPES["bibtex-end-to-end"], **changes), tmp_path, splits=small_splits())
    everything = scores(torch.ones(50, 5), small_splits().test.y, 0.5).example
    assert result.test.example > everything + 8
    assert result.steps_used == 5


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[comparing.Attempt]]:
    out = tmp_path_factory.mktemp("compare")
    recipe = MultilabelRecipe(name="t", way="end-to-end", **TINY)  # type: ignore[arg-type]
    ways = ["feedforward", "end-to-end", "deep-value"]
    found = comparing.compare(recipe, out, ways=ways, seeds=(0, 1), updates=4, splits=small_splits(), progress=False)
    return out, found


def test_compare_gives_every_way_the_same_budget_and_a_table(
    attempts: tuple[Path, list[comparing.Attempt]],
) -> None:
    out, found = attempts
    assert [(a.way, a.seed) for a in found] == [
        (w, s) for s in (0, 1) for w in ("feedforward", "end-to-end", "deep-value")
    ]
    assert all(len(a.curve) == 2 and a.problem is None for a in found), "4 updates are two epochs of two batches"
    assert found[1].kept_mib > found[0].kept_mib > 0
    assert found[0].steps_used == 0
    assert found[1].steps_used == 5
    text = (out / "table.md").read_text()
    assert text.count("±") == 12
    assert json.loads((out / "results.json").read_text())[2]["way"] == "deep-value"
    comparing.plot(found, out / "plot.png")
    assert (out / "plot.png").stat().st_size > 5000


def test_compare_goes_on_where_it_stopped_and_takes_seconds(attempts: tuple[Path, list[comparing.Attempt]]) -> None:
    out, found = attempts
    recipe = MultilabelRecipe(name="t", way="end-to-end", **TINY)  # type: ignore[arg-type]
    options = {"splits": small_splits(), "progress": False}
    again = comparing.compare(recipe, out, ways=["deep-value"], seeds=(1,), updates=4, **options)  # type: ignore[arg-type]
    assert again == [found[-1]]
    timed = comparing.compare(recipe, out / "timed", ways=["feedforward"], seconds=0.5, **options)  # type: ignore[arg-type]
    assert 0.4 < timed[0].seconds < 20
    assert timed[0].dev is not None


def test_compare_refuses_a_folder_where_something_else_was_asked(tmp_path: Path) -> None:
    recipe = MultilabelRecipe(name="t", way="end-to-end", **TINY)  # type: ignore[arg-type]
    asked = {"ways": ["feedforward"], "updates": 1, "splits": small_splits(), "progress": False}
    first = comparing.compare(recipe, tmp_path, **asked)  # type: ignore[arg-type]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    fewer = {**asked, "ways": ["feedforward", "feedforward-f1"], "splits": small_splits(size=230)}
    for other, options, what in (
        (recipe, {**asked, "updates": 20}, "budget"),
        (recipe, {**asked, "updates": None, "seconds": 0.5}, "budget"),
        (recipe, fewer, "data set"),
        (replace(recipe, rate=0.1), asked, "recipe"),
        (replace(recipe, epochs=2), {**asked, "updates": None}, "recipe or budget"),
    ):
        sentence = f"{tmp_path} holds a comparison of another {what}; give another folder, or delete it to start anew"
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            comparing.compare(other, tmp_path, **options)  # type: ignore[arg-type]
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert comparing.compare(replace(recipe, name="u", way="implicit"), tmp_path, **asked) == first  # type: ignore[arg-type]
    (tmp_path / "asked.json").unlink()
    with pytest.raises(ValueError, match="holds a comparison of another recipe or budget or data set"):
        comparing.compare(recipe, tmp_path, **asked)  # type: ignore[arg-type]


def test_compare_records_a_refusal_and_names_misuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = MultilabelRecipe(name="t", way="end-to-end", **TINY)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no way magic"):
        comparing.compare(recipe, tmp_path, ways=["magic"], splits=small_splits())
    with pytest.raises(ValueError, match="in seconds or in updates"):
        comparing.compare(recipe, tmp_path, seconds=1, updates=1, splits=small_splits())
    refused = comparing.Attempt("implicit", 0, problem="Implicit needs a minimiser")
    assert "| implicit | Implicit needs a minimiser |" in comparing.table([refused])
    write_json(tmp_path / "a.json", asdict(refused))
    assert comparing.read_attempt(tmp_path / "a.json") == refused


def test_every_way_has_a_sentence() -> None:
    assert all(len(way.about) > 10 for way in WAYS.values())
    assert isinstance(build_model(RECIPES["bibtex-end-to-end"], Schema.numbered(4, 3)).minimizer.domain, Box)


def test_the_command(tmp_path: Path) -> None:
    import typer
    from typer.testing import CliRunner

    from spen.tasks.multilabel.commands import compare

    app = typer.Typer()
    app.command()(compare)
    small = small_splits()
    parts = {"x_train": small.train.x, "y_train": small.train.y, "x_test": small.test.x, "y_test": small.test.y}
    np.savez(tmp_path / "toy.npz", **{k: v.numpy() for k, v in parts.items()})
    arguments = [str(tmp_path / "toy.npz"), "--ways", "feedforward, end-to-end", "--updates", "2"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    assert [a["way"] for a in json.loads((tmp_path / "out" / "results.json").read_text())] == [
        "feedforward",
        "end-to-end",
    ]
    assert '"way": "end-to-end"' in result.output
    assert (tmp_path / "out" / "quality-against-time.png").exists()
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert "example F1" in result.output
