"""Parts of the scikit-learn estimators: a model for a table of outputs, and a small training loop.

``spen.training.fit`` is the loop for recipes: stages, run folders, checkpoints, several devices. Each call costs a
trainer and a folder on disk, and scikit-learn fits hundreds of small models in one search. This loop uses the same
objectives and writes no files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse
import torch
from sklearn.utils.sparsefuncs import mean_variance_axis
from torch import Tensor, nn

from spen.domains import Box, Reals, Simplex
from spen.energies import Energy, EntropySmoothed, Linear, Sum
from spen.gradients import Exact
from spen.minimizer import Minimizer
from spen.model import SPEN
from spen.objectives import DeepValue, EndToEnd, Feedforward, StructuredHinge, binary_log_loss, log_loss, squared_error
from spen.protocols import Domain, Loss, Objective
from spen.rules import GradientDescent
from spen.tasks.multilabel.energy import LabelNetwork
from spen.tasks.multilabel.features import LabelFeatures, LabelMLP, ScoresAsLogits, Standardize, scores_of
from spen.tasks.multilabel.losses import F1AndLog, hamming, relaxed_f1

Kind = Literal["labels", "classes", "numbers"]  # a set of labels, one of several classes, real outputs
EnergyFactory = Callable[[int, int], nn.Module]  # (outputs, width of F's hidden layer) -> E^g(y, LabelFeatures)
Table = Any  # a dense array or a sparse matrix, one row per example


class Pull(Energy):
    """½‖y − s‖²: local terms for real outputs."""

    def forward(self, y: Tensor, features: LabelFeatures) -> Tensor:
        return 0.5 * (y - features.scores).square().sum(1)


def build(
    kind: Kind,
    inputs: Table,
    outputs: int,
    *,
    hidden: Sequence[int],
    dropout: float,
    energy: nn.Module | EnergyFactory | Sequence[int],
    entropy: float,
    steps: int,
    rate: float,
    dtype: torch.dtype,
) -> SPEN:
    """Local terms from an MLP, and the global term ``energy``: a module, a factory or the widths of a network."""
    mlp = LabelMLP(inputs.shape[1], outputs, hidden, standardize=True, dropout=dropout).to(dtype)
    for module in mlp.modules():
        if isinstance(module, Standardize):
            module.measure(*(torch.as_tensor(m) for m in _mean_and_variance(inputs)))
    if isinstance(energy, nn.Module):
        network: nn.Module = energy
    elif callable(energy):
        network = energy(outputs, hidden[-1])
    else:
        network = LabelNetwork(outputs, tuple(energy), context=hidden[-1])
    domain: Domain
    total: nn.Module
    if kind == "numbers":
        domain, total = Reals(), Sum(local=Pull(), global_=network)
    else:
        over: Literal["box", "simplex"] = "box" if kind == "labels" else "simplex"
        domain = Box("logits") if kind == "labels" else Simplex()
        total = EntropySmoothed(Sum(local=Linear(scores_of), global_=network), entropy, over=over)
    return SPEN(
        features=mlp,
        init=ScoresAsLogits(),
        energy=total,
        minimizer=Minimizer(domain, GradientDescent(steps, rate, learn_rates=True), Exact()),
    ).to(dtype)


def loss_for(kind: Kind, name: str, outputs: int = 1) -> Loss:
    """A loss by its name; "auto" is the first one of the kind."""
    every: dict[Kind, dict[str, Loss]] = {
        "numbers": {"squared": squared_error},
        "classes": {"log": log_loss},
        # The log loss is a sum over labels, soft F1 is at most 1: the weight brings them to the same size.
        "labels": {"f1": F1AndLog(0.3 / outputs), "log": binary_log_loss},
    }
    losses = every[kind]
    if name not in ("auto", *losses):
        choices = " or ".join(f'"{choice}"' for choice in losses)
        raise ValueError(f"loss must be {choices} for this kind of target, not {name!r}")
    return losses[next(iter(losses)) if name == "auto" else name]


def objective_for(kind: Kind, name: str | Objective, loss: Loss) -> Objective:
    """An objective by its name, or the given Objective."""
    if isinstance(name, Objective):
        return name
    if name == "end_to_end":
        return EndToEnd(loss)
    if name == "feedforward":
        return Feedforward(loss)
    if name == "structured_hinge":
        return StructuredHinge(squared_error if kind == "numbers" else hamming)
    if name == "deep_value" and kind != "numbers":
        return DeepValue(relaxed_f1)
    raise ValueError(
        f'objective must be "end_to_end", "feedforward", "structured_hinge", "deep_value" (not for numbers) '
        f"or a spen Objective, not {name!r}"
    )


def run_epoch(
    model: SPEN,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    x: Table,
    target: Tensor,
    batch_size: int,
) -> float:
    """One pass over the examples in a random order; the mean loss."""
    model.train()
    total = 0.0
    for rows in torch.randperm(len(target)).split(batch_size):
        optimizer.zero_grad()
        loss = objective(model, _rows(x, rows, like=target), target[rows.to(target.device)])
        if not bool(loss.isfinite()):
            raise FloatingPointError("the loss is no longer finite: lower learning_rate or rate, or raise entropy")
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        total += float(loss.detach()) * len(rows)
    model.eval()
    return total / len(target)


def predict(model: SPEN, objective: Objective, x: Table, batch_size: int = 4096) -> Tensor:
    """The outputs for every row, on the CPU."""
    model.eval()
    rows = torch.arange(x.shape[0]).split(batch_size)
    with torch.no_grad():
        return torch.cat([objective.predict(model, _rows(x, r, like=next(model.parameters()))).cpu() for r in rows])


def mean_energies(model: SPEN, x: Table) -> np.ndarray:  # (T + 1,)
    """The mean energy of these rows at y_0 … y_T."""
    model.eval()
    with torch.no_grad():
        trajectory = model(_rows(x, torch.arange(x.shape[0]), like=next(model.parameters())))
        return trajectory.energies.double().mean(1).cpu().numpy()


def _rows(x: Table, rows: Tensor, *, like: Tensor) -> Tensor:
    """Some rows, dense, with the dtype and on the device of ``like``."""
    part = x[rows.numpy()]
    return torch.as_tensor(part.toarray() if scipy.sparse.issparse(part) else np.asarray(part)).to(like)


def _mean_and_variance(x: Table) -> tuple[np.ndarray, np.ndarray]:
    if scipy.sparse.issparse(x):
        return mean_variance_axis(x.tocsr().astype(np.float64), axis=0)
    return x.mean(0, dtype=np.float64), x.var(0, dtype=np.float64)
