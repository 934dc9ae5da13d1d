"""Step rules: GradientDescent, Momentum, LBFGS."""

from spen.descent.rules import LBFGS, GradientDescent, Momentum
from spen.protocols import StepRule

__all__ = ["LBFGS", "GradientDescent", "Momentum", "StepRule"]
