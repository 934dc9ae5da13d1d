"""How training differentiates the descent."""

from spen.gradients.auto import Auto
from spen.gradients.compiled import Compiled
from spen.gradients.exact import Exact, Written
from spen.gradients.finite_difference import FiniteDifference
from spen.gradients.forward_over_reverse import ForwardOverReverse
from spen.gradients.implicit import Implicit
from spen.gradients.replay import Checkpointed, Replayed
from spen.gradients.second_order import NotTwiceDifferentiable
from spen.gradients.truncated import Detached, Truncated
from spen.protocols import GradientStrategy

__all__ = [
    "Auto",
    "Checkpointed",
    "Compiled",
    "Detached",
    "Exact",
    "FiniteDifference",
    "ForwardOverReverse",
    "GradientStrategy",
    "Implicit",
    "NotTwiceDifferentiable",
    "Replayed",
    "Truncated",
    "Written",
]
