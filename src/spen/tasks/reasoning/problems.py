"""The problems of the task, each as one value: its network, where its answers live, its loss and its scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torchmetrics import MeanSquaredError, Metric

from spen.domains import Box, Reals, Simplex
from spen.energies import Energy, EntropySmoothed
from spen.objectives import binary_log_loss, log_loss, squared_error
from spen.protocols import Domain
from spen.tasks.reasoning.energy import LearnedEnergy, Network, Round, mlp
from spen.tasks.reasoning.graphs import next_step_right
from spen.tasks.reasoning.metrics import Share, by_clues, cell_accuracy, obeys_the_rules, solved_boards
from spen.tasks.reasoning.recipes import Recipe
from spen.tasks.reasoning.sudoku import BOXES, groups


class Problem(ABC):
    """x and y are batch-first tensors; y has a number for every part of the answer."""

    network: type[Network]
    measure = "right"
    """What the metric is called in the output."""
    entropy: Literal["simplex", "box"] = "simplex"

    @abstractmethod
    def domain(self) -> Domain:
        """Where answers live."""

    @abstractmethod
    def start(self) -> nn.Module:
        """Init: x to what the descent starts from."""

    @abstractmethod
    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """(B,)"""

    @abstractmethod
    def metric(self) -> Metric:
        """By which the best epoch is chosen."""

    def energy(self, recipe: Recipe) -> Energy:
        """E(y; x), with fresh weights."""
        known_steps = recipe.steps if recipe.step_aware else 0
        energy: Energy = LearnedEnergy(self.network(recipe.width, recipe.rounds), known_steps)
        if recipe.entropy > 0:
            energy = EntropySmoothed(energy, recipe.entropy, learned=True, over=self.entropy)
        return energy

    def features(self, recipe: Recipe) -> nn.Module:
        """F(x): x itself, unless the problem changes it in training."""
        if recipe.hidden_clues:
            raise ValueError(f"hidden_clues is for sudoku; {recipe.problem} has no clues to hide")
        return nn.Identity()

    def solved(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """A check of answers that does not know the right one."""
        return None

    def details(self, answers: Tensor, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Further scores."""
        return {}


def require_square(x: Tensor, further: int = 0) -> None:
    """Refuse an x that is no n×n matrix with so many ``further`` columns."""
    if x.dim() != 3 or x.shape[2] != x.shape[1] + further:
        needed = "n×(n + 2): the edges, the goal and the start" if further else "n×n"
        raise ValueError(f"x has shape {tuple(x.shape[1:])}, but a graph or a matrix is {needed}")


# ── sudoku ──


class Exchange(Round):
    """From cells to their groups and back, and between the digits of a cell."""

    def __init__(self, width: int) -> None:
        super().__init__(width, messages=2)
        self.group = nn.Linear(width, width)
        self.cell = nn.Linear(width, width)

    def incoming(self, h: Tensor, context: Tensor) -> Tensor:  # (B, cells, digits, width), (groups, cells)
        pooled = torch.einsum("gc,bcdw->bgdw", context, h)
        groups, cell = nn.functional.silu(self.group(pooled)), nn.functional.silu(self.cell(h.sum(2, keepdim=True)))
        groups, cell = self.weigh(groups, cell)
        return torch.einsum("gc,bgdw->bcdw", context, groups) / 3 + cell


class PuzzleNetwork(Network):
    """Vectors of (cell, digit). Groups are the rows, columns and boxes; where a clue is, the clue counts and not y.

    Exchanging digits, rows within a band, bands, or rows with columns exchanges the vectors in the same way.
    """

    inputs, parts = 2, 2

    def __init__(self, width: int, rounds: int, repeats: int = 1) -> None:
        super().__init__(width, rounds, repeats)
        for side in BOXES:
            table = torch.zeros(3 * side, side * side)
            for g, cells in enumerate(groups(side)):
                table[g, list(cells)] = 1.0
            self.register_buffer(f"side{side}", table, persistent=False)

    def round(self, width: int) -> Round:
        return Exchange(width)

    def planes(self, y: Tensor, x: Tensor) -> Tensor:
        given = x.sum(-1, keepdim=True)
        return torch.stack([x + (1 - given) * y, given.expand_as(y)], -1)

    def context(self, y: Tensor, x: Tensor) -> Tensor:  # (groups, cells)
        return cast(Tensor, getattr(self, f"side{y.shape[-1]}"))

    def scored(self, h: Tensor, context: Tensor) -> list[Tensor]:
        return [h, torch.einsum("gc,bcdw->bgdw", context, h)]


