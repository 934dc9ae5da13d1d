"""After each epoch of a stage: record and compare its score, write the state, decide whether to stop."""

from __future__ import annotations

import math
import time
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from spen.gradients.auto import Auto
from spen.model import SPEN
from spen.storage import load_weights, save_weights
from spen.training.health import NO_LOSS
from spen.training.module import Job, StageModule
from spen.training.processes import Terminated
from spen.training.run import say
from spen.training.stages import Stage


class EpochEnd(pl.Callback):
    """After each epoch: record the scores, save the best weights, write the state, and decide whether to stop."""

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.run, self.number, self.stage = job, job.run, number, job.stages[number]
        self.best: float | None = None
        self.best_epoch = -1
        self.start: float | None = None
        self.before: dict[str, Any] = {}  # the previous stage and its score
        self.seconds = 0.0
        self.out_of_time = self.terminated = False
        self._best_weights: dict[str, Tensor] | None = None  # until they are in a file
        self._saved_epoch = -1  # the last epoch whose state is in the folder
        self._saved_at = self._epoch_began = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("best", "best_epoch", "start", "before", "seconds")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)

    def start_from(self, before: Stage, score: float | None, *, write: bool) -> None:
        """Note the score of the previous stage's best weights in this stage; None if they are of another run."""
        if score is None or math.isnan(score):
            return
        self.start = score
        self.before = {"name": before.name, "score": self.run.scores(self.number - 1)["best"]}
        if self.stage.keep_start:  # it counts as the epoch before the first
            self.best = score
            if write:
                save_weights(load_weights(self.run.best(self.number - 1)), self.run.best(self.number))

    def finish(self) -> None:
        """Write the best weights and mark the stage as finished."""
        self._write_best()
        self.run.finish(self.number, {"best": self.best, "start": self.start})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, StageModule)
        self.job.termination.watch()
        self._saved_epoch = trainer.current_epoch - 1
        if self._is_last(trainer.current_epoch - 1, pl_module):
            trainer.should_stop = True  # killed between the last state and the mark that the stage is finished

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._epoch_began = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        # Several processes must stop at the same batch, and only the end of an epoch is known to all of them.
        if (
            self.job.termination.requested
            and trainer.world_size == 1
            and self._saved_epoch == trainer.current_epoch - 1
        ):
            raise Terminated

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, StageModule)
        epoch, score = trainer.current_epoch, pl_module.score
        seconds = time.monotonic() - self._epoch_began
        self.seconds += seconds
        if self._is_better(score, self.best):
            self.best, self.best_epoch = score, epoch
            if trainer.is_global_zero:
                self._best_weights = pl_module.scored_weights()
        stops = self._is_last(epoch, pl_module)
        last = stops or epoch + 1 >= self.stage.epochs
        if trainer.is_global_zero:
            self._record(trainer, pl_module, seconds, last=last)
        pl_module.reports.clear()
        if self.best is None:
            raise RuntimeError(f"the development score of stage {self.stage.name!r} is not a number in epoch {epoch}")
        now = time.monotonic()
        # Each process has its own clock; that of the first decides for all.
        late, due = trainer.strategy.broadcast((now > self.job.deadline, now - self._saved_at >= self.job.state_every))
        signals = torch.tensor(float(self.job.termination.requested), device=pl_module.device)
        self.terminated = bool(trainer.strategy.reduce(signals, reduce_op="sum")) and not last
        self.out_of_time = late and not last and not self.terminated
        if stops or self.terminated or self.out_of_time:
            trainer.should_stop = True
        if self.out_of_time or self.terminated or due:
            self._write_best()  # before the state, which names the best epoch
            trainer.save_checkpoint(self.run.state(self.number))
            self._saved_at, self._saved_epoch = time.monotonic(), epoch

    def _record(self, trainer: pl.Trainer, module: StageModule, seconds: float, *, last: bool) -> None:
        """Write the line of the epoch, print it, and pass it to the loggers."""
        name, epoch, score = self.stage.name, trainer.current_epoch, module.score
        entries = self.run.metrics()
        own = [e for e in entries if e["stage"] == name]
        losses, reports = torch.stack(module.losses), list(module.reports)
        if not bool(losses.any()) and not any(NO_LOSS in e["reports"] for e in own):
            reports.append(NO_LOSS)
        scores = [s for s in (*(e["dev"] for e in own), score) if not math.isnan(s)]
        best = (max if self.job.higher else min)(scores, default=math.nan)
        if last and self.before and self._is_better(self.before["score"], best):
            reports.append(
                f"stage {name!r} ends worse than it began: its best dev score is {best:.4g}, "
                f"that of stage {self.before['name']!r} before it is {self.before['score']:.4g}"
            )
        entry: dict[str, Any] = {
            "stage": name,
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
        if self.job.lines:
            say(_line(self.stage, entry, seconds))
        for report in reports:
            say(report)
        step = len(entries) - len(own) + epoch  # counts the epochs of all stages
        for logger in trainer.loggers:
            logger.log_metrics({f"{name}/{key}": entry[key] for key in ("loss", "dev")}, step=step)

    def _is_better(self, score: float, than: float | None) -> bool:
        if math.isnan(score) or than is None:
            return not math.isnan(score)
        return score > than if self.job.higher else score < than

    def _write_best(self) -> None:
        if self._best_weights is not None:
            save_weights(self._best_weights, self.run.best(self.number))
            self._best_weights = None

    def _is_last(self, epoch: int, module: StageModule) -> bool:
        """Whether the stage ends after this epoch, by its seconds or its patience."""
        if self.best is None:
            return False
        patience = self.stage.patience
        out_of_patience = patience is not None and epoch - self.best_epoch >= patience
        return out_of_patience or (module.box is not None and module.box.over)


def _line(stage: Stage, entry: dict[str, Any], seconds: float) -> str:
    """``joint  3/20  loss 0.0123  dev 39.82 *  12.3 s``; the star marks the best epoch so far."""
    of = "" if stage.seconds is not None else f"/{stage.epochs}"  # the seconds may end the stage earlier
    star = " *" if entry["best"] else ""
    numbers = f"loss {entry['loss']:.4g}  dev {entry['dev']:.4g}{star}"
    return f"{stage.name}  {entry['epoch'] + 1}{of}  {numbers}  {seconds:.1f} s"


def _rates(model: SPEN) -> list[float]:
    rates = getattr(getattr(model.minimizer, "rule", None), "rates", None)  # BundleEntropy has no rule
    return [] if rates is None else [round(r, 6) for r in rates().detach().flatten().tolist()]
