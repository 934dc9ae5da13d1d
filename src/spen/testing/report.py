"""The error of a broken contract."""

from __future__ import annotations


class ContractError(AssertionError):
    """A part breaks its contract; the message says how, in a sentence."""


def require(holds: bool, sentence: str) -> None:
    """Fail with the sentence unless it holds."""
    if not holds:
        raise ContractError(sentence)
