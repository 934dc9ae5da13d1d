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
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch.distributed as dist
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.loggers import Logger
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric

from spen.model import SPEN
from spen.pretrained import write_config
from spen.storage import load_weights
from spen.training.checkpoints import SafeCheckpointIO
from spen.training.denormals import flushed_denormals
from spen.training.epochs import EpochEnd
from spen.training.fingerprint import fingerprint, hash_weights
from spen.training.health import DeadEnergyWarning, InertEnergyWarning
from spen.training.module import Job, StageModule
from spen.training.processes import Terminated, Termination, devices_and_nodes, is_main_process, rejoin_after_restart
from spen.training.run import Run, say
from spen.training.sources import Source, as_metric, as_source
from spen.training.stages import Stage, check_arguments


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
    ``higher_is_better`` is needed if its class does not define it. A stage starts from the best epoch of the previous
    one and, with its ``patience``, ends some epochs after its own best. If ``keep_start`` is False, earlier stages do
    not count for the result.

    State is written after every epoch, or after the first that ends ``state_every`` seconds or more after the last
    writing. Calling ``fit`` again with the same ``out`` resumes from it and ends with the same weights as a run that
    was never interrupted. A folder of another run, or one that another process trains in, is refused. With ``seconds``,
    stop at the end of the epoch in which they run out: ``run.complete`` is False then, and the same call resumes. A
    SIGTERM writes the state and raises ``Terminated``, exit status 3.

    ``seed`` orders the batches of sources without their own seed, and seeds the random numbers of training.
    ``devices`` > 1 on each of ``nodes`` machines trains with DDP; torchrun sets both. ``precision`` is Lightning's,
    such as "bf16-mixed". ``vitals_every`` is the number of updates between checks of the gradient of each term; 0 turns
    them off. ``progress`` None prints a line to stderr after each epoch, and shows a bar if stderr is a terminal; True
    always shows both, False neither. Faults are reported in any case. ``logger``, of Lightning (TensorBoard, Weights &
    Biases, MLflow, CSV), or a list of them, gets ``NAME/loss`` and ``NAME/dev`` of the stage NAME after each epoch; its
    step counts the epochs of all stages. The model is left with the best weights.

    Parameters with ``requires_grad=False`` stay as they are. A model in eval mode is set to train mode; parts in eval
    mode of a model that is in train mode stay so.
    """
    score, higher = as_metric(metric, higher_is_better)
    devices, nodes = devices_and_nodes(devices, nodes)
    rejoin_after_restart(accelerator)
    loggers = _check_loggers(logger)
    check_arguments(model, stages)
    names = [stage.name for stage in stages]
    if not stages:
        raise ValueError("fit needs at least one stage, such as joint(EndToEnd(loss), epochs=10)")
    if len(set(names)) != len(names):
        raise ValueError(f"stages need different names, not {names}")
    several = devices * nodes > 1
    if several and any(stage.seconds is not None for stage in stages):
        raise ValueError("a stage that lasts so many seconds needs devices=1: clocks and schedules of several differ")
    job = Job(
        run=Run(Path(out)),
        model=model,
        stages=stages,
        train=as_source(train, seed, shuffle=True),
        dev=as_source(dev, seed, shuffle=False),
        metric=score,
        higher=higher,
        seed=seed,
        vitals_every=vitals_every,
        state_every=state_every,
        deadline=math.inf if seconds is None else time.monotonic() + seconds,
        lines=progress is not False,
        termination=Termination(),
    )
    bar = sys.stderr.isatty() if progress is None else progress
    trainer_options: dict[str, Any] = {
        "accelerator": accelerator,
        "devices": devices,
        "num_nodes": nodes,
        "precision": precision,
        # The constant of an energy has no gradient, so some parameters may stay unused.
        "strategy": "ddp_find_unused_parameters_true" if several else "auto",
        "logger": loggers or False,
        "enable_progress_bar": bar,
    }
    run = job.run
    with job.termination.watched(), run.locked() if is_main_process() else nullcontext(), _same_parameters(model):
        if is_main_process():
            Run.begin(out, recipe or {}, seed)
            own = fingerprint(model, stages, job.train, job.dev, score, devices * nodes, precision, higher_is_better)
            run.compare(own, hash_weights(model))
            write_config(run.folder, model.origin)  # a finished run is a saved model
            if run.complete:
                say(f"finished earlier, nothing trained: the weights are those of {run.folder}")
        for number in range(len(stages)):
            if not run.finished(number).exists() and not _fit_stage(job, number, trainer_options):
                return run
            model.load_state_dict(load_weights(run.best(number)))
        _load_result(job)
        if not run.complete and is_main_process():
            run.save(model.state_dict())
        if dist.is_available() and dist.is_initialized():
            dist.barrier()  # when fit returns in any process, the result is written
    return run


def _fit_stage(job: Job, number: int, trainer_options: dict[str, Any]) -> bool:
    """Train one stage to its end; False if the time was up."""
    stage, run = job.stages[number], job.run
    if not job.model.training:
        job.model.train()
    module, epochs = StageModule(job, number), EpochEnd(job, number)
    with warnings.catch_warnings(), _same_parameters(job.model):
        _filter_warnings(several=trainer_options["strategy"] != "auto")
        # To stderr: stdout is for the result of a command.
        bar = [RichProgressBar(console_kwargs={"stderr": True})] if trainer_options["enable_progress_bar"] else []
        trainer = pl.Trainer(
            **trainer_options,
            max_epochs=stage.epochs,
            gradient_clip_val=stage.clip,
            callbacks=[epochs, *bar],
            plugins=[SafeCheckpointIO()],
            enable_checkpointing=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            inference_mode=False,  # the metric that scores the start of a stage also scores its epochs
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
        )
        state = run.state(number)
        with _keyboard_interrupt(), flushed_denormals():
            if number and not state.exists():
                before = job.stages[number - 1]
                start = run.scores(number - 1).get("best")
                if stage.keep_start is not False and start is not None and not _predict_alike(before, stage):
                    trainer.validate(module, verbose=False)
                    start = module.score
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


@contextmanager
def _same_parameters(model: SPEN) -> Iterator[None]:
    """Afterwards the same parameters require a gradient as before: a stage switches it off for those that it clamps."""
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(wanted.get(name, True))


def _filter_warnings(*, several: bool) -> None:
    """Hide Lightning's advice on its own loaders, loggers and checkpoints, which are not used here."""
    for category in (UserWarning, FutureWarning):
        warnings.filterwarnings("ignore", module=r"pytorch_lightning.*", category=category)
    if several:  # a process may have no development batch of its own
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric", category=UserWarning)
    for own in (DeadEnergyWarning, InertEnergyWarning):
        warnings.filterwarnings("always", category=own)
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)


