"""The gradient and the Hessian-vector product of one energy as flat programs: guarded, traced, fused, captured."""

from spen.gradients.compiled.errors import NotTraceable
from spen.gradients.compiled.strategy import Compiled

__all__ = ["Compiled", "NotTraceable"]
