"""Contracts that anyone can run on parts of their own: check_energy, check_domain, check_rule, check_strategy."""

from spen.testing.energy import check_energy
from spen.testing.parts import check_domain, check_rule
from spen.testing.problems import Problem, known_problems
from spen.testing.report import ContractError
from spen.testing.strategy import check_strategy

__all__ = [
    "ContractError",
    "Problem",
    "check_domain",
    "check_energy",
    "check_rule",
    "check_strategy",
    "known_problems",
]
