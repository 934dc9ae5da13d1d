"""The argument of Sec. 4.1 as a figure: how much of a gradient reaches y_0 through T steps of each update.

    python docs/scripts/vanishing.py        # half a minute on one core; writes docs/figures/vanishing.png

One random smooth energy, one start, one loss on y_T. What is measured is ‖dℓ/dl_0‖ with y_0 = softmax(l_0), the same
coordinates for every update, and the share of label vectors to which exactly nothing comes back.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import torch
from torch import Tensor

import spen
from spen.domains import Simplex
from spen.gradients import Checkpointed
from spen.rules import GradientDescent
from spen.testing.strategy import SmoothEnergy

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STEPS = [1, 2, 3, 5, 8, 12, 20, 30, 50]
UPDATES = {
    "projected": "projection",
    "mirror": "mirror descent",
    "logits": "logits",
    "through_logits": "through the softmax",
}
SEEDS = 10


def reaching(update: str, steps: int, seed: int, rate: float = 0.5) -> tuple[float, float]:
    """(‖dℓ/dl_0‖, share of the 200 label vectors whose gradient is exactly zero)."""
    torch.manual_seed(seed)
    energy = SmoothEnergy(5, 4).double()
    features = torch.randn(8, 4, dtype=torch.float64)
    logits = torch.randn(8, 25, 5, dtype=torch.float64, requires_grad=True)
    minimizer = spen.Minimizer(Simplex(update), GradientDescent(steps, rate), Checkpointed())  # type: ignore[arg-type]
    output = minimizer(energy, features, logits).output
    target = torch.nn.functional.one_hot(torch.randint(5, (8, 25)), 5)
    bar: Tensor
    (bar,) = torch.autograd.grad((output - target).square().sum(), logits)
    return float(bar.norm()), float((bar.abs().sum(-1) == 0).double().mean())


def main() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    print(f"{'T':>4s} " + " ".join(f"{name:>20s}" for name in UPDATES.values()))
    norms = {u: [torch.tensor([reaching(u, t, s) for s in range(SEEDS)]).mean(0) for t in STEPS] for u in UPDATES}
    for i, t in enumerate(STEPS):
        print(f"{t:4d} " + " ".join(f"{norms[u][i][0]:11.2e} {100 * norms[u][i][1]:6.1f} %" for u in UPDATES))
    for update, name in UPDATES.items():
        dashed = ":" if update == "logits" else "-"  # on top of mirror descent, to the last digit
        left.plot(STEPS, [float(n[0]) for n in norms[update]], dashed, marker=".", label=name)
        right.plot(STEPS, [100 * float(n[1]) for n in norms[update]], dashed, marker=".", label=name)
    left.set(xlabel="T", ylabel="gradient norm reaching y_0", yscale="log", xscale="log")
    right.set(xlabel="T", ylabel="label vectors that get nothing (%)", xscale="log")
    left.legend(frameon=False, fontsize=8)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path = Path(__file__).parents[1] / "figures" / "vanishing.png"
    figure.savefig(path, dpi=130)
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
