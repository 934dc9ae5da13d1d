"""Training: stages, run folders, checkpoints, on Lightning."""

from spen.storage import load_weights, save_weights
from spen.training.denormals import flushed_denormals
from spen.training.fit import fit
from spen.training.health import DeadEnergyWarning, InertEnergyWarning, NonFinite
from spen.training.processes import Terminated
from spen.training.run import Run
from spen.training.sources import Source, TensorSource
from spen.training.stages import Stage, clamped, joint, pretrain

__all__ = [
    "DeadEnergyWarning",
    "InertEnergyWarning",
    "NonFinite",
    "Run",
    "Source",
    "Stage",
    "TensorSource",
    "Terminated",
    "clamped",
    "fit",
    "flushed_denormals",
    "joint",
    "load_weights",
    "pretrain",
    "save_weights",
]
