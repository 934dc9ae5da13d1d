"""A stage that lasts so many seconds, with its schedule fitted to them."""

from __future__ import annotations

import time
from collections.abc import Callable


class TimeBox:
    """How far a stage of ``seconds`` has come: p from 0 to 1, which it reaches when they are spent.

    1 − p falls in proportion to the time that is left. The first ``settle`` updates of a process, in which programs
    are compiled and kernels chosen, take time away but leave p where it is: what follows is fitted to the rest, so a
    slow start shortens every part of the schedule alike and skips none.
    """

    def __init__(self, seconds: float, settle: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.settle, self._clock = seconds, settle, clock
        self.spent, self.progress = 0.0, 0.0
        self._updates, self._last = 0, clock()

    def begin(self) -> None:
        """The clock runs from here, in this process."""
        self._last = self._clock()

    def tick(self) -> None:
        """An update has been made."""
        now = self._clock()
        passed, self._last = now - self._last, now
        left = self.seconds - self.spent
        self.spent += passed
        self._updates += 1
        if left <= passed:
            self.progress = 1.0
        elif self._updates > self.settle:
            self.progress += (1 - self.progress) * passed / left

    @property
    def over(self) -> bool:
        return self.spent >= self.seconds

    def state_dict(self) -> dict[str, float]:
        return {"spent": self.spent, "progress": self.progress}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.spent, self.progress = state["spent"], state["progress"]
