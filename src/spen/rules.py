"""Step rules: GradientDescent, Momentum, LBFGS, and one that is itself learned."""

from spen.descent.learned_optimizer import LearnedOptimizer
from spen.descent.rules import LBFGS, GradientDescent, Momentum
from spen.protocols import StepRule

__all__ = ["LBFGS", "GradientDescent", "LearnedOptimizer", "Momentum", "StepRule"]
