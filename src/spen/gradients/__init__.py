"""How training differentiates the descent: one file a strategy."""

from spen.gradients.auto import Auto
from spen.gradients.checkpointed import Checkpointed
from spen.gradients.compiled import Compiled
from spen.gradients.detached import Detached
from spen.gradients.exact import Exact
from spen.gradients.finite_difference import FiniteDifference
from spen.gradients.forward_over_reverse import ForwardOverReverse
from spen.gradients.implicit import Implicit
from spen.gradients.replay import Replayed
from spen.gradients.second_order import NotTwiceDifferentiable
from spen.gradients.truncated import Truncated
from spen.gradients.written import Written
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
