"""One stage of training as a Lightning module."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import Metric

from spen.descent.trajectory import Trajectory
from spen.model import SPEN
from spen.objectives import Feedforward
from spen.training.health import Vitals, check_examples_alone, explain_non_finite, find_inert, term_gradients
from spen.training.processes import Termination
from spen.training.run import Run
from spen.training.sources import Source, own_batches, stream
from spen.training.stages import Stage


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the stages of a run share: the arguments of ``fit``."""

    run: Run
    model: SPEN
    stages: Sequence[Stage]
    train: Source
    dev: Source
    metric: Metric
    higher: bool
    seed: int
    vitals_every: int
    state_every: float
    deadline: float
    lines: bool
    """Whether a line is printed after each epoch."""
    termination: Termination


class StageModule(pl.LightningModule):
    """A SPEN, an objective and the parameters it trains; scored on development data after every epoch.

    Random numbers are seeded from (seed, stage, epoch, process) at the start of each epoch, so an epoch that is
    repeated after an interruption gives the same result.
    """

    def __init__(self, job: Job, number: int) -> None:
        super().__init__()
        self.job, self.number, self.stage = job, number, job.stages[number]
        self.model, self.metric = job.model, job.metric
        self.stage.objective.resume({})  # what it stored in an earlier training does not belong to this one
        self.vitals = Vitals()
        self.losses: list[Tensor] = []
        self.reports: list[str] = []
        self.score = math.nan
        self._unchecked = any(not isinstance(s.objective, Feedforward) for s in job.stages)
        self._batch: Any = None
        self._pending: tuple[Tensor, Tensor, Any, int] | None = None  # whether an update was finite, its loss and batch
        self._trajectory: Trajectory | None = None
        self._hook = self.model.minimizer.register_forward_hook(self._keep_trajectory)
        self._free = self.stage.trained(self.model)
        self.average = WeightAverage(self._free, self.stage.average) if self.stage.average else None
        self.box = TimeBox(self.stage.seconds) if self.stage.seconds is not None else None

    def setup(self, stage: str) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in self._free)

    def teardown(self, stage: str) -> None:
        if stage == "fit":
            self._hook.remove()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        parts = {"average": self.average, "box": self.box, "vitals": self.vitals}
        checkpoint["spen"] = {name: part.state_dict() for name, part in parts.items() if part is not None}
        checkpoint["objective"] = self.stage.objective.training_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, state in checkpoint.get("spen", {}).items():
            getattr(self, name).load_state_dict(state)
        self.stage.objective.resume(checkpoint.get("objective", {}))

    def train_dataloader(self) -> Any:
        return _Epoch(self.job.train, self.current_epoch, self.trainer.global_rank, self.trainer.world_size)

    def val_dataloader(self) -> Any:
        return _Epoch(self.job.dev, 0, self.trainer.global_rank, self.trainer.world_size)

    def configure_optimizers(self) -> Any:
        stage = self.stage
        optimizer = torch.optim.Adam(
            self._free.values(),
            lr=stage.learning_rate,
            eps=stage.epsilon,
            weight_decay=stage.weight_decay,
            fused=all(p.device.type == "cuda" for p in self._free.values()),
        )
        if stage.warmup == 0 and stage.decay_to == 1.0:
            return optimizer
        total = stage.epochs * self.job.train.count(self.trainer.world_size)

        def factor(update: int) -> float:
            done = max(update / total, 0.0 if self.box is None else self.box.progress)
            rise = min(1.0, (update + 1) / stage.warmup) if stage.warmup else 1.0
            fall = stage.decay_to + (1 - stage.decay_to) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
            return rise * fall

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    # Training.

    def on_train_start(self) -> None:
        if self.box is not None:
            self.box.begin()

    def on_train_epoch_start(self) -> None:
        torch.manual_seed(stream(self.job.seed, self.number, self.current_epoch, self.global_rank))
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
        self._check_pending()
        self._pending = (finite, self.losses[-1], *self._batch)
        if optimizer.param_groups[0].get("fused"):
            # The device skips an update that is not finite. The host checks it one step later, without waiting.
            optimizer.found_inf = (~finite).float()
        else:
            self._check_pending()
        if self.job.vitals_every and self.global_step % self.job.vitals_every == 0:
            self.reports += self.vitals.observe(term_gradients(self.model, self._batch[0]))
        self._trajectory = None

    def _check_pending(self) -> None:
        """Raise if the pending update was not finite, with the place where it began."""
        pending, self._pending = self._pending, None
        if pending is not None and not bool(pending[0]):
            _, loss, x, index = pending
            raise explain_non_finite(self.model, x, f"batch {index} in epoch {self.current_epoch}", loss)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.average is not None:
            self.average.update()
        if self.box is not None:
            self.box.tick()
            if self.box.over:
                self.trainer.should_stop = True  # Lightning scores the development set before it stops

    def on_train_epoch_end(self) -> None:
        self._check_pending()

    def _keep_trajectory(self, minimizer: nn.Module, arguments: Any, trajectory: Trajectory) -> None:
        self._trajectory = trajectory

    # Scoring on development data, with the average in the place of the weights if there is one.

    def on_validation_start(self) -> None:
        self._swap_average()

    def validation_step(self, batch: tuple[Any, Any], index: int) -> None:
        x, target = batch
        self._trajectory = None
        y = self.stage.objective.predict(self.model, x)  # also of a repeated batch: all processes call the model
        trajectory = self._trajectory
        if index == 0 and trajectory is not None and self._reports_inert_terms():
            self.reports += find_inert(self.model, x, trajectory, self.vitals.largest)
        self._trajectory = None
        if index < self._scored_batches():
            self.metric.update(y, target)

    def on_validation_epoch_end(self) -> None:
        self.score = float(self.metric.compute())
        self.metric.reset()

    def on_validation_end(self) -> None:
        self._swap_average()

    def scored_weights(self) -> dict[str, Tensor]:
        """A copy of the weights that were scored on development data."""
        self._swap_average()
        weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self._swap_average()
        return weights

    def _swap_average(self) -> None:
        if self.average is not None:
            self.average.swap()

    def _reports_inert_terms(self) -> bool:
        """After the first epoch of a stage that trains everything; a clamped one has only begun with the energy."""
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        return fitting and self.current_epoch == 0 and bool(self.job.vitals_every) and not self.stage.clamp

    def _scored_batches(self) -> int:
        """The number of development batches that count in this process."""
        own = own_batches(self.job.dev, self.trainer.global_rank, self.trainer.world_size)
        # torchmetrics gathers lists only if each process has one.
        lists = any(isinstance(state, list) for state in self.metric.metric_state.values())
        return max(own, 1) if lists else own


