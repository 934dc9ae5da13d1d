"""The descent: one loop, its rules, and the ways to differentiate it."""

from spen.descent.bundle_entropy import BundleEntropy
from spen.descent.convergence import RelativeChange
from spen.descent.loop import Descend, Path, Step
from spen.descent.minimizer import Minimizer
from spen.descent.potential import Potential
from spen.descent.trajectory import Trajectory

__all__ = ["BundleEntropy", "Descend", "Minimizer", "Path", "Potential", "RelativeChange", "Step", "Trajectory"]
