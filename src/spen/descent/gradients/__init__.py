"""How training differentiates the descent: one file a strategy."""

from spen.descent.gradients.auto import Auto
from spen.descent.gradients.checkpointed import Checkpointed
from spen.descent.gradients.compiled import Compiled
from spen.descent.gradients.exact import Exact
from spen.descent.gradients.finite_difference import FiniteDifference
from spen.descent.gradients.forward_over_reverse import ForwardOverReverse
from spen.descent.gradients.implicit import Implicit
from spen.descent.gradients.replay import Replayed
from spen.descent.gradients.second_order import NotTwiceDifferentiable
from spen.descent.gradients.truncated import Truncated
from spen.descent.gradients.written import Written
from spen.protocols import GradientStrategy

__all__ = [
    "Auto",
    "Checkpointed",
    "Compiled",
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
