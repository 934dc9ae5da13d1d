"""Train a SPEN in stages, into a run folder, so that it can be killed at any moment and resumed."""

from __future__ import annotations

import logging
import math
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import RichProgressBar
from torch import Tensor
from torchmetrics import Metric

from spen.model import SPEN
from spen.training.checkpoints import SafeCheckpointIO, load_weights, save_weights
from spen.training.denormals import flushed_denormals
from spen.training.fingerprint import fingerprint, start_of
from spen.training.health import NO_LOSS, DeadEnergyWarning
from spen.training.module import StageModule
from spen.training.run import Run, say
from spen.training.sources import Source, TensorSource
from spen.training.stages import Stage


def fit(
    model: SPEN,
    stages: Sequence[Stage],
    train: Source,
    dev: Source,
    metric: Metric,
    *,
    out: Path | str,
    seed: int = 0,
    recipe: dict[str, Any] | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    progress: bool | None = None,
    vitals_every: int = 100,
    seconds: float | None = None,
    state_every: float = 0.0,
) -> Run | None:
    """Run the stages one after another; return the run, whose weights are the best of the last stage.

    ``metric`` (torchmetrics) scores development data after each epoch: the best epoch is kept and, with a stage's
    ``patience``, ends it. State is written after every epoch, or after the first that ends ``state_every`` seconds
    or more after the last writing (epochs of a second need not write a gigabyte each); calling ``fit`` again with the
    same ``out`` goes on from there and ends with the same weights as a run that was never interrupted. With
    ``seconds``, stop at the end of the epoch in which they run out and return None: call again to go on.
    ``seed`` orders the batches of a ``TensorSource`` without a seed of its own, and all that training draws.
    ``devices`` > 1 trains with DDP.
    The model is left with the best weights.
    """
    if metric.higher_is_better is None:
        raise ValueError(
            f"{type(metric).__name__} does not say whether higher is better: set higher_is_better = True or False on "
            "its class"
        )
    names = [stage.name for stage in stages]
    if len(set(names)) != len(names):
        raise ValueError(f"stages need different names, not {names}")
    if devices > 1 and any(stage.seconds is not None for stage in stages):
        raise ValueError("a stage that lasts so many seconds needs devices=1: clocks and schedules of several differ")
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    if isinstance(train, TensorSource):
        train = train.seeded(seed)
    run = Run.begin(out, recipe or {}, seed)
    run.compare(fingerprint(model, stages, train, dev, metric, devices), start_of(model))
    if run.weights_path.exists():
        say(f"finished earlier, nothing trained: the weights are those of {run.folder}")
    for number in range(len(stages)):
        if not run.finished(number).exists():
            done = _fit_stage(
                run,
                model,
                stages,
                number,
                train,
                dev,
                metric,
                seed,
                accelerator,
                devices,
                progress,
                vitals_every,
                deadline,
                state_every,
            )
            if not done:
                return None
        model.load_state_dict(load_weights(run.best(number)))
    model.requires_grad_(True)
    if not run.weights_path.exists() and _is_main_process():
        run.save(model.state_dict())
    return run


