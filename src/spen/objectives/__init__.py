"""What training minimises."""

from spen.objectives.contrastive import ContrastiveDivergence, Hamiltonian, Langevin, Sampler
from spen.objectives.deep_value import DeepValue
from spen.objectives.end_to_end import EndToEnd, Feedforward
from spen.objectives.losses import binary_log_loss, log_loss, squared_error
from spen.objectives.margins import DirectLoss, InferenceNetwork, LossAugmented, StructuredHinge
from spen.objectives.score_matching import DenoisingScoreMatching, ScoreMatching
from spen.protocols import Objective

__all__ = [
    "ContrastiveDivergence",
    "DeepValue",
    "DenoisingScoreMatching",
    "DirectLoss",
    "EndToEnd",
    "Feedforward",
    "Hamiltonian",
    "InferenceNetwork",
    "Langevin",
    "LossAugmented",
    "Objective",
    "Sampler",
    "ScoreMatching",
    "StructuredHinge",
    "binary_log_loss",
    "log_loss",
    "squared_error",
]
