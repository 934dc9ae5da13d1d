"""What training minimises."""

from spen.objectives.end_to_end import EndToEnd
from spen.objectives.feedforward import Feedforward
from spen.objectives.losses import binary_log_loss, log_loss, squared_error
from spen.objectives.structured_hinge import LossAugmented, StructuredHinge
from spen.protocols import Objective

__all__ = [
    "EndToEnd",
    "Feedforward",
    "LossAugmented",
    "Objective",
    "StructuredHinge",
    "binary_log_loss",
    "log_loss",
    "squared_error",
]
