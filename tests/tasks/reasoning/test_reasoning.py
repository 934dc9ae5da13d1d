"""The task: equivariance, learning, scores, files, refusals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spen import tasks
from spen.models import find_model, open_model
from spen.storage import load_weights
from spen.tasks.locations import find_data
from spen.tasks.reasoning.build import build, stages
from spen.tasks.reasoning.data import boards, examples, one_hot
from spen.tasks.reasoning.metrics import Share, by_clues, cell_accuracy, obeys_the_rules, solved_boards
from spen.tasks.reasoning.opened import ReasoningModel
from spen.tasks.reasoning.recipes import RECIPES, Recipe
from spen.tasks.reasoning.sudoku import format_board, generate, parse_line, solutions
from spen.tasks.task import TrainOrder
from spen.testing import check_energy
from tests.cli.world import spen as run

TINY = Recipe("tiny", width=4, rounds=1, steps=2, epochs=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small recipe, made smaller still."""
    out = tmp_path_factory.mktemp("runs") / "seed-0"
    settings = {"epochs": "3", "learning_rate": "0.02", "batch_size": "16", "width": "8", "steps": "5"}
    done = tasks.find("reasoning").train(TrainOrder("sudoku-small", "sudoku-4", out, device="cpu", settings=settings))
    assert done is not None
    assert done.measure == "solved"
    return out


