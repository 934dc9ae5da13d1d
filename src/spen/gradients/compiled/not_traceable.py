"""The error for what cannot become a program, and what torch says about it in one line."""

from __future__ import annotations

INSTEAD = "Use the strategy inside Compiled by itself"


class NotTraceable(RuntimeError):
    """The energy cannot be written down as a fixed list of operations."""


def reason(error: BaseException) -> str:
    """Why, in whole sentences: the first line of an error, and Dynamo's explanation of it."""
    own: BaseException | None = error
    while own is not None:  # Dynamo wraps what is raised while it works
        if isinstance(own, NotTraceable):
            return str(own)
        own = own.__cause__ or own.__context__
    if "data-dependent" in str(error):
        return "its Python code depends on the values of tensors"
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    found = [lines[0].rstrip(".")]
    found += [
        line.removeprefix("Explanation:").strip().rstrip(".") for line in lines if line.startswith("Explanation:")
    ]
    return ". ".join(found)
