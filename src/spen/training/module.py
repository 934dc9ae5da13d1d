"""One stage of training as a Lightning module."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import Metric

from spen.descent.trajectory import Trajectory
from spen.model import SPEN
from spen.training.averaging import WeightAverage
from spen.training.first_batch import check_examples_alone
from spen.training.health import Vitals, explain_non_finite, term_gradients
from spen.training.inert import inert
from spen.training.sources import Source, own_batches, stream
from spen.training.stages import Stage
from spen.training.timebox import TimeBox


class _Epoch:
    """The batches of one epoch, for Lightning: sized and iterable."""

    def __init__(self, source: Source, epoch: int, rank: int, world: int) -> None:
        self.source, self.epoch, self.rank, self.world = source, epoch, rank, world

    def __len__(self) -> int:
        return self.source.count(self.world)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self.source.batches(self.epoch, self.rank, self.world))


class StageModule(pl.LightningModule):
    """A SPEN, an objective and the parameters it may move; scored on development data after every epoch.

    Random numbers are reseeded from (seed, stage, epoch, process) at the start of each epoch, so an epoch that is
    run again after an interruption is the same epoch.
    """

    def __init__(
        self,
        model: SPEN,
        stage: Stage,
        train: Source,
        dev: Source,
        metric: Metric,
        *,
        seed: int,
        stage_number: int,
        vitals_every: int,
        check: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.metric = metric
        self.stage = stage
        self.sources = (train, dev)
        self.seed, self.stage_number, self.vitals_every = seed, stage_number, vitals_every
        self._unchecked = check  # whether the first batch is still to be looked at
        self.vitals = Vitals()
        self.losses: list[Tensor] = []
        self.reports: list[str] = []
        self._batch: Any = None
        self._pending: tuple[Tensor, Any, int] | None = None
        self._trajectory: Trajectory | None = None
        self._hook = model.minimizer.register_forward_hook(self._see)
        self._free = stage.trained(model)
        self.average = WeightAverage(self._free, stage.average) if stage.average else None
        self.box = TimeBox(stage.seconds) if stage.seconds is not None else None

    def teardown(self, stage: str) -> None:
        if stage == "fit":
            self._hook.remove()

    def setup(self, stage: str) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in self._free)

    def on_train_start(self) -> None:
        if self.box is not None:
            self.box.begin()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        parts = {"average": self.average, "box": self.box, "vitals": self.vitals}
        checkpoint["spen"] = {name: part.state_dict() for name, part in parts.items() if part is not None}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, state in checkpoint.get("spen", {}).items():
            getattr(self, name).load_state_dict(state)

    def train_dataloader(self) -> Any:
        return _Epoch(self.sources[0], self.current_epoch, self.trainer.global_rank, self.trainer.world_size)

    def val_dataloader(self) -> Any:
        return _Epoch(self.sources[1], 0, self.trainer.global_rank, self.trainer.world_size)

    def on_train_epoch_start(self) -> None:
        seed = stream(self.seed, self.stage_number, self.current_epoch, self.global_rank)
        torch.manual_seed(seed)
        self.losses.clear()

    def on_train_batch_start(self, batch: tuple[Any, Any], batch_idx: int) -> None:
        if self._unchecked:
            check_examples_alone(self.model, batch[0])
            self._unchecked = False

    def training_step(self, batch: tuple[Any, Any], index: int) -> Tensor:
        x, target = batch
        self._batch = (x, index)
        loss = self.stage.objective(self.model, x, target)
        self.losses.append(loss.detach())
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        gradients = [p.grad for p in self._free.values() if p.grad is not None]
        if not gradients:
            raise ValueError(f"stage {self.stage.name!r} sends no gradient to any parameter it may train")
        norms = torch.stack(torch._foreach_norm(gradients))
        finite = norms.isfinite().all() & self.losses[-1].isfinite()
        if self._trajectory is not None:
            finite = finite & self._trajectory.is_finite()
            self._trajectory = None
        if self._fused(optimizer):
            # The card skips an update that is not finite; the host asks one step later, and so never waits for it.
            optimizer.found_inf = (~finite).float()
            self._check()
            self._pending = (finite, *self._batch)
        else:
            self._pending = (finite, *self._batch)
            self._check()
        if self.vitals_every and self.global_step % self.vitals_every == 0:
            self.reports += self.vitals.observe(term_gradients(self.model, self._batch[0]))
            self._trajectory = None  # of the look, not of an update

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.average is not None:
            self.average.update()
        if self.box is not None:
            self.box.tick()
            if self.box.over:
                self.trainer.should_stop = True  # Lightning scores the development set before it stops

    @staticmethod
    def _fused(optimizer: Any) -> bool:
        return bool(optimizer.param_groups[0].get("fused"))

    def _check(self) -> None:
        """Raise if the update that is waiting to be looked at was not finite, and say where it broke."""
        pending, self._pending = self._pending, None
        if pending is not None and not bool(pending[0]):
            raise explain_non_finite(self.model, pending[1], f"batch {pending[2]} in epoch {self.current_epoch}")

    def on_train_epoch_end(self) -> None:
        self._check()

    def _see(self, minimizer: nn.Module, arguments: Any, trajectory: Trajectory) -> None:
        self._trajectory = trajectory

    def scored(self) -> dict[str, Tensor]:
        """A copy of the weights that the development set has scored."""
        self._exchange()
        weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self._exchange()
        return weights

    def _exchange(self) -> None:
        """Put the means in the place of the weights, or back."""
        if self.average is not None:
            self.average.swap()

    def on_validation_start(self) -> None:
        self._exchange()

    def on_validation_end(self) -> None:
        self._exchange()

    def validation_step(self, batch: tuple[Any, Any], index: int) -> None:
        x, target = batch
        self._trajectory = None
        y = self.stage.objective.predict(self.model, x)  # of a repeat, too: processes go through the model in step
        descent, self._trajectory = self._trajectory, None
        if index == 0 and descent is not None and self._judges():
            self.reports += inert(self.model, x, descent, self.vitals.largest)
            self._trajectory = None
        if index < self._scored():
            self.metric.update(y, target)

    def _judges(self) -> bool:
        """After the first epoch of a stage that trains everything; a clamped one has only begun with the energy."""
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        return fitting and self.current_epoch == 0 and bool(self.vitals_every) and not self.stage.clamp

    def _scored(self) -> int:
        """How many development batches count in this process."""
        own = own_batches(self.sources[1], self.trainer.global_rank, self.trainer.world_size)
        # Lists of several processes can be joined only where each has seen something.
        lists = any(isinstance(state, list) for state in self.metric.metric_state.values())
        return max(own, 1) if lists else own

    def on_validation_epoch_end(self) -> None:
        score = self.metric.compute()
        self.metric.reset()
        # Not to loggers: Lightning would count steps anew in every stage. EpochEnd tells them.
        self.log("dev", score, sync_dist=False, rank_zero_only=False, logger=False)

    def configure_optimizers(self) -> Any:
        stage = self.stage
        fused = all(p.device.type == "cuda" for p in self._free.values())
        optimizer = torch.optim.Adam(
            self._free.values(),
            lr=stage.learning_rate,
            eps=stage.epsilon,
            weight_decay=stage.weight_decay,
            fused=fused,
        )
        if stage.warmup == 0 and stage.decay_to == 1.0:
            return optimizer
        total = stage.epochs * self.sources[0].count(self.trainer.world_size)

        def factor(update: int) -> float:
            done = max(update / total, 0.0 if self.box is None else self.box.progress)
            rise = min(1.0, (update + 1) / stage.warmup) if stage.warmup else 1.0
            fall = stage.decay_to + (1 - stage.decay_to) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
            return rise * fall

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
