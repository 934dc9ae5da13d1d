"""Random graphs as of the differentiable neural computer (Graves et al. 2016), and what is asked about them.

Nodes lie in the unit square, and node i has edges to its m_i nearest neighbours, m_i drawn evenly from 1 … ``most``.
Matrices are (B, n, n) with a one at (i, j) for an edge from i to j.
"""

from __future__ import annotations

import torch
from torch import Tensor


def random_graphs(count: int, nodes: int, most: int, *, directed: bool, generator: torch.Generator) -> Tensor:
    """(count, nodes, nodes); without directions an edge in either direction counts as both."""
    places = torch.rand(count, nodes, 2, generator=generator)
    apart = torch.cdist(places, places) + torch.diag(torch.full((nodes,), torch.inf)).nan_to_num(0.0, torch.inf)
    rank = apart.argsort(-1).argsort(-1)
    degree = torch.randint(1, most + 1, (count, nodes, 1), generator=generator)
    edges = (rank < degree).float()
    return edges if directed else torch.maximum(edges, edges.mT)


def distances(edges: Tensor) -> Tensor:  # (B, n, n) -> (B, n, n)
    """The edges on a shortest path from i to j; infinite where there is none."""
    nodes = edges.shape[-1]
    found = torch.where(edges > 0, 1.0, torch.inf)
    found.diagonal(dim1=-2, dim2=-1).zero_()
    for k in range(nodes):  # Floyd and Warshall
        found = torch.minimum(found, found[:, :, k, None] + found[:, k, None, :])
    return found


def connected(edges: Tensor) -> Tensor:
    """1 where a path leads from i to j, and from every node to itself."""
    return distances(edges).isfinite().float()


def next_step_right(estimated: Tensor, edges: Tensor, start: Tensor, target: Tensor) -> Tensor:
    """(B,) bool: whether the neighbour of ``start`` with the lowest estimated distance is on a shortest path.

    ``estimated`` and ``target`` are (B, n), distances of every node to the goal; ``start`` is (B,).
    """
    rows = torch.arange(len(start))
    neighbours = edges[rows, start] > 0
    chosen = torch.where(neighbours, estimated, torch.inf).argmin(-1)
    return neighbours[rows, chosen] & (target[rows, chosen] == target[rows, start] - 1)
