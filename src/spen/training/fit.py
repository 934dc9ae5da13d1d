"""Train a SPEN in stages, into a run folder, so that it can be killed at any moment and resumed."""

from __future__ import annotations

import logging
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.loggers import Logger
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric

from spen.model import SPEN
from spen.objectives import Feedforward
from spen.pretrained import write_config
from spen.training.checkpoints import SafeCheckpointIO, load_weights
from spen.training.denormals import flushed_denormals
from spen.training.epochs import EpochEnd
from spen.training.fingerprint import fingerprint, start_of
from spen.training.health import DeadEnergyWarning
from spen.training.inert import InertEnergyWarning
from spen.training.inputs import as_metric, as_source
from spen.training.module import StageModule
from spen.training.processes import Terminated, Termination, is_main_process, join_again, sizes
from spen.training.run import Run, say
from spen.training.sources import Source
from spen.training.stages import Stage


def fit(
    model: SPEN,
    stages: Sequence[Stage],
    train: Source | DataLoader[Any] | tuple[Any, Any],
    dev: Source | DataLoader[Any] | tuple[Any, Any],
    metric: Metric | Callable[[Tensor, Any], Any],
    *,
    out: Path | str,
    seed: int = 0,
    recipe: dict[str, Any] | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    precision: str = "32-true",
    higher_is_better: bool | None = None,
    progress: bool | None = None,
    vitals_every: int = 100,
    seconds: float | None = None,
    state_every: float = 0.0,
    logger: Logger | Sequence[Logger] | None = None,
) -> Run:
    """Run the stages one after another; return the run, whose weights are those of the best epoch of all stages.

    ``train`` and ``dev`` are sources, ``DataLoader``s or pairs of tensors (x, target), which are batched by 32.
    ``metric``, of torchmetrics or a function of (y, target), scores development data after each epoch;
    ``higher_is_better`` says so where its class does not. A stage starts from the best epoch of the one
    before it and, with its ``patience``, ends some epochs after its own best. Where ``keep_start`` is False, earlier
    stages do not count for the result. State is written after every epoch, or after the first that ends
    ``state_every`` seconds or more after the last writing (epochs of a second need not write a gigabyte each); calling
    ``fit`` again with the same ``out`` goes on from there and ends with the same weights as a run that was never
    interrupted. A folder that holds another run, or that another process trains in, is refused. With ``seconds``, stop
    at the end of the epoch in which they run out: ``run.complete`` is False then, call again to go on. A SIGTERM writes
    the state and raises ``Terminated``, exit status 3.
    ``seed`` orders the batches of what has no seed of its own, and all that training draws.
    ``devices`` > 1 on each of ``nodes`` machines trains with DDP; under torchrun they are found. ``precision`` is
    Lightning's, such as "bf16-mixed". ``progress`` None writes a line to stderr after each epoch, and shows a bar where
    stderr is a terminal; True always shows both, False neither. What goes wrong is said in any case.
    ``logger``, of Lightning (TensorBoard, Weights & Biases, MLflow, CSV), or a list of them, gets ``NAME/loss`` and
    ``NAME/dev`` of the stage NAME after each epoch; its step counts the epochs of all stages.
    The model is left with the best weights.
    """
    score, higher = as_metric(metric, higher_is_better)
    devices, nodes = sizes(devices, nodes)
    join_again(accelerator)
    loggers = _loggers(logger)
    names = [stage.name for stage in stages]
    if len(set(names)) != len(names):
        raise ValueError(f"stages need different names, not {names}")
    if devices * nodes > 1 and any(stage.seconds is not None for stage in stages):
        raise ValueError("a stage that lasts so many seconds needs devices=1: clocks and schedules of several differ")
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    source, scored = as_source(train, seed, shuffle=True), as_source(dev, seed, shuffle=False)
    run, termination = Run(Path(out)), Termination()
    with termination.watched(), run.locked() if is_main_process() else nullcontext():
        if is_main_process():
            run = Run.begin(out, recipe or {}, seed)
            own = fingerprint(model, stages, source, scored, score, devices * nodes, precision, higher_is_better)
            run.compare(own, start_of(model))
            write_config(run.folder, model.origin)  # a finished run is a saved model
            if run.complete:
                say(f"finished earlier, nothing trained: the weights are those of {run.folder}")
        job = _Job(
            run,
            model,
            stages,
            (source, scored),
            score,
            higher,
            seed,
            {"accelerator": accelerator, "devices": devices, "num_nodes": nodes, "precision": precision},
            progress,
            vitals_every,
            deadline,
            state_every,
            loggers,
            termination,
        )
        for number in range(len(stages)):
            if not run.finished(number).exists() and not job.fit_stage(number):
                return run
            model.load_state_dict(load_weights(run.best(number)))
        _load_result(run, model, stages, higher=higher)
        model.requires_grad_(True)
        if not run.complete and is_main_process():
            run.save(model.state_dict())
        _meet()
    return run