def _check_loggers(given: Any) -> list[Logger]:
    """A list of loggers, recognised by their method: the package ``lightning`` has classes of its own."""
    loggers = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for logger in loggers:
        if isinstance(logger, type) or not callable(getattr(logger, "log_metrics", None)):
            raise TypeError(
                f"logger must be a logger of Lightning, such as CSVLogger('logs'), or a list of them, not {logger!r}"
            )
    return loggers


def _predict_alike(one: Stage, other: Stage) -> bool:
    """Whether both score the same prediction: y_T of a descent, say, or Init(F(x))."""
    return type(one.objective).predict is type(other.objective).predict


def _load_result(job: Job) -> None:
    """Load the best epoch of all stages into the model. Stages that predict differently are compared by the score of
    the later one's start."""
    run, stages = job.run, job.stages
    best, score = 0, run.scores(0).get("best")
    for number, stage in enumerate(stages[1:], 1):
        scores = run.scores(number)
        if not _predict_alike(stages[number - 1], stage):
            best, score = number - 1, scores.get("start")
        own = scores.get("best")
        if stage.keep_start is False or score is None or own is None or (own > score if job.higher else own < score):
            best, score = number, own
    if best + 1 < len(stages):
        job.model.load_state_dict(load_weights(run.best(best)))
        if not run.complete and is_main_process():
            say(f"the best epoch of all stages is one of {stages[best].name!r} (dev {score:.4g}): it is the result")


@contextmanager
def _keyboard_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C. Lightning would end the process and ignore SIGINT from then on."""
    try:
        yield
    except SystemExit as end:
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt from None
