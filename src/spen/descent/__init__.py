"""The descent: one loop, the energy it follows, when it stops, and what it returns."""

from spen.descent.convergence import RelativeChange
from spen.descent.loop import Descend, Iterates, Step
from spen.descent.potential import Potential
from spen.descent.trajectory import Trajectory

__all__ = ["Descend", "Iterates", "Potential", "RelativeChange", "Step", "Trajectory"]