@dataclass(frozen=True)
class _Job:
    """What the stages of a run share."""

    run: Run
    model: SPEN
    stages: Sequence[Stage]
    sources: tuple[Source, Source]
    metric: Metric
    higher: bool
    seed: int
    hardware: dict[str, Any]
    progress: bool | None
    vitals_every: int
    deadline: float
    state_every: float
    loggers: list[Logger]
    termination: Termination

    def fit_stage(self, number: int) -> bool:
        """Train one stage to its end; False if the time was up."""
        stage, run = self.stages[number], self.run
        module = StageModule(
            self.model,
            stage,
            *self.sources,
            self.metric,
            seed=self.seed,
            stage_number=number,
            vitals_every=self.vitals_every,
            check=any(not isinstance(s.objective, Feedforward) for s in self.stages),
        )
        before = self.stages[number - 1] if number else None
        epochs = EpochEnd(
            run,
            stage,
            number,
            higher=self.higher,
            deadline=self.deadline,
            every=self.state_every,
            lines=self.progress is not False,
            termination=self.termination,
        )
        with warnings.catch_warnings():
            _quiet(several=self._several)
            trainer = self._trainer(stage, epochs)
            state = run.state(number)
            with _interruptible(), flushed_denormals():
                if before is not None and not state.exists():
                    start = run.scores(number - 1).get("best")
                    if stage.keep_start is not False and start is not None and not _alike(before, stage):
                        trainer.validate(module, verbose=False)
                        start = float(trainer.callback_metrics["dev"])
                    epochs.start_from(before, start, write=trainer.is_global_zero)
                trainer.fit(module, ckpt_path=str(state) if state.exists() else None)
        if trainer.interrupted:
            raise KeyboardInterrupt
        if epochs.terminated:
            raise Terminated
        if epochs.out_of_time:
            return False
        if trainer.is_global_zero:
            epochs.finish()
        trainer.strategy.barrier()
        return True

    @property
    def _several(self) -> bool:
        return bool(self.hardware["devices"] * self.hardware["num_nodes"] > 1)

    def _trainer(self, stage: Stage, epochs: EpochEnd) -> pl.Trainer:
        show = sys.stderr.isatty() if self.progress is None else self.progress
        # To stderr: a command's answer stands alone on stdout.
        bar = [RichProgressBar(console_kwargs={"stderr": True})] if show else []
        return pl.Trainer(
            **self.hardware,
            # The constant of an energy has no gradient, so some parameters may stay unused.
            strategy="ddp_find_unused_parameters_true" if self._several else "auto",
            max_epochs=stage.epochs,
            gradient_clip_val=stage.clip,
            callbacks=[epochs, *bar],
            plugins=[SafeCheckpointIO()],
            logger=self.loggers or False,
            enable_checkpointing=False,
            enable_progress_bar=show,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            inference_mode=False,  # a metric that scored the start of a stage goes on scoring its epochs
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
        )


def _quiet(*, several: bool) -> None:
    """Lightning's advice on loaders, loggers and checkpoints is for its own; ours are deliberate."""
    warnings.filterwarnings("ignore", module=r"pytorch_lightning.*", category=UserWarning)
    warnings.filterwarnings("ignore", module=r"pytorch_lightning.*", category=FutureWarning)
    if several:  # a process may have no development batch of its own
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric", category=UserWarning)
    warnings.filterwarnings("always", category=DeadEnergyWarning)
    warnings.filterwarnings("always", category=InertEnergyWarning)
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)


def _meet() -> None:
    """Wait for the other processes: the result is written when ``fit`` returns in any of them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def _loggers(given: Any) -> list[Logger]:
    """A list of them; judged by its method, because the package ``lightning`` has classes of its own."""
    loggers = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for logger in loggers:
        if isinstance(logger, type) or not callable(getattr(logger, "log_metrics", None)):
            raise TypeError(
                f"logger must be a logger of Lightning, such as CSVLogger('logs'), or a list of them, not {logger!r}"
            )
    return loggers


def _alike(one: Stage, other: Stage) -> bool:
    """Whether both score the same prediction: that of a descent, say, or that of Init."""
    return type(one.objective).predict is type(other.objective).predict


def _load_result(run: Run, model: SPEN, stages: Sequence[Stage], *, higher: bool) -> None:
    """Put the weights of the best epoch of all stages into the model; each is scored as the stage after it predicts."""
    best, score = 0, run.scores(0).get("best")
    for number, stage in enumerate(stages[1:], 1):
        scores = run.scores(number)
        if not _alike(stages[number - 1], stage):
            best, score = number - 1, scores.get("start")
        own = scores.get("best")
        if stage.keep_start is False or score is None or own is None or (own > score if higher else own < score):
            best, score = number, own
    if best + 1 < len(stages):
        model.load_state_dict(load_weights(run.best(best)))
        if not run.complete and is_main_process():
            say(f"the best epoch of all stages is one of {stages[best].name!r} (dev {score:.4g}): it is the result")


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
