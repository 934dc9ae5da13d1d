"""Characters of a text, some hidden: a transformer energy that is descended T times and trained end to end.

    E(y; x) = −Σ_hidden ⟨y_i, W h_i(y; x)⟩ − H(y)        h: attention layers over visible characters and guesses y

    python -m benchmarks.masked_text --steps 1,2,4,8,16 --seeds 0,1,2 --seconds 120 --out text
    python -m benchmarks.masked_text --steps 1,2,4,8,16 --costs

For each T it trains one model per seed, prints the loss on hidden characters of held-out text after 1 … 4T steps, the
last learned rate standing for the further ones, and draws it (loss-by-steps.png). ``--draw-steps`` draws the steps of
each training batch from T, 3T/2 and 2T. ``--costs`` trains nothing: time and memory of a training step by finite
differences through fused attention, beside exact products by forward mode and double backprop, which need the unfused
one. The text is that of Python's own manual (`pydoc_data`), which every installation has, or a file (--text).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric

import spen
from benchmarks.measure import Step, measure
from benchmarks.transformer import Layer, set_fused
from spen.domains import Simplex
from spen.energies import Energy, EntropySmoothed
from spen.gradients import Exact, FiniteDifference, ForwardOverReverse, GradientStrategy
from spen.objectives import EndToEnd
from spen.rules import GradientDescent
from spen.training import fit, joint

TRUST = 0.1
"""First value of the factor on guesses. With 1 some models of 128 channels diverged in training."""


class Masked(NamedTuple):
    """A batch of text, and which of its characters are hidden."""

    characters: Tensor  # (B, L) numbers of characters
    hidden: Tensor  # (B, L) bool


class TextEnergy(Energy):
    """−Σ_hidden ⟨y_i, W h_i⟩: h sees visible characters as they are and hidden ones as y guesses them."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(width**-0.5 * torch.randn(vocabulary, width))
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.unknown = nn.Parameter(torch.zeros(width))  # added where a character is a guess
        # The factor on guesses: near 0 the energy is linear in y, so that its descent cannot diverge.
        self.trust = nn.Parameter(torch.tensor(TRUST))
        self.layers = nn.ModuleList(Layer(width, max(1, width // 64)) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, y: Tensor, features: Masked) -> Tensor:  # (B, L, V) -> (B,)
        hidden = features.hidden[..., None]
        known = F.one_hot(features.characters, y.shape[-1]).to(y)
        h = torch.where(hidden, self.trust * y, known) @ self.embed + self.positions + hidden * self.unknown
        for layer in self.layers:
            h = layer(h)
        scores = self.last(h) @ self.embed.T
        return -(y * scores * hidden).flatten(1).sum(1)


class Uniform(nn.Module):
    """Init: no character is likelier than another."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.register_buffer("logits", torch.zeros(vocabulary), persistent=False)

    def forward(self, features: Masked) -> Tensor:
        return self.logits.expand(*features.hidden.shape, -1)


def build(vocabulary: int, length: int, width: int, layers: int, steps: int, gradient: GradientStrategy) -> spen.SPEN:
    """The model: T steps of entropic mirror descent with learned rates, every character uniform at first."""
    energy = EntropySmoothed(TextEnergy(vocabulary, length, width, layers))
    rule = GradientDescent(steps, min(0.5, 2.0 / steps), learn_rates=True)
    return spen.SPEN(
        energy=energy, init=Uniform(vocabulary), minimizer=spen.Minimizer(Simplex("logits"), rule, gradient)
    )


def hidden_loss(y: Tensor, target: Masked) -> Tensor:  # (B, L, V) -> (B,)
    """−log y of the true character, in nats: the mean over the hidden ones."""
    chances = y.gather(-1, target.characters[..., None]).squeeze(-1)
    nats = -chances.clamp_min(torch.finfo(y.dtype).tiny).log() * target.hidden
    return nats.sum(1) / target.hidden.sum(1).clamp_min(1)


class HiddenLoss(MeanMetric):
    """``hidden_loss`` over all examples."""

    higher_is_better = False

    def update(self, y: Tensor, target: Masked) -> None:  # type: ignore[override]
        super().update(hidden_loss(y, target))


class TextSource:
    """Random windows of a text with a share of their characters hidden: a function of (seed, epoch)."""

    def __init__(self, text: Tensor, length: int, batch: int, batches: int, share: float, seed: int) -> None:
        self.text, self.length, self.batch, self.per_epoch = text, length, batch, batches
        self.share, self.seed = share, seed
        self.name = f"{batches} batches of {batch}×{length} characters, {share} hidden, seed {seed}"

    def batches(self, epoch: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Masked, Masked]]:
        draws = torch.Generator().manual_seed(1_000_003 * self.seed + 997 * epoch + rank)
        for _ in range(self.per_epoch):
            first = torch.randint(len(self.text) - self.length, (self.batch, 1), generator=draws)
            characters = self.text[first + torch.arange(self.length)]
            hidden = torch.rand(characters.shape, generator=draws) < self.share
            yield Masked(characters, hidden), Masked(characters, hidden)

    def count(self, world: int = 1) -> int:
        return self.per_epoch


def read_text(path: Path | None) -> tuple[Tensor, int]:
    """Numbers of the characters (rare ones are one), and how many there are."""
    if path is None:
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics))
    else:
        text = path.read_text(encoding="utf-8")
    common = {c: k + 1 for k, c in enumerate(sorted(c for c in set(text) if text.count(c) > 50))}
    return torch.tensor([common.get(c, 0) for c in text]), len(common) + 1


@torch.no_grad()
def losses_by_steps(model: spen.SPEN, source: TextSource, steps: list[int]) -> dict[int, float]:
    """The loss after each number of steps, from one descent of the longest."""
    device = next(model.eval().parameters()).device
    sums = dict.fromkeys(steps, 0.0)
    for x, target in source.batches(0):
        path = model(Masked(*(part.to(device) for part in x)), steps=max(steps))
        there = Masked(*(part.to(device) for part in target))
        for t in steps:
            sums[t] += float(hidden_loss(path.outputs[t - 1], there).mean())
    return {t: total / source.count() for t, total in sums.items()}


def train(arguments: argparse.Namespace, text: Tensor, vocabulary: int, steps: int, seed: int) -> spen.SPEN | None:
    """A model of T steps in its run folder; None if the seconds ran out before its end."""
    torch.manual_seed(seed)
    size = (vocabulary, arguments.length, arguments.width, arguments.layers)
    model = build(*size, steps, FiniteDifference())
    drawn = (steps, 3 * steps // 2, 2 * steps) if arguments.draw_steps else ()
    name = f"T{steps}{'-drawn' if drawn else ''}-seed{seed}"
    cut = int(0.95 * len(text))
    common: dict[str, Any] = {"length": arguments.length, "batch": arguments.batch, "share": arguments.share}
    source = TextSource(text[:cut], batches=arguments.per_epoch, seed=seed, **common)
    dev = TextSource(text[cut:], batches=8, seed=1000, **common)
    stage = joint(
        EndToEnd(hidden_loss, draw_steps=drawn),
        epochs=arguments.epochs,
        learning_rate=arguments.rate,
        warmup=200,
        decay_to=0.05,
    )
    run = fit(
        model,
        [stage],
        source,
        dev,
        HiddenLoss(),
        out=Path(arguments.out) / name,
        seed=seed,
        recipe={"name": "masked text", "steps": steps, "size": list(size)},
        accelerator="cpu" if arguments.device == "cpu" else "auto",
        progress=False,
        seconds=arguments.seconds,
    )
    return model if run.complete else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="8", help="T, several with commas")
    parser.add_argument("--seeds", default="0", help="several with commas")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--out", default="text")
    parser.add_argument("--seconds", type=float, help="per model; run again to go on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in {"length": 256, "batch": 64, "width": 256, "layers": 4, "epochs": 20, "per_epoch": 250}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--share", type=float, default=0.5, help="of characters that are hidden")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument(
        "--draw-steps", action="store_true", help="train with T, 3T/2 or 2T steps, drawn for each batch"
    )
    parser.add_argument("--costs", action="store_true", help="time and memory of a training step; no training")
    arguments = parser.parse_args()
    text, vocabulary = read_text(arguments.text)
    held_out = text[int(0.95 * len(text)) :]
    test = TextSource(held_out, arguments.length, arguments.batch, 8, arguments.share, 2000)
    every = [int(steps) for steps in arguments.steps.split(",")]
    if arguments.costs:
        print_costs(arguments, test, vocabulary, every)
        return
    print("T    seed  loss in nats after 1, 2, 4, … steps")
    curves: dict[int, list[dict[int, float]]] = {steps: [] for steps in every}
    for steps in every:
        asked = sorted({2**k for k in range(10) if 2**k <= 4 * steps} | {steps})
        for seed in map(int, arguments.seeds.split(",")):
            model = train(arguments, text, vocabulary, steps, seed)
            if model is None:
                print(f"{steps:<4d} {seed:<4d}  unfinished: run the command again", flush=True)
                continue
            model.to(arguments.device)
            found = losses_by_steps(model, test, asked)
            curves[steps].append(found)
            print(f"{steps:<4d} {seed:<4d}  " + "  ".join(f"{t}: {v:.4f}" for t, v in found.items()), flush=True)
    draw(curves, Path(arguments.out) / "loss-by-steps.png")


def draw(curves: dict[int, list[dict[int, float]]], path: Path) -> None:
    """The mean over the seeds for each T, with a dot at the trained number of steps."""
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for steps, seeds in curves.items():
        if seeds:
            mean = {t: statistics.mean(found[t] for found in seeds) for t in seeds[0]}
            (line,) = axis.plot(list(mean), list(mean.values()), label=f"T = {steps}")
            axis.plot(steps, mean[steps], "o", color=line.get_color())
    axis.set_xscale("log", base=2)
    axis.set(xlabel="steps (dot: those of training)", ylabel="nats for a hidden character")
    axis.legend()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def print_costs(arguments: argparse.Namespace, source: TextSource, vocabulary: int, every: list[int]) -> None:
    """Time and memory of a training step, for each T."""
    device = torch.device(arguments.device)
    x = Masked(*(part.to(device) for part in next(iter(source.batches(0)))[0]))
    size = (vocabulary, arguments.length, arguments.width, arguments.layers)

    def step_of(steps: int, gradient: GradientStrategy, fused: bool) -> Step:
        model = build(*size, steps, gradient).to(device)
        set_fused(model, fused)
        weights = [p for p in model.parameters() if p.requires_grad]
        loss = EndToEnd(hidden_loss)
        return lambda: [g for g in torch.autograd.grad(loss(model, x, x), weights, allow_unused=True) if g is not None]

    for steps in every:
        for label, gradient, fused in (
            ("finite differences, fused", FiniteDifference(), True),
            ("forward over reverse, unfused", ForwardOverReverse(), False),
            ("double backprop, unfused", Exact(), False),
        ):
            found = measure(partial(step_of, steps, gradient, fused), device, seconds=5, repeats=20)
            print(
                f"{steps:<4d} {label:30s} {1000 * found.median:8.1f} ms {found.peak_bytes / 2**20:8.1f} MiB", flush=True
            )


if __name__ == "__main__":
    main()
