"""The gradient and the Hessian-vector product of one energy as flat programs: traced, simplified, fused, captured."""

from spen.descent.compiled.lower import lowered
from spen.descent.compiled.simplify import simplified
from spen.descent.compiled.trace import NotTraceable, Program

__all__ = ["NotTraceable", "Program", "lowered", "simplified"]
