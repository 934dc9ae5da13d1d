"""spen: structured prediction by energy minimisation.

You write an energy E(y; F(x)) as a network; ``spen`` predicts by descending it and learns it by back-propagating
through the descent (Belanger, Yang, McCallum: End-to-End Learning for Structured Prediction Energy Networks, 2017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from spen import derivatives as derivatives
    from spen import domains as domains
    from spen import energies as energies
    from spen import gradients as gradients
    from spen import models as models
    from spen import objectives as objectives
    from spen import rounding as rounding
    from spen import rules as rules
    from spen import tasks as tasks
    from spen import testing as testing
    from spen import training as training
    from spen.descent.convergence import RelativeChange
    from spen.descent.trajectory import Trajectory
    from spen.energies import Energy
    from spen.minimizer import Minimizer
    from spen.model import SPEN
    from spen.protocols import Domain, GradientStrategy, Objective, StepRule

# Imported at their first use, so that `import spen` is enough to write spen.objectives.EndToEnd.
_MODULES = (
    "derivatives",
    "domains",
    "energies",
    "gradients",
    "models",
    "objectives",
    "rounding",
    "rules",
    "tasks",
    "testing",
    "training",
)
_HOMES = {
    "SPEN": "spen.model",
    "Minimizer": "spen.minimizer",
    "RelativeChange": "spen.descent.convergence",
    "Trajectory": "spen.descent.trajectory",
    "Energy": "spen.energies",
    "Domain": "spen.protocols",
    "StepRule": "spen.protocols",
    "GradientStrategy": "spen.protocols",
    "Objective": "spen.protocols",
}


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds; the command line's help must not wait for it.
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"spen.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'spen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})


__all__ = [
    "SPEN",
    "Domain",
    "Energy",
    "GradientStrategy",
    "Minimizer",
    "Objective",
    "RelativeChange",
    "StepRule",
    "Trajectory",
    "__version__",
]
