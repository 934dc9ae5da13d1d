"""The default strategy: chosen by a rule that needs no clock, and in long runs by measurement."""

from __future__ import annotations

import ast
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spen.descent.loop import Descend, Iterates
from spen.descent.potential import Potential
from spen.gradients.auto_trial import (
    TURNS,
    Clock,
    Measurement,
    Trial,
    held_bytes,
    in_mib,
    is_exact,
    problem_of,
    sentence,
)
from spen.gradients.compiled import Compiled
from spen.gradients.exact import Exact
from spen.gradients.finite_difference import FiniteDifference
from spen.gradients.forward_over_reverse import ForwardOverReverse
from spen.gradients.replay import Checkpointed
from spen.gradients.second_order import NotTwiceDifferentiable, require_second_derivative
from spen.gradients.snapshots import untouched
from spen.protocols import GradientStrategy

SHARE = 0.02
"""The share of the time trained so far that measuring may take."""

LONG = 2.0
"""Work that is not training is announced if it takes more seconds than this."""

FEWEST = 3
"""Batches of a shape before a program is made where training them has already taken a fifth of what that takes."""

BUDGET = 0.25
"""The share of the memory of a device that a backward pass may take."""


@dataclass
class Choice:
    """What is used for one energy, device and range of sizes, and why."""

    energy: str
    device: str
    steps: int
    size: int  # the numbers of y lie between 4^size and 4^(size + 1)
    strategy: GradientStrategy
    reason: str
    measured: list[Measurement] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As it is written to a run folder; ``Auto.from_choice`` reads it."""
        return {
            "energy": self.energy,
            "device": self.device,
            "steps": self.steps,
            "size": self.size,
            "strategy": str(self.strategy),
            "reason": self.reason,
        }

    def __str__(self) -> str:
        head = f"{self.strategy} for {self.energy} on {self.device}: {self.reason}"
        return "\n".join([head, *(f"  {m}" for m in self.measured)])


class Auto(GradientStrategy):
    """Choose an exact strategy by a rule; ``explain()`` says which and why.

    The rule looks at the energy, never at a clock. ``FiniteDifference()`` if the energy can be differentiated only
    once. On a CPU ``Exact()``, or ``Checkpointed()`` where double backprop would hold more than a quarter of the
    memory. On a GPU the same for the first ``patience`` batches of a shape, fewer if batches take seconds, then
    ``Compiled``: through forward over reverse for convolutions and reverse over reverse for everything else, keeping
    results where memory allows it.

    In a long run other exact strategies are tried on training steps, in turns with the present one, as soon as trying
    one takes no more than 2 % of the time trained so far; one that is 5 % faster takes over. ``measure=False`` leaves
    that out, for runs that must be equal bit for bit. ``tolerance`` allows inexact strategies, up to this relative
    error of the gradient; one of them takes over if it is 1.3 times as fast in every turn.
    ``compiled=False`` makes no programs.
    """

    def __init__(
        self,
        tolerance: float | None = None,
        *,
        compiled: bool = True,
        patience: int = 20,
        measure: bool = True,
    ) -> None:
        if tolerance is not None and not tolerance > 0:
            raise ValueError(f"Auto needs tolerance > 0, not {tolerance}")
        if patience < 0:
            raise ValueError(f"Auto needs patience ≥ 0, not {patience}")
        self.tolerance, self.compiled, self.patience, self.measure = tolerance, compiled, patience, measure
        self._given: list[Mapping[str, Any]] = []
        self._known: weakref.WeakKeyDictionary[nn.Module, dict[Any, _Known]] = weakref.WeakKeyDictionary()
        self._latest: Choice | None = None
        self._predicts: Compiled | None = None
        self._clock = Clock()

    @classmethod
    def from_choice(cls, choices: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> Auto:
        """Use again what another run has chosen (``strategy.json`` in its folder), and measure nothing."""
        auto = cls(measure=False)
        auto._given = [choices] if isinstance(choices, Mapping) else list(choices)
        for choice in auto._given:
            strategy_of(choice["strategy"])  # a text that is none is refused here
        return auto

    def run(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        if start.shape[0] == 0:  # nothing to decide from, and every energy allows this one
            return FiniteDifference(1.0).run(descend, potential, start)
        known = self._of(descend, potential, start)
        self._latest = known.choice
        if self.measure:
            self._clock.tick(start.device if known.trial is not None else None)
        strategy = self._next(known, descend, potential, start)
        try:
            return strategy.run(descend, potential, start)
        except NotTwiceDifferentiable as error:
            if not is_exact(known.plain):
                raise
            known.use(FiniteDifference(), sentence(error))  # the energy is another than it was
        except Exception as error:
            if not isinstance(strategy, Compiled):
                raise
            # No program can be made. An error of the energy itself is raised again by the plain strategy.
            known.without_programs(strategy, sentence(error))
        return known.plain.run(descend, potential, start)

    def predict(self, descend: Descend, potential: Potential, start: Tensor) -> Iterates:
        if not self.compiled or start.device.type != "cuda":
            return super().predict(descend, potential, start)
        if self._predicts is None:
            self._predicts = Compiled(patience=PREDICTIONS, shapes=4)
        return self._predicts.predict(descend, potential, start)

    def choices(self) -> list[dict[str, Any]]:
        """All choices so far, to be written down."""
        return [known.choice.as_json() for of_energy in self._known.values() for known in of_energy.values()]

    def explain(self) -> str:
        """Why the latest choice was made."""
        if self._latest is None:
            return "Auto has not chosen yet: it looks at the first batch that is trained on"
        return str(self._latest)

    def _of(self, descend: Descend, potential: Potential, start: Tensor) -> _Known:
        of_energy = self._known.setdefault(potential.energy, {})
        size = (start.numel().bit_length() - 1) // 2
        key = (start.device, start.dtype, descend.rule.steps, type(descend.domain), size)
        if key not in of_energy:
            choice, plain = self._ruled(descend, potential, start, size)
            of_energy[key] = _Known(choice, plain, candidates=self._candidates(choice, start.device))
        return of_energy[key]

    def _ruled(
        self, descend: Descend, potential: Potential, start: Tensor, size: int
    ) -> tuple[Choice, GradientStrategy]:
        look = Look.at(descend, potential, start)
        choice = Choice(
            type(potential.energy).__name__, str(start.device), descend.rule.steps, size, look.plain, look.reason
        )
        plain = look.plain
        for given in self._given:
            if all(given.get(name, own) == own for name, own in choice.as_json().items() if name in _SAME):
                choice.strategy, choice.reason = strategy_of(given["strategy"]), "given by an earlier choice"
                return choice, plain
        if self.compiled and look.program is not None:
            choice.strategy, choice.reason = look.program, look.program_reason
        return choice, plain

    def _candidates(self, choice: Choice, device: torch.device) -> list[GradientStrategy]:
        """What may be tried in a long run."""
        if not self.measure or isinstance(choice.strategy, FiniteDifference):
            return []
        found: list[GradientStrategy] = []
        if self.compiled and device.type == "cpu":
            found.append(Compiled(keep=isinstance(choice.strategy, Exact), patience=0))
        elif self.compiled:
            found += [
                Compiled(through, keep=keep, patience=0)
                for keep in (1.0, 0.0)
                for through in (Checkpointed(), ForwardOverReverse())
            ]
        if self.tolerance is not None:
            found.append(FiniteDifference())
            if device.type == "cuda" and self.compiled:
                found.append(Compiled(precision=torch.bfloat16, patience=0))
        return [strategy for strategy in found if str(strategy) != str(choice.strategy)]

    def _next(self, known: _Known, descend: Descend, potential: Potential, start: Tensor) -> GradientStrategy:
        """The strategy of this batch: the chosen one, or one that is being tried."""
        chosen = known.choice.strategy
        if isinstance(chosen, Compiled) and not known.ready(start, self.patience, self._clock.trained):
            return known.plain
        if not self.measure:
            return chosen
        if known.trial is not None:
            if known.trial.shape == start.shape:
                known.trial.note(self._clock.latest)
            if not known.trial.over:
                return known.trial.strategy_for(start)
            known.settle()
            chosen = known.choice.strategy
        if known.candidates and self._clock.steps > TURNS:
            cost = _making(known.candidates[0], start.device) + 3 * TURNS * self._clock.typical
            if cost <= SHARE * self._clock.trained - self._clock.measured:
                return self._tried(known, descend, potential, start)
        return chosen

    def _tried(self, known: _Known, descend: Descend, potential: Potential, start: Tensor) -> GradientStrategy:
        candidate, chosen = known.candidates.pop(0), known.choice.strategy
        began = time.perf_counter()
        problem = problem_of(candidate, chosen, descend, potential, start, self.tolerance)
        spent = time.perf_counter() - began
        self._clock.measured += spent
        if spent > LONG:
            say(f"Auto tried {candidate} for {spent:.1f} s of {self._clock.trained:.0f} s trained so far")
        if problem is not None:
            known.choice.measured.append(Measurement(str(candidate), problem=problem))
            return chosen
        known.trial = Trial(chosen, candidate, start.shape)
        return known.trial.strategy_for(start)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {name: getattr(self, name) for name in ("tolerance", "compiled", "patience", "measure")}
        # Choices belong to the energy they were made for: copies have none.
        return partial(Auto, **options), (), {"_given": list(self._given)}


PREDICTIONS = 3
"""The batches of one shape that are predicted without a program, on a GPU."""

_SAME = ("energy", "steps", "size")


# ── the rule ──


@dataclass(frozen=True)
class Look:
    """What the rule decides from: one evaluation of the energy and its gradient, on the first batch."""

    plain: GradientStrategy
    reason: str
    program: Compiled | None = None
    program_reason: str = ""

    @classmethod
    def at(cls, descend: Descend, potential: Potential, start: Tensor) -> Look:
        device = start.device
        with untouched(device, potential.energy):
            try:
                require_second_derivative(potential, descend, start)
            except NotTwiceDifferentiable as error:
                return cls(FiniteDifference(), str(error))
            held, operations = held_bytes(descend, potential, start)
        total, memory = held * descend.rule.steps, _memory(device)
        size = f"double backprop holds about {in_mib(total)}"
        fits = total <= BUDGET * memory
        plain: GradientStrategy = Exact() if fits else Checkpointed()
        reason = f"{size}, {'within' if fits else 'more than'} {BUDGET:.0%} of the memory"
        if _is_cpu(device):
            return cls(plain, reason)
        convolves = any("Convolution" in name for name in operations)
        through = ForwardOverReverse() if convolves else Checkpointed()
        # What is worth keeping is at most a third or so of what double backprop holds.
        keep = total / 3 <= BUDGET * memory
        kind = "forward over reverse, for convolutions" if convolves else "reverse over reverse"
        return cls(plain, reason, Compiled(through, keep=keep, patience=0), f"{kind}; {size}")


def _is_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not on every system
        return 8 * 2**30


# ── what is known of one energy, device and range of sizes ──


@dataclass
class _Known:
    choice: Choice
    plain: GradientStrategy
    candidates: list[GradientStrategy]
    trial: Trial | None = None
    met: Counter[torch.Size] = field(default_factory=Counter)
    _made: set[torch.Size] = field(default_factory=set)

    def ready(self, start: Tensor, patience: int, trained: float) -> bool:
        """Whether this shape has come often enough for a program of its own."""
        if start.shape in self._made:
            return True
        self.met[start.shape] += 1
        making = _making(self.choice.strategy, start.device)
        soon = self.met[start.shape] > FEWEST and trained > making / 5
        if self.met[start.shape] <= patience and not soon:
            return False
        if self._made and making > 0.1 * trained:
            return False
        if making > LONG and not self._made:
            shape = tuple(start.shape)
            say(f"Auto compiles {self.choice.energy} for batches of shape {shape}, once: some {making:.0f} s")
        self._made.add(start.shape)
        return True

    def use(self, strategy: GradientStrategy, reason: str) -> None:
        self.choice.strategy = self.plain = strategy
        self.choice.reason, self.candidates, self.trial = reason, [], None

    def without_programs(self, strategy: GradientStrategy, reason: str) -> None:
        """A program could not be made: go on without."""
        self.candidates = [c for c in self.candidates if not isinstance(c, Compiled)]
        self.trial = None
        self.choice.measured.append(Measurement(str(strategy), problem=reason))
        if isinstance(self.choice.strategy, Compiled):
            say(f"Auto goes on with {self.plain}, without a program: {reason}")
            self.choice.strategy, self.choice.reason = self.plain, "the energy cannot be compiled"

    def settle(self) -> None:
        """The trial is over: its winner stays."""
        trial, self.trial = self.trial, None
        assert trial is not None
        if not trial.seconds[True] or not trial.seconds[False]:
            return
        winner = trial.winner()
        measured = [Measurement(str(trial.chosen), trial.seconds[False])]
        self.choice.measured += [*measured, Measurement(str(trial.candidate), trial.seconds[True])]
        loser = trial.candidate if winner is trial.chosen else trial.chosen
        if isinstance(loser, Compiled):
            loser.forget()
        if winner is not trial.chosen:
            self.choice.strategy = winner
            self.choice.reason = f"faster than {trial.chosen} on {TURNS} training steps each"


def _making(strategy: GradientStrategy, device: torch.device) -> float:
    """The seconds that a program takes to be made, about."""
    if not isinstance(strategy, Compiled):
        return 0.0
    return 15.0 if device.type == "cuda" else 3.0


def say(text: str) -> None:
    """A line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


# ── a strategy from its text ──

_NAMES = {c.__name__: c for c in (Checkpointed, Compiled, Exact, FiniteDifference, ForwardOverReverse)}
_TYPES = {"torch.bfloat16": torch.bfloat16}


def strategy_of(text: str) -> GradientStrategy:
    """The strategy that prints itself like this. Calls of strategies and constants are parsed, nothing is evaluated."""
    try:
        found = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{text!r} is no strategy of {', '.join(_NAMES)}: {error}") from None
    if not isinstance(found, GradientStrategy):
        raise ValueError(f"{text!r} is no strategy of {', '.join(_NAMES)}")
    return found


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        arguments = [_value(a) for a in node.args]
        return _NAMES[node.func.id](*arguments, **{k.arg or "": _value(k.value) for k in node.keywords})
    if isinstance(node, ast.Attribute):
        return _TYPES[ast.unparse(node)]
    return ast.literal_eval(node)


__all__ = ["Auto", "Choice", "Measurement"]
