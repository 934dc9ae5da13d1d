"""From a soft prediction to a discrete answer: argmax, greedy heuristics, AD³, and exact search.

Every rounding reads scores (B, rows, columns, labels) and `Constraints` and returns labels (B, rows, columns); label 0
is the empty one.
"""

from spen.rounding.ad3 import relax_ad3, round_ad3
from spen.rounding.constraints import EMPTY, Constraints, Relaxation, Violations, count_violations
from spen.rounding.greedy import round_argmax, round_greedy, round_threshold
from spen.rounding.ilp import relax_lp, round_ilp

__all__ = [
    "EMPTY",
    "Constraints",
    "Relaxation",
    "Violations",
    "count_violations",
    "relax_ad3",
    "relax_lp",
    "round_ad3",
    "round_argmax",
    "round_greedy",
    "round_ilp",
    "round_threshold",
]
