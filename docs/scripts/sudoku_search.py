"""How many sudokus a model solves with how much computation, and whether its energy knows the right answer.

    python docs/scripts/sudoku_search.py RUN --data rrn --every 18

The first table has the share of puzzles that are solved within so many steps in all, those of restarts added: longer
descents up to --steps, then restarts, which end when an answer obeys the rules. The other two have no such check. The
second has the share of puzzles whose answer is right after so many steps of one descent. The third has, for R
descents, the share that is right if the answer of the lowest energy is taken, if any is taken, and the share for which
at least one of them is right.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

from spen.models import open_model
from spen.tasks.reasoning.data import examples
from spen.tasks.reasoning.metrics import obeys_the_rules, solved_boards
from spen.tasks.reasoning.opened import SEARCH

BATCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", default="rrn")
    parser.add_argument("--split", default="test")
    parser.add_argument("--every", type=int, default=18)
    parser.add_argument("--steps", type=int, default=SEARCH["steps"])
    parser.add_argument("--restarts", type=int, default=16)
    parser.add_argument("--start-noise", type=float, default=SEARCH["start_noise"])
    parser.add_argument("--select", type=int, default=200, help="puzzles of the tables without a check; 0: none")
    parser.add_argument("--singles", type=int, default=0, help="solve this many puzzles one at a time, and time it")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    model = open_model(options.run, options.device).model
    x, y = (part[:: options.every].to(options.device) for part in examples(options.data, options.split))
    torch.manual_seed(0)
    computation(model, x, options.steps, options.restarts, options.start_noise)
    if options.singles:
        singles(model, x, options)
    if options.select:
        chosen = torch.linspace(0, len(x) - 1, min(options.select, len(x))).long()
        one_descent(model, x[chosen], y[chosen], min(1024, options.steps * options.restarts))
        selection(model, x[chosen], y[chosen], options.steps, options.restarts, options.start_noise)


def computation(model: torch.nn.Module, x: Tensor, steps: int, restarts: int, noise: float) -> None:
    """Print the share that is solved within 1, 2, 4 … steps in all."""
    began, needed = time.perf_counter(), []
    for part in x.split(BATCH):
        found = model.search(part, steps=steps, restarts=restarts, noise=noise, solved=obeys_the_rules)  # type: ignore[operator]
        last = found.steps_used.gather(0, found.selected[None])[0]
        needed.append(torch.where(found.solved, found.selected * steps + last, torch.inf))
    total = torch.cat(needed)
    table({b: (total <= b).float().mean() for b in powers(steps * restarts)}, "solved within so many steps")
    print(f"{len(x)} puzzles, {time.perf_counter() - began:.0f} s", flush=True)


def singles(model: torch.nn.Module, x: Tensor, options: argparse.Namespace) -> None:
    """Print the seconds that single puzzles take."""
    times = []
    for k in torch.linspace(0, len(x) - 1, options.singles).long().tolist():
        began = time.perf_counter()
        search = {"steps": options.steps, "restarts": options.restarts, "noise": options.start_noise, "rows": 16}
        found = model.search(x[k : k + 1], **search, solved=obeys_the_rules)  # type: ignore[operator]
        found.output.cpu()
        times.append(time.perf_counter() - began)
    times.sort()
    print(
        f"one puzzle: {times[len(times) // 2]:.3f} s (median of {len(times)}), {times[-1]:.3f} s (slowest)", flush=True
    )


@torch.no_grad()
def one_descent(model: torch.nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Print the share that is right after 1, 2, 4 … steps of one descent that goes on whatever its answer is."""
    right = dict.fromkeys(powers(steps), torch.zeros(()))
    for part, target in zip(x.split(BATCH), y.split(BATCH), strict=True):
        outputs = model(part, steps=steps).outputs
        right = {b: n + solved_boards(outputs[b - 1], target).sum() for b, n in right.items()}
    table({b: n / len(x) for b, n in right.items()}, f"right after so many steps of one descent, {len(x)} puzzles")


@torch.no_grad()
def selection(model: torch.nn.Module, x: Tensor, y: Tensor, steps: int, restarts: int, noise: float) -> None:
    """Print the share that is right by the lowest energy of R descents, by any one of them, and in at least one."""
    energies, right = [], []
    for r in range(restarts):
        paths = [model(part, steps=steps, noise=noise if r else 0.0) for part in x.split(BATCH)]
        energies.append(torch.cat([path.energies[-1] for path in paths]))
        right.append(solved_boards(torch.cat([path.output for path in paths]), y).float())
    scores, correct = torch.stack(energies), torch.stack(right)
    names = {"lowest energy": {}, "any one": {}, "at least one": {}}  # type: dict[str, dict[int, Tensor]]
    for count in powers(restarts):
        chosen = scores[:count].argmin(0, keepdim=True)
        names["lowest energy"][count] = correct[:count].gather(0, chosen).mean()
        names["any one"][count] = correct[:count].mean()
        names["at least one"][count] = correct[:count].amax(0).mean()
    for name, shares in names.items():
        table(shares, f"of R descents of {steps} steps: {name}, {len(x)} puzzles")
    reached = correct.amax(0) > 0
    known = correct.gather(0, scores.argmin(0, keepdim=True))[0][reached].mean()
    print(f"lowest energy right where one of {restarts} answers is: {100 * float(known):.1f} %")


def powers(most: int) -> list[int]:
    """1, 2, 4 … up to ``most``."""
    return [2**k for k in range(most.bit_length())]


def table(shares: dict[int, Tensor], title: str) -> None:
    """Percentages below their columns."""
    print(f"| {title} | {' | '.join(map(str, shares))} |")
    print(f"| | {' | '.join(f'{100 * float(share):.1f}' for share in shares.values())} |", flush=True)


if __name__ == "__main__":
    main()
