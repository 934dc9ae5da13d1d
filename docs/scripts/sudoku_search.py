"""How many sudokus a model solves with how much computation, and whether its energy knows the right answer.

    python docs/scripts/sudoku_search.py RUN --data rrn --every 18

The first table has the share of puzzles whose answer obeys the rules after so many steps in all: longer descents up to
--steps, then restarts. The second has no check. Its columns are R, the share that is right if the answer of the lowest
energy of R descents is taken, if any of them is taken, and the share for which one of them is right.
"""

from __future__ import annotations

import argparse
import time

import torch

from spen.models import open_model
from spen.tasks.reasoning.data import examples
from spen.tasks.reasoning.metrics import obeys_the_rules, solved_boards

BATCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", default="rrn")
    parser.add_argument("--split", default="test")
    parser.add_argument("--every", type=int, default=18)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--restarts", type=int, default=16)
    parser.add_argument("--select", type=int, default=200, help="puzzles of the second table; 0 leaves it out")
    options = parser.parse_args()
    model = open_model(options.run).model
    x, y = (part[:: options.every] for part in examples(options.data, options.split))
    torch.manual_seed(0)
    computation(model, x, options.steps, options.restarts)
    if options.select:
        chosen = torch.linspace(0, len(x) - 1, min(options.select, len(x))).long()
        selection(model, x[chosen], y[chosen], options.steps, min(8, options.restarts))


def computation(model: torch.nn.Module, x: torch.Tensor, steps: int, restarts: int) -> None:
    """Print the share that is solved within 1, 2, 4 … steps in all."""
    began, needed = time.perf_counter(), []
    for part in x.split(BATCH):
        found = model.search(part, steps=steps, restarts=restarts, solved=obeys_the_rules)  # type: ignore[operator]
        last = found.steps_used.gather(0, found.selected[None])[0]
        needed.append(torch.where(found.solved, found.selected * steps + last, torch.inf))
    total = torch.cat(needed)
    budgets = [2**k for k in range(20) if 2**k <= steps * restarts]
    print(f"| {' | '.join(map(str, budgets))} |")
    print(f"| {' | '.join(f'{100 * float((total <= b).float().mean()):.1f}' for b in budgets)} |")
    print(f"{len(x)} puzzles, {time.perf_counter() - began:.0f} s")


@torch.no_grad()
def selection(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int, restarts: int) -> None:
    """Print the share that is right by the lowest energy of R descents and by any one of them."""
    energies, right = [], []
    for r in range(restarts):
        paths = [model(part, steps=steps, noise=1.0 if r else 0.0) for part in x.split(BATCH)]
        energies.append(torch.cat([path.energies[-1] for path in paths]))
        right.append(solved_boards(torch.cat([path.output for path in paths]), y).float())
    scores, correct = torch.stack(energies), torch.stack(right)
    for count in (2**k for k in range(10) if 2**k <= restarts):
        lowest = correct[:count].gather(0, scores[:count].argmin(0, keepdim=True)).mean()
        possible = correct[:count].amax(0).mean()
        shares = (float(lowest), float(correct[:count].mean()), float(possible))
        print(f"| {count} | " + " | ".join(f"{100 * share:.1f}" for share in shares) + " |")


if __name__ == "__main__":
    main()
