"""The picture of CONTRIBUTING.md: which packages of spen import which, the lowest at the bottom.

python docs/scripts/import_graph.py writes docs/figures/imports.png. Edges that follow from others are left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.test_import_graph import CORE, packages

GROUPS = {  # small modules are drawn with the package that they belong to
    "model": ("model", "minimizer", "bundle_entropy", "pretrained", "hub", "builders", "mismatch", "search"),
    "tensors": ("tensors", "parameters", "arguments", "storage"),
}


def grouped() -> dict[str, set[str]]:
    """The graph with the groups as one node each."""
    home = {member: group for group, members in GROUPS.items() for member in members}
    graph: dict[str, set[str]] = {}
    for name, others in packages().items():
        if name not in ("", "__main__"):
            node = home.get(name, name)
            graph.setdefault(node, set()).update({home.get(o, o) for o in others} - {node})
    return graph


def reached(graph: dict[str, set[str]], start: str, without: str) -> set[str]:
    """What can be reached from ``start`` in two steps or more, or by another edge than the one to ``without``."""
    found: set[str] = set()
    todo = [other for other in graph[start] if other != without]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += graph[name]
    return found


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """The longest way down from each node."""
    found: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in found:
            found[name] = 1 + max(map(level, graph[name]), default=-1)
        return found[name]

    for name in sorted(graph):
        level(name)
    return found


def main() -> None:
    graph = grouped()
    height = levels(graph)
    rows: dict[int, list[str]] = {}
    for name in sorted(graph):
        rows.setdefault(height[name], []).append(name)
    place = {n: ((i + 0.5) / len(row), y) for y, row in rows.items() for i, n in enumerate(row)}
    figure, axes = plt.subplots(figsize=(10, 9))
    for name, others in graph.items():
        for other in others - {o for o in others if o in reached(graph, name, o)}:
            (x, y), (u, v) = place[name], place[other]
            axes.annotate("", (u, v + 0.18), (x, y - 0.18), arrowprops={"arrowstyle": "->", "color": "#8a94a6"})
    for name, (x, y) in place.items():
        colour = "#e7eefc" if name in CORE or name in GROUPS else "#fdeedd"
        axes.text(x, y, name, ha="center", va="center", bbox={"boxstyle": "round", "fc": colour, "ec": "#5b6b88"})
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.5, max(rows) + 0.5)
    axes.axis("off")
    target = Path(__file__).parents[1] / "figures" / "imports.png"
    figure.savefig(target, dpi=110, bbox_inches="tight")
    print(target)


if __name__ == "__main__":
    main()
