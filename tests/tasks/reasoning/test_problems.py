"""Graphs and matrices: what is asked, who answers it, and that every network treats all nodes alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch import Tensor

from spen import tasks
from spen.models import open_model
from spen.tasks.reasoning import data
from spen.tasks.reasoning.build import build, stages
from spen.tasks.reasoning.graphs import connected, distances, next_step_right, random_graphs
from spen.tasks.reasoning.problems import PROBLEMS, ShortestPath
from spen.tasks.reasoning.recipes import RECIPES, Recipe
from spen.tasks.task import TrainOrder
from spen.testing import check_energy
from tests.cli.world import spen as run

SETS = {"connectivity": "connectivity-12", "shortest-path": "paths-15", "inverse": "inverse-20"}


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A handful of examples of each split."""
    monkeypatch.setattr(data, "MADE", (256, 16, 24))
    data.examples.cache_clear()
    yield
    data.examples.cache_clear()


def graphs(nodes: int = 7, *, directed: bool = True) -> Tensor:
    return random_graphs(5, nodes, 3, directed=directed, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("directed", [True, False])
def test_graphs_have_edges_to_the_nearest_nodes(directed: bool) -> None:
    edges = graphs(directed=directed)
    assert not edges.diagonal(dim1=1, dim2=2).any()
    assert torch.equal(edges, edges.mT) == (not directed)
    if directed:
        assert set(edges.sum(2).unique().tolist()) == {1.0, 2.0, 3.0}
    single = random_graphs(50, 6, 1, directed=True, generator=torch.Generator().manual_seed(1))
    assert bool((single.sum(2) == 1).all())


def test_distances_are_those_of_networkx() -> None:
    for edges, found, joined in zip(graphs(), distances(graphs()), connected(graphs()), strict=True):
        graph = networkx.from_numpy_array(edges.numpy(), create_using=networkx.DiGraph)
        lengths = dict(networkx.all_pairs_shortest_path_length(graph))
        for i in range(7):
            for j in range(7):
                assert float(found[i, j]) == lengths[i].get(j, float("inf"))
                assert bool(joined[i, j]) == (j in lengths[i])


def test_the_next_step_is_right_on_any_shortest_path() -> None:
    # 0 → 1 → 3 and 0 → 2 → 3 are equally short, 0 → 4 leads nowhere.
    edges = torch.zeros(1, 5, 5)
    for i, j in ((0, 1), (0, 2), (0, 4), (1, 3), (2, 3)):
        edges[0, i, j] = 1
    target, start = torch.tensor([[2.0, 1.0, 1.0, 0.0, 9.0]]), torch.tensor([0])
    for best, right in ((1, True), (2, True), (4, False), (3, False)):
        estimated = torch.full((1, 5), 5.0)
        estimated[0, best] = 1.0
        expected = right if best != 3 else True  # 3 is no neighbour: the first of the others is taken
        assert bool(next_step_right(estimated, edges, start, target)) == expected


@pytest.mark.parametrize("problem", ["connectivity", "shortest-path"])
@pytest.mark.parametrize("kind", ["energy", "feedforward", "recurrent"])
def test_networks_treat_nodes_alike(problem: str, kind: Any) -> None:
    torch.manual_seed(0)
    entropy = 0.1
    model = build(Recipe("x", problem=problem, kind=kind, width=4, rounds=2, steps=3, entropy=entropy)).double()
    x = data.examples(SETS[problem], "dev")[0][:3].double()
    order = torch.randperm(x.shape[1])
    moved = x[:, order]
    moved = torch.cat([moved[..., order], moved[..., x.shape[1] :]], -1)
    answers = [model(x).output, model(moved).output] if kind == "energy" else [model.feedforward(z) for z in (x, moved)]
    expected = answers[0][:, order] if problem == "shortest-path" else answers[0][:, order][..., order]
    assert torch.allclose(answers[1], expected)
    assert float(answers[0].detach().std()) > 1e-3


@pytest.mark.parametrize("problem", list(SETS))
def test_energies_keep_their_contract(problem: str) -> None:
    torch.manual_seed(0)
    recipe = Recipe("x", problem=problem, width=4, rounds=1, steps=2, entropy=0.0 if problem == "inverse" else 0.1)
    model = build(recipe).double()
    x, y = (t[:3].double() for t in data.examples(SETS[problem], "dev"))
    check_energy(model.energy, 0.8 * y + 0.2 * y.mean(), x)
    loss = stages(recipe)[0].objective(model, x, y)
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_the_energy_of_an_inverse_starts_with_its_minimum_there() -> None:
    x, y = (t[:3].double() for t in data.examples("inverse-20", "dev"))
    energy = build(RECIPES["inverse"]).double().energy
    at = torch.linalg.inv(x).requires_grad_()
    (slope,) = torch.autograd.grad(energy(at, x).sum(), at)
    assert float(slope.abs().max()) < 1e-9
    assert bool((energy(1.1 * at, x) > energy(at, x)).all())
    assert torch.allclose(at.detach(), y, atol=1e-4)
    hard = data.examples("inverse-20-hard", "test")[0]
    assert float(torch.linalg.eigvalsh(x.float()).min()) >= 0.49 > float(torch.linalg.eigvalsh(hard).min()) >= 0.099


def test_starts_and_goals_have_the_distance_that_was_drawn() -> None:
    x, y = data.examples("paths-25", "test")
    apart = distances(x[..., :-2])
    rows, goal, start = torch.arange(len(x)), x[..., -2].argmax(-1), x[..., -1].argmax(-1)
    assert set(apart[rows, start, goal].tolist()) <= {4.0, 5.0, 6.0}
    assert torch.equal(y.argmax(-1), apart[rows, :, goal].clamp_max(ShortestPath.distances - 1).long())
    assert bool((y[rows, goal, 0] == 1).all())


def test_scores_by_hand() -> None:
    x, y = data.examples("connectivity-12", "dev")
    wrong = y.clone()
    i, j = (y[0] == 0).nonzero()[0].tolist()
    wrong[0, i, j] = 1
    found = PROBLEMS["connectivity"].details(wrong, x, y)
    assert found["whole graphs right"] == pytest.approx(15 / 16)
    assert found["connected pairs right"] == 1
    assert found["other pairs right"] == pytest.approx(1 - 1 / int((y == 0).sum()))
    x, y = data.examples("paths-15", "dev")
    assert PROBLEMS["shortest-path"].details(y, x, y)["next steps right"] == 1
    assert PROBLEMS["shortest-path"].details(-y + 1, x, y)["next steps right"] < 0.7


@pytest.mark.parametrize("kind", ["energy", "feedforward"])
@pytest.mark.parametrize("problem", list(SETS))
def test_arrays_of_another_shape_are_refused(problem: str, kind: Any) -> None:
    model = build(Recipe("x", problem=problem, kind=kind, width=4, rounds=1, steps=2, entropy=0.0))
    path = problem == "shortest-path"
    needed = r"n×\(n \+ 2\): the edges, the goal and the start" if path else "n×n"
    for shape in ((1, 3, 4), (1, 9)):
        with pytest.raises(ValueError, match=f"but a graph or a matrix is {needed}"):
            model(torch.zeros(shape))


def test_baselines_have_the_size_of_the_energies() -> None:
    for name in ("connectivity", "shortest-path"):
        sizes = [sum(p.numel() for p in build(RECIPES[f"{name}{end}"]).parameters()) for end in ("", "-feedforward")]
        assert 0.5 < sizes[1] / sizes[0] < 2, (name, sizes)


def test_a_problem_by_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = {"epochs": "2", "width": "8", "rounds": "1", "steps": "4", "learning_rate": "0.01"}
    done = tasks.find("reasoning").train(
        TrainOrder("connectivity", "connectivity-12", out, device="cpu", settings=settings)
    )
    assert done is not None
    assert done.measure == "right"
    shown = run("evaluate", str(out), "--data", "connectivity-18", "--steps", "8", "--device", "cpu", "--json")
    scores = json.loads(shown.out)
    assert scores["right"] > 0.8
    assert scores["examples"] == 24
    edges = data.examples("connectivity-12", "test")[0][0]
    np.save(tmp_path / "graph.npy", edges.numpy())
    shown = run("predict", str(out), str(tmp_path / "graph.npy"), "-o", str(tmp_path / "answer.npy"), "--device", "cpu")
    assert shown.status == 0, shown.err
    answer = torch.from_numpy(np.load(tmp_path / "answer.npy"))
    assert torch.allclose(answer, open_model(out).model(edges[None]).output[0], atol=1e-6)  # type: ignore[attr-defined]
    (tmp_path / "graph.txt").write_text("0 1")
    shown = run("predict", str(out), str(tmp_path / "graph.txt"), "-o", str(tmp_path / "b.npy"), "--device", "cpu")
    assert "graph.txt is no .npy file: a graph or a matrix is read from an array" in shown.err
    for name, why in (
        ("connectivity-18", "connectivity-18 is for tests alone; train on connectivity-12"),
        ("inverse-20", "inverse-20 asks other questions than connectivity answers; train on connectivity-12"),
    ):
        shown = run("train", "connectivity", "--data", name, "--out", str(tmp_path / "no"))
        assert why in shown.err
