"""The error for an energy that cannot be traced, and its reason as a sentence."""

from __future__ import annotations

INSTEAD = "Use the strategy inside Compiled by itself"


class NotTraceable(RuntimeError):
    """The energy cannot be traced as a fixed list of operations."""


def reason(error: BaseException) -> str:
    """The first line of an error and Dynamo's explanation of it, as sentences without the last full stop."""
    cause: BaseException | None = error
    while cause is not None:  # Dynamo wraps what is raised while it traces
        if isinstance(cause, NotTraceable):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    if "data-dependent" in str(error):
        return "its Python code depends on the values of tensors"
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    explanations = [line.removeprefix("Explanation:") for line in lines if line.startswith("Explanation:")]
    return ". ".join(line.strip().rstrip(".") for line in [lines[0], *explanations])
