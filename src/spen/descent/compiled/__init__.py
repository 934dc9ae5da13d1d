"""The gradient and the Hessian-vector product of one energy as flat programs: guarded, traced, fused, captured."""

from spen.descent.compiled.guards import NotTraceable

__all__ = ["NotTraceable"]
