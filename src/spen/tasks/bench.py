"""Which gradient strategy is the fastest for a model on a device: what `Auto` measures, and the memory beside it."""

from __future__ import annotations

import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spen
from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
)
from spen.gradients.auto_trial import Clock, distance, sentence, training_step
from spen.protocols import GradientStrategy
from spen.tensors import tree_map
from spen.training import Run

__all__ = ["Opened", "Report", "Timed", "open_model", "time_strategies"]


@dataclass(frozen=True)
class Timed:
    """One strategy: a forward and backward pass through the descent, F and Init not counted; or why it cannot be."""

    strategy: str
    milliseconds: float | None
    memory_mib: float | None
    error: float | None  # relative to the first exact gradient; None for that one
    problem: str | None


@dataclass(frozen=True)
class Report:
    """Every strategy on one batch; ``memory`` says what memory_mib counts, ``chosen`` is what `Auto` would use."""

    fastest: str
    device: str
    batch: int
    steps: int
    memory: str
    strategies: tuple[Timed, ...]
    chosen: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Opened:
    """A model and a batch for it."""

    model: spen.SPEN
    x: Any


def time_strategies(model: spen.SPEN, x: Any, *, repeats: int = 3) -> Report:
    """Measure every strategy on this batch, and say which one `Auto` would use."""
    own = model.minimizer
    observer = _Observer(repeats)
    watched = spen.SPEN(
        features=model.features,
        init=model.init,
        energy=model.energy,
        minimizer=spen.Minimizer(own.domain, own.rule, observer, own.stop),
    )
    start = watched(x).start
    on_gpu = start.device.type == "cuda"
    assert observer.report is not None
    chosen, timed = observer.report
    fastest = min((t for t in timed if t.milliseconds is not None), key=lambda t: t.milliseconds or 0.0)
    return Report(
        fastest=fastest.strategy,
        chosen=chosen,
        device=torch.cuda.get_device_name(start.device) if on_gpu else "cpu",
        batch=start.shape[0],
        steps=own.rule.steps,
        memory="peak" if on_gpu else "kept for the backward pass",
        strategies=timed,
    )


def _strategies() -> list[GradientStrategy]:
    plain: list[GradientStrategy] = [Exact(), Checkpointed(), ForwardOverReverse(), FiniteDifference()]
    programs = [Compiled(t, keep=k, patience=0) for t in (ForwardOverReverse(), Checkpointed()) for k in (0.0, 1.0)]
    return [*plain, *programs]


class _Observer(GradientStrategy):
    """Sits where a strategy does, so that it sees the loop, the energy and the start as one does."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.report: tuple[str, tuple[Timed, ...]] | None = None

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        auto = Auto(patience=0, measure=False)
        path = auto.run(descend, potential, start)  # first: the energy's own errors are shown as they are
        reference: list[Tensor] | None = None
        timed = []
        for strategy in _strategies():
            try:
                warm_up = 4 if isinstance(strategy, Compiled) else 1  # a CUDA graph is captured in the third descent
                found = [training_step(strategy, descend, potential, start) for _ in range(warm_up)][-1]
            except Exception as failure:  # it cannot be used with this energy: the row says why
                timed.append(Timed(str(strategy), None, None, None, sentence(failure)))
                continue
            reference = found if reference is None else reference
            error = None if reference is found else distance(found, reference)
            count = _peak_bytes if start.device.type == "cuda" else _kept_bytes
            seconds = min(_seconds(strategy, descend, potential, start) for _ in range(self.repeats))
            held = count(strategy, descend, potential, start) / 2**20
            timed.append(Timed(str(strategy), 1000 * seconds, held, error, None))
        self.report = auto.choices()[0]["strategy"], tuple(timed)
        return path


def _seconds(strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor) -> float:
    clock = Clock()
    clock.tick(start.device)
    training_step(strategy, descend, potential, start)
    clock.tick(start.device)
    return clock.latest


def _forward(strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor) -> Tensor:
    with torch.enable_grad():
        path = strategy.run(descend, potential.detached(), start.detach().requires_grad_())
        outputs = path.outputs
        return sum((y.square().sum() for y in outputs[1:]), outputs[0].square().sum())


def _peak_bytes(strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor) -> float:
    torch.cuda.synchronize(start.device)
    before = torch.cuda.memory_allocated(start.device)
    torch.cuda.reset_peak_memory_stats(start.device)
    total = _forward(strategy, descend, potential, start)
    torch.autograd.grad(total, potential.parameters(), allow_unused=True)
    torch.cuda.synchronize(start.device)
    return float(torch.cuda.max_memory_allocated(start.device) - before)


def _kept_bytes(strategy: GradientStrategy, descend: Descend, potential: Potential, start: Tensor) -> float:
    """Bytes of the distinct tensors that the forward pass leaves for the backward pass, parameters not counted."""
    own = {p.untyped_storage().data_ptr() for p in potential.energy.parameters()}
    kept: weakref.WeakSet[_Kept] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Kept:
        holder = _Kept(tensor)
        kept.add(holder)
        return holder

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor):
        total = _forward(strategy, descend, potential, start)
    # The graphs of single gradients are gone by now, and with them what they had saved.
    storages = [holder.tensor.untyped_storage() for holder in kept]
    sizes = {s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in own}
    del total
    return float(sum(sizes.values()))


class _Kept:
    """A saved tensor, in something that a weak reference can point to."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def open_model(
    task: str, name: str, *, batch: int | None, size: tuple[int, int] | None, device: str, trained: bool
) -> Opened:
    """The model of a run folder or shipped model (``trained``), or of a recipe with fresh weights; and a batch."""
    if size is not None and task != "denoising":
        raise ValueError(f"--size is for images; {name} is a model of {task}")
    torch.manual_seed(0)
    if task == "denoising":
        opened = _denoising(name, batch, size, trained)
    elif task == "srl":
        opened = _roles(name, batch, trained)
    elif task == "multilabel":
        opened = _label_sets(name, batch, trained)
    else:
        raise ValueError(f"{name} is of the task {task!r}, which this version of spen does not know")
    moved = tree_map(lambda t: t.to(device), opened.x)
    # Dropout would make gradients of two strategies incomparable.
    return Opened(opened.model.to(device).eval().requires_grad_(True), moved)


