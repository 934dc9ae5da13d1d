"""How many operations something takes, by torch's dispatcher: where launching them costs the time, this is the time."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Counts what runs within: every operation, and those that would launch something on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.launches = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        # A view, or memory that nobody has written to yet, is the host's business.
        self.launches += not (operation.is_view or "empty" in str(operation) or "detach" in str(operation))
        return operation(*args, **(kwargs or {}))