class Clues(nn.Module):
    """Logits to start from: ``sure`` at the digit of a clue, 0 where all digits are open."""

    def __init__(self, sure: float = 8.0) -> None:
        super().__init__()
        self.sure = sure

    def forward(self, x: Tensor) -> Tensor:
        return self.sure * x


class HiddenClues(nn.Module):
    """Dropout of clues: in training a board loses each of its clues with probability p, p uniform in [0, ``most``].

    With fewer clues a board may have several solutions. Nobody checks that; the target stays the one that is known.
    """

    def __init__(self, most: float) -> None:
        super().__init__()
        if not 0 <= most <= 1:
            raise ValueError(f"hidden_clues is a share in [0, 1], not {most}")
        self.most = most

    def forward(self, x: Tensor) -> Tensor:  # (B, cells, digits)
        if not self.training or not self.most:
            return x
        p = self.most * torch.rand(len(x), 1, 1, device=x.device)
        return x * (torch.rand(*x.shape[:2], 1, device=x.device) >= p)


class Sudoku(Problem):
    """x (B, cells, digits) has a one where a clue is, y is a distribution over the digits of every cell."""

    network = PuzzleNetwork
    measure = "solved"

    def domain(self) -> Domain:
        return Simplex()

    def start(self) -> nn.Module:
        return Clues()

    def features(self, recipe: Recipe) -> nn.Module:
        return HiddenClues(recipe.hidden_clues)

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """−log of the probability of the right digit, on average over the cells."""
        return log_loss(y, target) / target.shape[1]

    def metric(self) -> Metric:
        return Share(solved_boards)

    def solved(self) -> Callable[[Tensor, Tensor], Tensor]:
        return obeys_the_rules

    def details(self, answers: Tensor, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"empty cells right": cell_accuracy(answers, x, y), "solved by clues": by_clues(answers, x, y)}


# ── connectivity ──


class Products(Round):
    """Pairs (i, k) and (k, j) tell (i, j): tanh Σ_k p(h_ik) q(h_kj), bounded whatever the number of nodes is."""

    def __init__(self, width: int) -> None:
        super().__init__(width, messages=1)
        self.left = nn.Linear(width, width)
        self.right = nn.Linear(width, width)

    def incoming(self, h: Tensor, context: None) -> Tensor:  # (B, n, n, width)
        return self.back(torch.einsum("bikw,bkjw->bijw", self.left(h), self.right(h)).tanh())


class PairNetwork(Network):
    """Vectors of pairs of nodes, from the edge between them, the answer, and whether both are one node."""

    inputs = 3

    def round(self, width: int) -> Round:
        return Products(width)

    def planes(self, y: Tensor, x: Tensor) -> Tensor:
        same = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand_as(x)
        return torch.stack([x, y, same], -1)


class Edges(nn.Module):
    """Logits to start from: 2 where an edge is, −2 where none is."""

    def forward(self, x: Tensor) -> Tensor:
        require_square(x)
        return 4 * x - 2


class Connectivity(Problem):
    """x (B, n, n) are the edges of a graph; y_ij is 1 where a path leads from i to j."""

    network = PairNetwork
    entropy = "box"

    def domain(self) -> Domain:
        return Box("logits")

    def start(self) -> nn.Module:
        return Edges()

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """The binary log loss, on average over the pairs."""
        return binary_log_loss(y, target) / target[0].numel()

    def metric(self) -> Metric:
        return Share(lambda y, target: (y > 0.5) == (target > 0.5))

    def details(self, answers: Tensor, x: Tensor, y: Tensor) -> dict[str, Any]:
        right = (answers > 0.5) == (y > 0.5)
        return {
            "whole graphs right": float(right.flatten(1).all(1).float().mean()),
            "connected pairs right": float(right[y > 0.5].float().mean()),
            "other pairs right": float(right[y < 0.5].float().mean()),
        }


# ── shortest paths ──


