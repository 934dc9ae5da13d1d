"""Seconds to round a batch of sentences: greedy, AD³ and HiGHS, and how often each reaches the optimum.

    python benchmarks/rounding.py --sentences 64 --batches 5

Scores are random: most arcs prefer the empty label, the others one of a few labels, so that plain argmax violates the
constraints in a share of the predicates that a local model would.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from spen.rounding import (
    Constraints,
    count_violations,
    relax_ad3,
    relax_lp,
    round_ad3,
    round_argmax,
    round_greedy,
    round_ilp,
)


def sentences(
    batch: int, seed: int, predicates: int = 3, arguments: int = 30, labels: int = 54
) -> tuple[Tensor, Constraints]:
    """Random spans over 25 words, about ten valid arcs a predicate, labels 1 to 6 unique."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, 25, (batch, arguments), generator=generator)
    lengths = torch.randint(1, 7, (batch, arguments), generator=generator)
    ends = (starts + lengths - 1).clamp(max=24)
    mask = torch.rand(batch, predicates, arguments, generator=generator) < 1 / 3
    scores = torch.randn(batch, predicates, arguments, labels, generator=generator)
    scores[..., 1:7] += 1.0  # core roles are frequent
    scores[..., 0] += 3.75
    return scores.log_softmax(dim=-1), Constraints.from_spans(mask, starts, ends, range(1, 7))


def ilp_where_needed(scores: Tensor, constraints: Constraints) -> Tensor:
    """HiGHS for the sentences whose argmax violates something, the argmax for the others: the strongest ILP to beat."""
    labels = round_argmax(scores, constraints)
    clash = (count_violations(labels, constraints).total > 0).any(dim=1)
    part = Constraints(constraints.mask[clash], constraints.groups[clash], constraints.unique_labels)
    labels[clash] = round_ilp(scores[clash], part)
    return labels


def timed(
    call: Callable[[Tensor, Constraints], Tensor], batches: list[tuple[Tensor, Constraints]]
) -> tuple[float, list[Tensor]]:
    """(median seconds a batch, the labellings)."""
    seconds, answers = [], []
    for scores, constraints in batches:
        begin = time.perf_counter()
        answers.append(call(scores, constraints))
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[len(seconds) // 2], answers


def score(scores: Tensor, labels: Tensor, constraints: Constraints) -> Tensor:
    """⟨s, y⟩ per predicate, over the valid arcs."""
    return scores.double().gather(3, labels[..., None])[..., 0].masked_fill(~constraints.mask, 0.0).sum(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="torch threads; 1 on a busy machine"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    batches = [sentences(options.sentences, options.seed + i) for i in range(options.batches)]
    for call in (round_greedy, round_ad3, round_ilp):  # the first call of a process pays for imports and start-up
        call(*sentences(8, options.seed + options.batches))

    violated = torch.cat([count_violations(round_argmax(*batch), batch[1]).total.flatten() for batch in batches]) > 0
    print(f"{options.batches} batches of {options.sentences} sentences, {torch.get_num_threads()} threads")
    print(f"predicates whose argmax violates a constraint: {violated.double().mean():.1%}")
    slowest, exact = timed(round_ilp, batches)
    optimum = torch.cat([score(s, y, c).flatten() for (s, c), y in zip(batches, exact, strict=True)])
    roundings = {"greedy": round_greedy, "AD3": round_ad3, "ILP": round_ilp, "ILP*": ilp_where_needed}
    print(f"{'rounding':<10}{'s a batch':>12}{'x ILP':>9}{'optimal':>10}{'violations':>12}")
    for name, call in roundings.items():
        seconds, answers = (slowest, exact) if call is round_ilp else timed(call, batches)
        reached = torch.cat([score(s, y, c).flatten() for (s, c), y in zip(batches, answers, strict=True)])
        left = sum(int(count_violations(y, c).total.sum()) for (_, c), y in zip(batches, answers, strict=True))
        share = ((optimum - reached).abs() < 1e-6)[violated].double().mean()
        print(f"{name:<10}{seconds:>12.4f}{slowest / seconds:>9.1f}{share:>10.1%}{left:>12}")

    print("ILP* skips the sentences whose argmax is feasible; optimal: among predicates whose argmax is not")
    relaxed = [(relax_ad3(*batch), relax_lp(*batch)) for batch in batches]
    gap = max(float((ours.value - theirs.value).abs().max()) for ours, theirs in relaxed)
    steps = torch.cat([ours.iterations.flatten() for ours, _ in relaxed])
    fractional = torch.cat([~ours.integral.flatten() for ours, _ in relaxed])
    print(f"largest distance from the LP optimum of HiGHS: {gap:.1e}; fractional: {int(fractional.sum())} predicates")
    print(f"iterations where needed: median {int(steps[steps > 0].median())}, most {int(steps.max())}")


if __name__ == "__main__":
    main()