def _fit_stage(
    run: Run,
    model: SPEN,
    stages: Sequence[Stage],
    number: int,
    train: Source,
    dev: Source,
    metric: Metric,
    seed: int,
    accelerator: str,
    devices: int,
    progress: bool | None,
    vitals_every: int,
    deadline: float,
    state_every: float,
) -> bool:
    stage = stages[number]
    module = StageModule(model, stage, train, dev, metric, seed=seed, stage_number=number, vitals_every=vitals_every)
    keeper = _Keeper(run, stage, number, higher=bool(metric.higher_is_better), deadline=deadline, every=state_every)
    callbacks: list[pl.Callback] = [keeper]
    show = sys.stderr.isatty() if progress is None else progress
    if show:
        # To stderr: a command's answer stands alone on stdout.
        callbacks.append(RichProgressBar(console_kwargs={"stderr": True}))
    with warnings.catch_warnings():
        # Lightning's advice on loaders, loggers and checkpoints is for its own; ours are deliberate.
        warnings.filterwarnings("ignore", module=r"pytorch_lightning.*", category=UserWarning)
        warnings.filterwarnings("ignore", module=r"pytorch_lightning.*", category=FutureWarning)
        if devices > 1:  # a process may have no development batch of its own
            warnings.filterwarnings("ignore", message="The ``compute`` method of metric", category=UserWarning)
        warnings.filterwarnings("always", category=DeadEnergyWarning)
        logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
        trainer = pl.Trainer(
            accelerator=accelerator,
            devices=devices,
            # The constant of an energy has no gradient, so some parameters may stay unused.
            strategy="ddp_find_unused_parameters_true" if devices > 1 else "auto",
            max_epochs=stage.epochs,
            gradient_clip_val=stage.clip,
            callbacks=callbacks,
            plugins=[SafeCheckpointIO()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=show,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
        )
        state = run.state(number)
        if stage.keep_start and number and not state.exists():
            keeper.start_from([before.name for before in stages[:number]], write=trainer.is_global_zero)
        with _interruptible(), flushed_denormals():
            trainer.fit(module, ckpt_path=str(state) if state.exists() else None)
    if trainer.interrupted:
        raise KeyboardInterrupt
    if keeper.out_of_time:
        return False
    if trainer.is_global_zero:
        keeper.write_best()
        run.finished(number).touch()
    trainer.strategy.barrier()
    return True


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C is an exception, as everywhere; Lightning would end the process and turn a deaf ear from then on."""
    try:
        yield
    except SystemExit as end:
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt from None


class _Keeper(pl.Callback):
    """After each epoch: record the scores, keep the best weights, write the state, and decide whether to go on."""

    def __init__(
        self, run: Run, stage: Stage, number: int, *, higher: bool, deadline: float, every: float = 0.0
    ) -> None:
        self.run, self.stage, self.number, self.higher, self.deadline = run, stage, number, higher, deadline
        self.every, self._written = every, time.monotonic()
        self._unwritten: dict[str, Tensor] | None = None  # the best weights, until they are in a file
        self.best: float | None = None
        self.best_epoch = -1
        self.seconds = 0.0
        self.out_of_time = False
        self._began = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_epoch, self.seconds = (state_dict[k] for k in ("best", "best_epoch", "seconds"))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, StageModule)
        if self._finished(trainer.current_epoch - 1, pl_module):
            trainer.should_stop = True  # killed between the last state and the mark that the stage is done

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._began = time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, StageModule)
        epoch = trainer.current_epoch
        score = float(trainer.callback_metrics["dev"])
        self.seconds += time.monotonic() - self._began
        if not math.isnan(score) and (self.best is None or (score > self.best if self.higher else score < self.best)):
            self.best, self.best_epoch = score, epoch
            if trainer.is_global_zero:
                self._unwritten = pl_module.scored()
        if trainer.is_global_zero:
            losses = torch.stack(pl_module.losses)
            if not bool(losses.any()) and not self._said(NO_LOSS):
                pl_module.reports.append(NO_LOSS)
            entry = {
                "stage": self.stage.name,
                "epoch": epoch,
                "loss": float(losses.mean()),
                "dev": score,
                "best": self.best_epoch == epoch,
                "seconds": round(self.seconds, 3),
                "rates": _rates(pl_module.model),
                "terms": dict(pl_module.vitals.largest),
                "reports": list(pl_module.reports),
            }
            self.run.record(entry)
            for report in pl_module.reports:
                say(report)
        pl_module.reports.clear()
        if self.best is None:
            raise RuntimeError(f"the development score of stage {self.stage.name!r} is not a number in epoch {epoch}")
        now = time.monotonic()
        # Each process has a clock of its own; that of the first decides for all.
        late, due = trainer.strategy.broadcast((now > self.deadline, now - self._written >= self.every))
        if self._finished(epoch, pl_module):
            trainer.should_stop = True
        elif late and epoch + 1 < self.stage.epochs:
            self.out_of_time = trainer.should_stop = True
        if self.out_of_time or due:
            # The state names the best epoch, so that epoch's weights are there before it.
            self.write_best()
            trainer.save_checkpoint(self.run.state(self.number))
            self._written = time.monotonic()

    def _said(self, report: str) -> bool:
        return any(report in e["reports"] for e in self.run.metrics() if e["stage"] == self.stage.name)

    def start_from(self, before: Sequence[str], *, write: bool) -> None:
        """The best of the stage before counts as the epoch before the first; it may itself be of an earlier stage.

        The file may hold epochs of this stage already: those of a process that died before it wrote a state.
        """
        scores = [e["dev"] for e in self.run.metrics() if e["stage"] in before and e["best"]]
        if not scores:
            return  # the stages before were taken over from another run
        self.best, self.best_epoch = scores[-1], -1
        if write:
            save_weights(load_weights(self.run.best(self.number - 1)), self.run.best(self.number))

    def write_best(self) -> None:
        """Put the best weights so far into their file."""
        if self._unwritten is not None:
            save_weights(self._unwritten, self.run.best(self.number))
            self._unwritten = None

    def _finished(self, epoch: int, module: StageModule) -> bool:
        if module.box is not None and module.box.over and self.best is not None:
            return True
        patience = self.stage.patience
        return patience is not None and self.best is not None and epoch - self.best_epoch >= patience


def _rates(model: SPEN) -> list[float]:
    rates = getattr(model.minimizer.rule, "rates", None)
    return [] if rates is None else [round(r, 6) for r in rates().detach().flatten().tolist()]


def _is_main_process() -> bool:
    return not (torch.distributed.is_available() and torch.distributed.is_initialized()) or (
        torch.distributed.get_rank() == 0
    )