def _denoising(name: str, batch: int | None, size: tuple[int, int] | None, trained: bool) -> Opened:
    from spen.tasks.denoising.experiment import build, load_run
    from spen.tasks.denoising.priors import Observation
    from spen.tasks.denoising.recipes import Recipe, System, find_recipe, find_regime
    from spen.tasks.shipped import about

    held: dict[str, Any] = {"recipe": name, "data": "rooms", "options": {}}
    model: spen.SPEN | None
    if trained and Path(name).is_dir():
        _, model = load_run(name)
        described = Run.open(name).description()["recipe"]
        held = {"recipe": described["name"], "data": described["data"], "options": {}}
    elif trained:
        held = about(name)
    recipe: Recipe = find_recipe(held["recipe"]).restored(held["options"])
    regime = find_regime(held["data"])
    if not isinstance(recipe.method, System):
        raise ValueError(f"{recipe.name} has no descent to differentiate; name a recipe with an energy, dp-3 say")
    if not (trained and Path(name).is_dir()):
        model, _ = build(recipe, regime)
        if trained:
            _load_shipped(model, name)
    assert model is not None
    height, width = size or recipe.schedule.crop
    coarse = torch.rand(batch or recipe.schedule.batch_size, 1, max(2, height // 12), max(2, width // 12))
    truth = nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    image = truth + 0.07 / regime.scale * torch.randn_like(truth)
    return Opened(model, Observation(image, torch.ones_like(image)))


def _load_shipped(model: spen.SPEN, name: str) -> None:
    from importlib import resources

    from spen.training import load_weights

    with resources.as_file(resources.files("spen") / "weights" / f"{name}.safetensors") as path:
        model.load_state_dict(load_weights(path))


def _roles(name: str, batch: int | None, trained: bool) -> Opened:
    import numpy as np

    from spen.tasks.srl.arcs import ArcCorpus
    from spen.tasks.srl.corpora import builtin_splits, prepare
    from spen.tasks.srl.encoding import encode
    from spen.tasks.srl.predict import Labeller
    from spen.tasks.srl.recipes import find_recipe
    from spen.tasks.srl.systems import build

    wanted = batch or 64
    sentences = builtin_splits(2 * wanted)
    if trained:
        labeller = Labeller.open(name)
        recipe, model, data = labeller.recipe, labeller.model, labeller.data
    else:
        recipe = find_recipe(name)
        data = prepare(sentences, name="builtin", templates=recipe.templates)
        model = build(recipe, data)
    if recipe.objective in ("local", "structured"):
        raise ValueError(f"{recipe.name} has no descent to differentiate; name a recipe with an energy, srl/spen say")
    corpus = ArcCorpus(encode(sentences["train"], data.rules, data.space))
    usable = np.flatnonzero(corpus.widest > 0)[:wanted]
    return Opened(model, corpus.batch(usable)[0])


def _label_sets(name: str, batch: int | None, trained: bool) -> Opened:
    from spen.tasks.multilabel.recipes import RECIPES
    from spen.tasks.multilabel.train import load_run

    if trained:
        recipe, model, splits = load_run(name)
        return Opened(model, splits.train.x[: batch or recipe.batch_size])
    recipe = RECIPES[name]
    if recipe.way.startswith("feedforward"):
        raise ValueError(f"{name} has no descent to differentiate; name a recipe with an energy, bibtex-end-to-end say")
    inputs, labels = {"bibtex": (1836, 159), "delicious": (500, 983)}[recipe.data]
    x = (torch.rand(batch or recipe.batch_size, inputs) < 0.04).float()
    return Opened(recipe.model(inputs, labels), x)
