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
from pytorch_lightning.loggers import Logger
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
    logger: Logger | Sequence[Logger] | None = None,
) -> Run | None:
    """Run the stages one after another; return the run, whose weights are those of the best epoch of all stages.

    ``metric`` (torchmetrics) scores development data after each epoch; a stage starts from the best epoch of the one
    before it and, with its ``patience``, ends some epochs after its own best. Where ``keep_start`` is False, earlier
    stages do not count for the result. State is written after every epoch, or after the first that ends
    ``state_every`` seconds or more after the last writing (epochs of a second need not write a gigabyte each); calling
    ``fit`` again with the same ``out`` goes on from there and ends with the same weights as a run that was never
    interrupted. A folder that holds another run is refused. With ``seconds``, stop at the end of the epoch in which
    they run out and return None: call again to go on.
    ``seed`` orders the batches of a ``TensorSource`` without a seed of its own, and all that training draws.
    ``devices`` > 1 trains with DDP. ``progress`` None writes a line to stderr after each epoch, and shows a bar where
    stderr is a terminal; True always shows both, False neither. What goes wrong is said in any case.
    ``logger``, of Lightning (TensorBoard, Weights & Biases, MLflow, CSV), or a list of them, gets ``NAME/loss`` and
    ``NAME/dev`` of the stage NAME after each epoch; its step counts the epochs of all stages.
    The model is left with the best weights.
    """
    if metric.higher_is_better is None:
        raise ValueError(
            f"{type(metric).__name__} does not say whether higher is better: set higher_is_better = True or False on "
            "its class"
        )
    loggers = _loggers(logger)
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
    if model.origin is not None and _is_main_process():
        write_config(run.folder, model.origin)  # a finished run is a saved model
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
                loggers,
            )
            if not done:
                return None
        model.load_state_dict(load_weights(run.best(number)))
    _load_result(run, model, stages, higher=bool(metric.higher_is_better))
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
    loggers: list[Logger],
) -> bool:
    stage = stages[number]
    module = StageModule(
        model,
        stage,
        train,
        dev,
        metric,
        seed=seed,
        stage_number=number,
        vitals_every=vitals_every,
        check=any(not isinstance(s.objective, Feedforward) for s in stages),
    )
    before = stages[number - 1] if number else None
    higher, lines = bool(metric.higher_is_better), progress is not False
    epochs = EpochEnd(run, stage, number, higher=higher, deadline=deadline, every=state_every, lines=lines)
    callbacks: list[pl.Callback] = [epochs]
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
        warnings.filterwarnings("always", category=InertEnergyWarning)
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
            logger=loggers or False,
            enable_checkpointing=False,
            enable_progress_bar=show,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            inference_mode=False,  # a metric that scored the start of a stage goes on scoring its epochs
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
        )
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
    if epochs.out_of_time:
        return False
    if trainer.is_global_zero:
        epochs.finish()
    trainer.strategy.barrier()
    return True


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
        if not run.weights_path.exists() and _is_main_process():
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


def _is_main_process() -> bool:
    return not (torch.distributed.is_available() and torch.distributed.is_initialized()) or (
        torch.distributed.get_rank() == 0
    )
