"""The log loss over arcs, and F1 of decoded roles for early stopping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric

from spen.tasks.srl.arcs import ArcTarget
from spen.tasks.srl.decoding import decode_roles, violations
from spen.tasks.srl.energy import pick


def arc_log_loss(y: Tensor, target: ArcTarget) -> Tensor:  # (B, n, K, A) → ()
    """−mean over the valid arcs of the batch of log y[gold]."""
    right = y.gather(-1, target.gold[..., None]).squeeze(-1)
    floor = torch.finfo(y.dtype).tiny ** 0.5
    return -(right.clamp_min(floor).log() * target.mask).sum() / target.mask.sum()


def arc_cost(y: Tensor, target: ArcTarget) -> Tensor:  # (B, n, K, A) → (B,)
    """Δ(y, y*) = Σ over valid arcs of 1 − y[gold]: the expected number of wrong arcs, linear in y."""
    right = y.gather(-1, target.gold[..., None]).squeeze(-1)
    return ((1 - right) * target.mask).flatten(1).sum(1)


@dataclass(frozen=True)
class ConstrainedLoss:
    """arc_log_loss + λ · (Σ over pairs that exclude each other of [a + b − 1]_+) / arcs.

    Gold labels violate no constraint and have no penalty; predictions that leave violations to rounding have one. The
    log loss alone does not penalise 0.6 and 0.5 on two overlapping candidates.
    """

    core: tuple[int, ...]
    weight: float

    def __call__(self, y: Tensor, target: ArcTarget) -> Tensor:  # (B, n, K, A) → ()
        loss = arc_log_loss(y, target)
        if not self.weight:
            return loss
        z, of = y[..., 1:].sum(-1), pick(y, self.core)
        both = (z[..., :, None] + (z - 1)[..., None, :]).clamp_min(0) * target.overlaps
        twice = (of[..., :, None, :] + (of - 1)[..., None, :, :]).clamp_min(0) * target.pairs[..., None]
        return loss + self.weight * (both.sum() + twice.sum()) / target.mask.sum()


class RoleF1(Metric):
    """100 · 2PR / (P + R) over arguments after AD³; gold arguments without a candidate count as missed.

    Pieces are counted one by one. The official metric joins a continuation C-X to its X first, which differs by a few
    hundredths; `spen.tasks.srl.evaluate` computes that one. A hundred iterations of AD³ are enough to rank epochs.
    """

    full_state_update = False
    higher_is_better = True
    correct: Tensor
    predicted: Tensor
    gold: Tensor
    clashes: Tensor

    def __init__(self, core: tuple[int, ...], *, missed: int = 0) -> None:
        super().__init__()
        self.core, self.missed = core, missed
        for name in ("correct", "predicted", "gold", "clashes"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, y: Tensor, target: ArcTarget) -> None:
        device, y, target = self.correct.device, y.cpu(), target.cpu()
        found = decode_roles(y, target, self.core, "ad3", max_iterations=100)
        self.correct += ((found == target.gold) & (found > 0)).sum().to(device)
        self.predicted += (found > 0).sum().to(device)
        self.gold += ((target.gold > 0).sum() + target.uncovered.sum()).to(device)
        self.clashes += violations(y, target, self.core).to(device)

    def compute(self) -> Tensor:
        """F1 in percent."""
        total = self.predicted + self.gold + self.missed
        return 200.0 * self.correct / total.clamp(min=1)