class Neighbours(Round):
    """Node i hears of its successors' vectors for distances d − 1, d and d + 1, and of all of its own distances."""

    def __init__(self, width: int) -> None:
        super().__init__(width, messages=4)
        self.said = nn.Linear(width, width)
        self.node = nn.Linear(width, width)

    def incoming(self, h: Tensor, context: Tensor) -> Tensor:  # (B, n, distances, width), (B, n, n)
        heard = torch.einsum("bij,bjdw->bidw", context, self.said(h)).tanh()
        shorter = nn.functional.pad(heard, (0, 0, 1, 0))[:, :, :-1]
        longer = nn.functional.pad(heard, (0, 0, 0, 1))[:, :, 1:]
        own = nn.functional.silu(self.node(h.sum(2, keepdim=True)))
        same, before, after, node = self.weigh(heard, shorter, longer, own)
        return same + before + after + node


class PathNetwork(Network):
    """Vectors of (node, distance to the goal)."""

    inputs = 4

    def round(self, width: int) -> Round:
        return Neighbours(width)

    def planes(self, y: Tensor, x: Tensor) -> Tensor:
        goal = x[..., -2, None].expand_as(y)
        ends = torch.zeros(2, y.shape[-1], dtype=y.dtype, device=y.device)
        ends[0, 0] = ends[1, -1] = 1.0
        return torch.stack([y, goal, *(end.expand_as(y) for end in ends)], -1)

    def context(self, y: Tensor, x: Tensor) -> Tensor:
        return x[..., :-2]


class AtGoal(nn.Module):
    """Logits to start from: the goal has distance 0, nothing is known of the other nodes."""

    def __init__(self, distances: int, sure: float = 8.0) -> None:
        super().__init__()
        self.distances, self.sure = distances, sure

    def forward(self, x: Tensor) -> Tensor:
        require_square(x, further=2)
        return nn.functional.pad(self.sure * x[..., -2, None], (0, self.distances - 1))


class ShortestPath(Problem):
    """x (B, n, n + 2): edges, the goal, the start; y (B, n, distances): a distribution over every node's distance.

    The last distance stands for all that are longer, and for nodes from which the goal cannot be reached.
    """

    network = PathNetwork
    distances = 10

    def domain(self) -> Domain:
        return Simplex()

    def start(self) -> nn.Module:
        return AtGoal(self.distances)

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """−log of the probability of the right distance, on average over the nodes."""
        return log_loss(y, target) / target.shape[1]

    def metric(self) -> Metric:
        return Share(lambda y, target: y.argmax(-1) == target.argmax(-1))

    def details(self, answers: Tensor, x: Tensor, y: Tensor) -> dict[str, Any]:
        numbers = torch.arange(self.distances, dtype=answers.dtype)
        start = x[..., -1].argmax(-1)
        right = next_step_right(answers @ numbers, x[..., :-2], start, y.argmax(-1))
        return {"next steps right": float(right.float().mean())}


# ── matrix inverse ──


class MatrixEnergy(Energy):
    """Σ_ij ½ u_ijᵀ Q u_ij + score(u_ij), u_ij the entries (i, j) of y, 1, xy and yx.

    Q starts so that E = ½⟨y, xy⟩ − tr y, whose minimum is the inverse of a symmetric x, and the score at 0. Both are
    learned.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        start = torch.zeros(4, 4)
        start[0, 2] = start[2, 0] = 0.5
        start[0, 1] = start[1, 0] = -1.0
        self.form = nn.Parameter(start)
        self.score = mlp(width, 4)
        nn.init.zeros_(self.score[-1].weight)  # type: ignore[arg-type]

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        one = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device).expand_as(y)
        u = torch.stack([y, one, features @ y, y @ features], -1)
        quadratic = 0.25 * (u * (u @ (self.form + self.form.mT))).flatten(1).sum(1)
        return quadratic + self.score(u).flatten(1).sum(1)


class Inverse(Problem):
    """x (B, n, n) is a positive definite matrix, y its inverse."""

    network = PairNetwork
    measure = "mean squared error"

    def domain(self) -> Domain:
        return Reals()

    def start(self) -> nn.Module:
        return Zeros()

    def energy(self, recipe: Recipe) -> Energy:
        return MatrixEnergy(recipe.width)

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """The squared error, on average over the entries."""
        return squared_error(y, target)

    def metric(self) -> Metric:
        return MeanSquaredError()


class Zeros(nn.Module):
    """y_0 = 0."""

    def forward(self, x: Tensor) -> Tensor:
        require_square(x)
        return torch.zeros_like(x)


PROBLEMS: Mapping[str, Problem] = {
    "sudoku": Sudoku(),
    "connectivity": Connectivity(),
    "shortest-path": ShortestPath(),
    "inverse": Inverse(),
}
