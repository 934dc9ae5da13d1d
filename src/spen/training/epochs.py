"""What happens after each epoch of a stage: its score is recorded and compared, its state is written."""

from __future__ import annotations

import math
import time
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from spen.gradients.auto import Auto
from spen.model import SPEN
from spen.training.checkpoints import load_weights, save_weights
from spen.training.health import NO_LOSS
from spen.training.module import StageModule
from spen.training.processes import Terminated, Termination
from spen.training.run import Run, say
from spen.training.stages import Stage


class EpochEnd(pl.Callback):
    """After each epoch: record the scores, save the best weights, write the state, and decide whether to go on."""

    def __init__(
        self,
        run: Run,
        stage: Stage,
        number: int,
        *,
        higher: bool,
        deadline: float,
        every: float,
        lines: bool,
        termination: Termination,
    ) -> None:
        self.run, self.stage, self.number, self.higher, self.deadline = run, stage, number, higher, deadline
        self.every, self.lines, self._written = every, lines, time.monotonic()
        self._unwritten: dict[str, Tensor] | None = None  # the best weights, until they are in a file
        self.best: float | None = None
        self.best_epoch = -1
        self.start: float | None = None
        self.before: dict[str, Any] = {}  # the stage before and its score
        self.seconds = 0.0
        self.out_of_time = self.terminated = False
        self._termination = termination
        self._noted = -1  # the last epoch whose state is in the folder
        self._began = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("best", "best_epoch", "start", "before", "seconds")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            setattr(self, name, value)

    def start_from(self, before: Stage, score: float | None, *, write: bool) -> None:
        """The best of the stage before, with its score in this one. None: its weights are of another run."""
        if score is None or math.isnan(score):
            return
        self.start = score
        self.before = {"name": before.name, "score": self.run.scores(self.number - 1)["best"]}
        if self.stage.keep_start:  # it counts as the epoch before the first
            self.best, self.best_epoch = score, -1
            if write:
                save_weights(load_weights(self.run.best(self.number - 1)), self.run.best(self.number))

    def finish(self) -> None:
        """Write the best weights and say that the stage is done."""
        self._write_best()
        self.run.finish(self.number, {"best": self.best, "start": self.start})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, StageModule)
        self._termination.watch()
        self._noted = trainer.current_epoch - 1
        if self._finished(trainer.current_epoch - 1, pl_module):
            trainer.should_stop = True  # killed between the last state and the mark that the stage is done

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._began = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        # Processes must stop at the same batch, and only the end of an epoch is known to all of them.
        if self._termination.asked and trainer.world_size == 1 and self._noted == trainer.current_epoch - 1:
            raise Terminated

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, StageModule)
        epoch = trainer.current_epoch
        score = float(trainer.callback_metrics["dev"])
        seconds = time.monotonic() - self._began
        self.seconds += seconds
        if not math.isnan(score) and self._is_better(score, self.best):
            self.best, self.best_epoch = score, epoch
            if trainer.is_global_zero:
                self._unwritten = pl_module.scored()
        ends = self._finished(epoch, pl_module)
        if trainer.is_global_zero:
            entry = self._record(epoch, score, seconds, pl_module, last=ends or epoch + 1 >= self.stage.epochs)
            self._log(trainer, entry)
        pl_module.reports.clear()
        if self.best is None:
            raise RuntimeError(f"the development score of stage {self.stage.name!r} is not a number in epoch {epoch}")
        now = time.monotonic()
        # Each process has a clock of its own; that of the first decides for all.
        late, due = trainer.strategy.broadcast((now > self.deadline, now - self._written >= self.every))
        ended = trainer.strategy.reduce(
            torch.tensor(float(self._termination.asked), device=pl_module.device), reduce_op="sum"
        )
        self.terminated = bool(ended) and not ends and epoch + 1 < self.stage.epochs
        if ends or self.terminated:
            trainer.should_stop = True
        elif late and epoch + 1 < self.stage.epochs:
            self.out_of_time = trainer.should_stop = True
        if self.out_of_time or self.terminated or due:
            # The state names the best epoch, so that epoch's weights are there before it.
            self._write_best()
            trainer.save_checkpoint(self.run.state(self.number))
            self._written, self._noted = time.monotonic(), epoch

    def _record(self, epoch: int, score: float, seconds: float, module: StageModule, *, last: bool) -> dict[str, Any]:
        losses = torch.stack(module.losses)
        reports = list(module.reports)
        if not bool(losses.any()) and not self._said(NO_LOSS):
            reports.append(NO_LOSS)
        own = self._own_best(score)
        if last and self.before and self._is_better(self.before["score"], own):
            reports.append(
                f"stage {self.stage.name!r} ends worse than it began: its best dev score is {own:.4g}, "
                f"that of stage {self.before['name']!r} before it is {self.before['score']:.4g}"
            )
        entry = {
            "stage": self.stage.name,
            "epoch": epoch,
            "loss": float(losses.mean()),
            "dev": score,
            "best": self.best_epoch == epoch,
            "seconds": round(self.seconds, 3),
            "rates": _rates(module.model),
            "terms": dict(module.vitals.largest),
            "reports": reports,
        }
        self.run.record(entry)
        strategy = module.model.minimizer.gradient
        if isinstance(strategy, Auto):
            self.run.note_choices(strategy.choices())
        if self.lines:
            say(_line(self.stage, entry, seconds))
        for report in reports:
            say(report)
        return entry

    def _log(self, trainer: pl.Trainer, entry: dict[str, Any]) -> None:
        """Tell the loggers. The step counts the epochs of all stages, so that their curves follow each other."""
        name = self.stage.name
        earlier = sum(e["stage"] != name for e in self.run.metrics()) if trainer.loggers else 0
        for logger in trainer.loggers:
            logger.log_metrics({f"{name}/{key}": entry[key] for key in ("loss", "dev")}, step=earlier + entry["epoch"])

    def _own_best(self, score: float) -> float:
        """The best score of the epochs of this stage, of which ``score`` is the last."""
        own = [e["dev"] for e in self.run.metrics() if e["stage"] == self.stage.name]
        known = [s for s in (*own, score) if not math.isnan(s)]
        return max(known, default=math.nan) if self.higher else min(known, default=math.nan)

    def _said(self, report: str) -> bool:
        return any(report in e["reports"] for e in self.run.metrics() if e["stage"] == self.stage.name)

    def _is_better(self, score: float, than: float | None) -> bool:
        return than is None or (score > than if self.higher else score < than)

    def _write_best(self) -> None:
        if self._unwritten is not None:
            save_weights(self._unwritten, self.run.best(self.number))
            self._unwritten = None

    def _finished(self, epoch: int, module: StageModule) -> bool:
        if module.box is not None and module.box.over and self.best is not None:
            return True
        patience = self.stage.patience
        return patience is not None and self.best is not None and epoch - self.best_epoch >= patience


def _line(stage: Stage, entry: dict[str, Any], seconds: float) -> str:
    """``joint  3/20  loss 0.0123  dev 39.82 *  12.3 s``; the star is for the best epoch so far."""
    of = "" if stage.seconds is not None else f"/{stage.epochs}"  # whichever comes first is not known
    star = " *" if entry["best"] else ""
    numbers = f"loss {entry['loss']:.4g}  dev {entry['dev']:.4g}{star}"
    return f"{stage.name}  {entry['epoch'] + 1}{of}  {numbers}  {seconds:.1f} s"


def _rates(model: SPEN) -> list[float]:
    rates = getattr(getattr(model.minimizer, "rule", None), "rates", None)  # BundleEntropy has no rule
    return [] if rates is None else [round(r, 6) for r in rates().detach().flatten().tolist()]
