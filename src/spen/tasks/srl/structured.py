"""−log P(r* | r ∈ Q): the local scores normalised over the feasible assignments of a predicate alone.

Täckström, Ganchev and Das (2015) sum over all assignments without overlaps and repeated core roles by a dynamic
programme over span ends and sets of used core roles. With gains g_ar = s_ar − s_a∅ and candidates sorted by end,

    α_j[S] = α_{j−1}[S] ⊕ (α_{prev(j)}[S] ⊗ ⊕_{r free} g_jr) ⊕ ⊕_{r ∈ S} (α_{prev(j)}[S∖r] ⊗ g_jr),

where prev(j) counts the candidates that end before j begins. Autograd turns log Z into marginals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spen.model import SPEN
from spen.protocols import Objective
from spen.tasks.srl.arcs import ArcTarget
from spen.tasks.srl.energy import pick

NEVER = -1e4
"""Used for log 0, since the gradient through −∞ − (−∞) would be NaN."""


def log_partition(
    gains: Tensor,  # (P, K, A): s_r − s_∅; column 0 is not read
    mask: Tensor,  # (P, K) bool
    spans: Tensor,  # (P, K, 2) half-open
    core: Sequence[int],
) -> Tensor:  # (P,)
    """log Σ_{r ∈ Q} exp Σ_a g_a,r(a), the empty assignment having weight 1."""
    problems, width, labels = gains.shape
    sets = 1 << len(core)
    gains = torch.where(mask[..., None], gains, NEVER)
    end, order = torch.where(mask, spans[..., 1], torch.iinfo(spans.dtype).max).sort(dim=1)
    start = spans[..., 0].gather(1, order)
    gains = gains.gather(1, order[..., None].expand_as(gains))
    # Candidates that end where this one begins or before: with ends sorted they are the first prev of them.
    previous = (end[:, None, :] <= start[..., None]).sum(-1)
    free = [r for r in range(1, labels) if r not in set(core)]
    loose = pick(gains, free).logsumexp(-1) if free else gains.new_full((problems, width), NEVER)
    strict = pick(gains, core)
    without = _without(len(core), gains.device)
    first = gains.new_full((problems, sets + 1), NEVER)  # the last column stands for "r is not in S"
    first[:, 0] = 0
    alphas = [first]
    for j in range(width):
        # gather and index_select rather than indexing: their backwards add in place, indexing sorts first.
        at = previous[:, j, None, None].clamp(max=j).expand(-1, 1, sets + 1)
        before = torch.stack(alphas, 1).gather(1, at).squeeze(1)
        taken = before.index_select(1, without.flatten()).unflatten(1, without.shape) + strict[:, j, None, :]
        options = torch.cat([alphas[-1][:, :-1, None], (before[:, :-1] + loose[:, j, None])[..., None], taken], -1)
        padded = torch.cat([options.logsumexp(-1), first[:, -1:]], 1)
        alphas.append(padded)
    return alphas[-1][:, :-1].logsumexp(-1)


def _without(core: int, device: torch.device) -> Tensor:  # (2^core, core)
    """The set without each of its members; the index after the last set where it is not a member."""
    sets = torch.arange(1 << core, device=device)[:, None]
    bits = 1 << torch.arange(core, device=device)
    return torch.where((sets & bits) > 0, sets - bits, 1 << core)


class ConstrainedLogLoss(Objective):
    """−log P(r* | Q), a mean over arcs so that learning rates carry over from the plain log loss.

    Prediction maximises the same scores over the same set, which rounding does: development data gets softmax(s).
    """

    def __init__(self, core: Sequence[int]) -> None:
        self.core = tuple(core)

    def __call__(self, model: SPEN, x: Any, target: ArcTarget) -> Tensor:
        scores = model.features(x).scores
        gains = (scores - scores[..., :1]).flatten(0, 1)
        mask = target.mask.flatten(0, 1)
        partition = log_partition(gains, mask, target.spans.flatten(0, 1), self.core)
        gold = gains.gather(-1, target.gold.flatten(0, 1)[..., None]).squeeze(-1) * mask
        return (partition.sum() - gold.sum()) / mask.sum()

    def predict(self, model: SPEN, x: Any) -> Tensor:
        return model.feedforward(x)