class _Epoch:
    """The batches of one epoch, for Lightning: sized and iterable."""

    def __init__(self, source: Source, epoch: int, rank: int, world: int) -> None:
        self.source, self.epoch, self.rank, self.world = source, epoch, rank, world

    def __len__(self) -> int:
        return self.source.count(self.world)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self.source.batches(self.epoch, self.rank, self.world))


class WeightAverage:
    """θ̄ ← δ_n θ̄ + (1 − δ_n) θ after each update, with δ_n = min(δ, (1 + n) / (10 + n)) and δ = ``decay``."""

    def __init__(self, parameters: dict[str, nn.Parameter], decay: float) -> None:
        self.parameters, self.decay, self.updates = parameters, decay, 0
        self.means: dict[str, Tensor] = {}

    def update(self) -> None:
        if not self.means:
            self.means = {name: p.detach().clone() for name, p in self.parameters.items()}
        self._move_to_device()
        self.updates += 1
        keep = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(list(self.means.values()), [p.detach() for p in self.parameters.values()], 1 - keep)

    def swap(self) -> None:
        """Exchange the weights and their means in place."""
        self._move_to_device()
        with torch.no_grad():
            for name, mean in self.means.items():
                weight = self.parameters[name].detach().clone()
                self.parameters[name].copy_(mean)
                mean.copy_(weight)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "means": dict(self.means)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates, self.means = state["updates"], dict(state["means"])

    def _move_to_device(self) -> None:
        # Lightning loads the state before it moves the weights to the device.
        self.means = {name: mean.to(self.parameters[name].device) for name, mean in self.means.items()}


class TimeBox:
    """The progress p of a stage that lasts ``seconds``, from 0 to 1, which it reaches when they are over.

    1 − p falls in proportion to the time that is left. The first ``settle`` updates of a process, in which programs
    are compiled, use up time but leave p unchanged: the schedule is fitted to the time after them, so a slow start
    shortens all parts of it alike and skips none.
    """

    def __init__(self, seconds: float, settle: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.settle, self._clock = seconds, settle, clock
        self.spent, self.progress = 0.0, 0.0
        self._updates, self._last = 0, clock()

    def begin(self) -> None:
        """Start the clock in this process."""
        self._last = self._clock()

    def tick(self) -> None:
        """Count an update."""
        now = self._clock()
        passed, self._last = now - self._last, now
        left = self.seconds - self.spent
        self.spent += passed
        self._updates += 1
        if left <= passed:
            self.progress = 1.0
        elif self._updates > self.settle:
            self.progress += (1 - self.progress) * passed / left

    @property
    def over(self) -> bool:
        return self.spent >= self.seconds

    def state_dict(self) -> dict[str, float]:
        return {"spent": self.spent, "progress": self.progress}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.spent, self.progress = state["spent"], state["progress"]