def puzzles(side: int, number: int = 3) -> tuple[Tensor, Tensor]:
    draw = random.Random(0)
    made = [generate(draw, side, clues=side * side // 2) for _ in range(number)]
    return one_hot([p.clues for p in made]), one_hot([p.solution for p in made if p.solution is not None])


# Of 4×4: rows exchanged within a band, bands exchanged, rows with columns, digits exchanged.
CELLS = [
    [4, 5, 6, 7, 0, 1, 2, 3, *range(8, 16)],
    [*range(8, 16), *range(8)],
    [4 * (i % 4) + i // 4 for i in range(16)],
]


@pytest.mark.parametrize("kind", ["energy", "feedforward", "recurrent"])
def test_networks_treat_cells_and_digits_alike(kind: Any) -> None:
    torch.manual_seed(0)
    model = build(Recipe("x", kind=kind, width=4, rounds=2, steps=3)).double()
    x = puzzles(4)[0].double()
    answer = model(x).output if kind == "energy" else model.feedforward(x)
    assert float(answer[x.sum(-1) == 0].detach().std()) > 1e-4
    for order in CELLS:
        moved = x[:, order]
        found = model(moved).output if kind == "energy" else model.feedforward(moved)
        assert torch.allclose(found, answer[:, order])
    digits = [2, 0, 3, 1]
    found = model(x[..., digits]).output if kind == "energy" else model.feedforward(x[..., digits])
    assert torch.allclose(found, answer[..., digits])


def test_the_energy_keeps_its_contract_and_hides_y_behind_clues() -> None:
    torch.manual_seed(0)
    model = build(TINY).double()
    x, y = (t.double() for t in puzzles(4))
    check_energy(model.energy, torch.softmax(torch.randn_like(y), -1), x)
    energy = model.energy.energy  # type: ignore[union-attr]
    other = torch.softmax(torch.randn_like(y), -1)
    given = x.sum(-1, keepdim=True)
    assert torch.allclose(energy(other, x), energy(torch.where(given > 0, y, other), x))  # type: ignore[operator]
    assert not torch.allclose(energy(other, x), energy(y, x))  # type: ignore[operator]


def test_one_model_takes_boards_of_every_size() -> None:
    model = build(TINY)
    for side in (4, 6, 8, 9):
        x, y = puzzles(side, 1)
        assert model(x).output.shape == y.shape


def test_options_of_recipes_do_something() -> None:
    def parameters(**options: Any) -> dict[str, nn.Parameter]:
        return dict(build(Recipe("x", **{"width": 4, "rounds": 1, "steps": 2, **options})).named_parameters())

    assert "energy.energy.step" in parameters(step_aware=True)
    assert "energy.energy.step" not in parameters()
    assert "energy.step" in parameters(step_aware=True, entropy=0.0)
    assert str(build(Recipe("x", detached=True)).minimizer.gradient) == "Detached(through=Checkpointed())"
    objective: Any = stages(Recipe("x", draw_steps=(2, 4), noise=0.5, rate_limit=0.9, replay=0.2))[0].objective
    assert (objective.draw_steps, objective.noise, objective.rate_limit) == ((2, 4), 0.5, 0.9)
    assert objective.replay == 0.2
    assert stages(Recipe("x", steps=3, every_iterate=True))[0].objective.weights == "equal"  # type: ignore[attr-defined]
    assert stages(Recipe("x", seconds=3.0))[0].seconds == 3.0


@pytest.mark.parametrize("kind", ["energy", "feedforward", "recurrent"])
def test_clues_are_hidden_in_training_alone(kind: Any) -> None:
    model = build(Recipe("x", kind=kind, width=4, rounds=1, steps=2, hidden_clues=0.5))
    part: Any = model.features if kind == "energy" else model.features[0]  # type: ignore[index]
    x = puzzles(4)[0].repeat(2000, 1, 1)
    torch.manual_seed(0)
    shown = part(x)
    given, kept = x.sum((1, 2)), shown.sum((1, 2))
    assert torch.equal(shown * x, shown)  # no clue is added or changed
    assert float((kept / given).mean()) == pytest.approx(0.75, abs=0.01)  # the mean of p is 0.25
    # Clues go together: the variance of their number is 8·E[p(1 − p)] + 64·Var p, where single ones would have 1.5.
    assert float(kept[given == 8].var()) == pytest.approx(8 * (1 / 4 - 1 / 12) + 64 / 48, rel=0.05)
    assert part.eval()(x) is x
    assert torch.equal(build(TINY).features(x), x)


def test_only_a_share_of_clues_can_be_hidden() -> None:
    with pytest.raises(ValueError, match=r"hidden_clues is a share in \[0, 1\], not 2"):
        build(Recipe("x", hidden_clues=2.0))
    with pytest.raises(ValueError, match="hidden_clues is for sudoku; inverse has no clues to hide"):
        build(Recipe("x", problem="inverse", hidden_clues=0.5))


def test_the_baselines_have_the_size_of_the_energy() -> None:
    sizes = {
        name: sum(p.numel() for p in build(RECIPES[name]).parameters())
        for name in ("sudoku", "sudoku-feedforward", "sudoku-recurrent")
    }
    assert max(sizes.values()) < 1.35 * min(sizes.values()), sizes


def test_a_step_aware_model_learns_and_answers() -> None:
    torch.manual_seed(0)
    model = build(Recipe("x", width=4, rounds=1, steps=2, step_aware=True))
    x, y = puzzles(4)
    loss = stages(TINY)[0].objective(model, x, y)
    loss.backward()
    step = model.energy.energy.step  # type: ignore[union-attr]
    assert float(step.grad.abs().amin(1).min()) > 0  # type: ignore[union-attr]
    assert model.search(x, steps=5, restarts=2).output.shape == y.shape


def test_a_step_aware_model_is_trained_in_pieces(tmp_path: Path) -> None:
    settings = {"epochs": "2", "width": "2", "rounds": "1", "steps": "2", "step_aware": "true", "draw_steps": "2x3"}
    settings |= {"noise": "0.5", "rate_limit": "0.9", "replay": "0.5", "batch_size": "64"}
    weights = []
    task = tasks.find("reasoning")
    for name, pieces in (("whole", [None]), ("pieces", [1e-9, None])):
        out = tmp_path / name
        for seconds in pieces:  # with so little time one epoch is trained
            order = TrainOrder("sudoku-small", "sudoku-4", out, device="cpu", seconds=seconds, settings=settings)
            assert (task.train(order) is None) == (seconds is not None)
        weights.append(load_weights(out / "model.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(weights[0].values(), weights[1].values(), strict=True))
    assert float(weights[0]["energy.energy.step"].abs().min()) > 0


def test_metrics_by_hand() -> None:
    x, y = puzzles(4)
    wrong = y.clone()
    cell = int((x[0].sum(-1) == 0).nonzero()[0])
    wrong[0, cell] = wrong[0, cell].roll(1)
    metric = Share(solved_boards)
    metric.update(wrong, y)
    assert float(metric.compute()) == pytest.approx(2 / 3)
    assert cell_accuracy(wrong, x, y) == pytest.approx(23 / 24)
    assert by_clues(wrong, x, y) == {8: pytest.approx(2 / 3)}
    assert obeys_the_rules(wrong, x).tolist() == [False, True, True]
    assert obeys_the_rules(y, x.roll(1, -1)).tolist() == [False] * 3  # other clues than these
    assert boards(y)[0] == tuple((y[0].argmax(-1) + 1).tolist())


def test_it_learns_and_more_computation_helps(trained: Path) -> None:
    opened = open_model(trained)
    plain = opened.evaluate("test", every=4, steps=5, restarts=1).values
    searched = opened.evaluate("test", every=4).values  # as predict does
    more = opened.evaluate("test", every=4, steps=24, restarts=6).values
    assert plain["examples"] == 64
    assert plain["solved"] > 0.3  # a guess is right once in 4¹² times
    assert more["solved"] >= plain["solved"]
    assert more["restarts"] == 6
    assert searched["solved"] >= plain["solved"]
    assert (searched["steps"], searched["restarts"]) == (64, 64)
    assert set(plain["solved by clues"]) <= {4, 5, 6}


def test_the_command_line_solves_a_file(trained: Path, tmp_path: Path) -> None:
    clues = [generate(random.Random(s), 4).clues for s in range(3)]
    file, out = tmp_path / "puzzles.txt", tmp_path / "answers.csv"
    file.write_text("".join("".join(map(str, c)) + "\n" for c in clues))
    done = run(
        "predict", str(trained), str(file), "--steps", "24", "--restarts", "6", "-o", str(out), "--device", "cpu"
    )
    assert done.status == 0, done.err
    for line, c in zip(out.read_text().splitlines(), clues, strict=True):
        puzzle, answer, verdict = line.split(",")
        right = obeys_the_rules(one_hot([tuple(map(int, answer))]), one_hot([c]))
        assert parse_line(puzzle).clues == c
        assert verdict == ("solved" if bool(right) else "unsolved")
    shown = run("predict", str(trained), str(file), "--device", "cpu")
    assert len(shown.out.splitlines()) == 3
    scores = run("evaluate", str(trained), "--every", "64", "--restarts", "2", "--device", "cpu", "--json")
    assert json.loads(scores.out)["examples"] == 4


def test_boards_of_another_size_than_the_trained_one_are_told(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "puzzles.txt"
    file.write_text("." * 81)
    done = run("predict", str(trained), str(file), "--steps", "1", "--restarts", "1", "--device", "cpu")
    assert (done.status, done.out[81:82]) == (0, ",")
    told = (
        f"{file} holds puzzles of 9×9, and {trained} was trained on 4×4: it may leave most of them unsolved; train a mo"
    )
    assert done.err.startswith(told)
    file.write_text("." * 16)
    assert run("predict", str(trained), str(file), "--steps", "1", "--restarts", "1", "--device", "cpu").err == ""


def test_mistakes_are_one_sentence(trained: Path, tmp_path: Path) -> None:
    done = run("predict", str(trained), str(tmp_path), "--device", "cpu")
    assert done.status == 2
    assert "is a folder; name the files with puzzles in it" in done.err
    file = tmp_path / "p.txt"
    file.write_text("." * 16)
    done = run("predict", str(trained), str(file), "-o", str(file), "--device", "cpu")
    assert f"{file} would be overwritten by the answer for {file}; give another -o" in done.err
    (tmp_path / "q").mkdir()
    other = tmp_path / "q" / "p.txt"
    other.write_text("." * 16)
    done = run("predict", str(trained), str(file), str(other), "-o", str(tmp_path / "out"), "--device", "cpu")
    assert f"{file} and {other} would both be written to {tmp_path}/out/p.csv; rename one" in done.err
    done = run("train", "sudoku", "--data", "rrn", "--out", str(tmp_path / "r"))
    assert done.status == 2
    assert "rrn is for tests alone; train on satnet" in done.err
    with pytest.raises(ValueError, match="rrn is for tests alone"):
        tasks.find("reasoning").examples_of("rrn", "dev")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="all boards of a batch have one size"):
        one_hot([(0,) * 16, (0,) * 81])


def test_a_network_without_an_energy_has_no_restarts() -> None:
    opened = tasks.find("reasoning").fresh("sudoku-feedforward")
    assert isinstance(opened, ReasoningModel)
    with pytest.raises(ValueError, match="sudoku-feedforward does not descend: it has no steps or restarts to choose"):
        opened.answer(puzzles(4)[0], restarts=2)


def test_the_puzzles_of_the_package_are_those_of_the_generator() -> None:
    draw = random.Random(9)
    made = [generate(draw, 9, clues=20 + i) for i in range(2)]
    x, y = examples("sudoku-9", "train")
    assert torch.equal(x[:2], one_hot([p.clues for p in made]))
    assert torch.equal(y[:2], one_hot([p.solution for p in made if p.solution is not None]))
    parts = [examples("sudoku-9", split) for split in ("train", "dev", "test")]
    assert [len(x) for x, _ in parts] == [4800, 150, 150]
    assert all(bool(obeys_the_rules(y, x).all()) for x, y in parts)


def test_the_data_of_the_papers() -> None:
    try:
        find_data("reasoning", "satnet.csv.xz")
    except FileNotFoundError:
        pytest.skip("the puzzles are not here")
    sizes = {split: len(examples("satnet", split)[0]) for split in ("train", "dev", "test")}
    assert sizes == {"train": 8700, "dev": 450, "test": 1000}
    x, y = examples("satnet", "test")
    assert bool(obeys_the_rules(y, x).all())
    assert x.sum((1, 2)).min() >= 31


def test_the_shipped_solver_is_small_and_solves_hard_puzzles(tmp_path: Path) -> None:
    saved = find_model("sudoku")
    assert sum(path.stat().st_size for path in saved.folder.iterdir()) < 2**20
    assert saved.settings["data"] == "sudoku-9"
    draw = random.Random(17)
    puzzles = tmp_path / "hard ones.txt"
    puzzles.write_text("".join(f"{format_board(generate(draw, 9).clues)}\n" for _ in range(20)))
    (out,) = open_model("sudoku").predict([puzzles], tmp_path / "solved.csv")
    rows = [line.split(",") for line in out.read_text().splitlines()]
    (again,) = open_model("sudoku").predict([puzzles], tmp_path / "again.csv")
    assert again.read_text() == out.read_text()  # restarts are drawn from a fixed seed
    assert [row[2] for row in rows].count("solved") >= 19
    for puzzle, solution, verdict in rows:
        assert verdict == "unsolved" or list(solution) == [str(d) for d in solutions(parse_line(puzzle).clues)[0]]
