"""Functions that build a model, by name: what the config.json of a saved model refers to. Imports nothing heavy.

A file names a builder and gives it plain values; it never names code. The program that loads the file registers the
builder; those of the tasks are known.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spen.model import SPEN

__all__ = ["Builder", "Origin", "build", "find_builder", "register"]

Builder = Callable[..., "SPEN"]
_BUILDERS: dict[str, Builder] = {}
_TASK_BUILDERS = "spen.tasks:builders"  # resolved when a file is read: the core imports no task


@dataclass(frozen=True)
class Origin:
    """Which builder made a model, and from what: ``builder(**settings)`` makes it again, with fresh weights.

    ``settings`` are JSON values, or a function that returns them where computing them takes long.
    """

    builder: str
    settings: Mapping[str, Any] | Callable[[], Mapping[str, Any]]

    def plain(self) -> dict[str, Any]:
        """The settings."""
        return dict(self.settings() if callable(self.settings) else self.settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        return self  # it is immutable, and a function may hold a data set


def register(name: str, builder: Builder) -> None:
    """Let saved models name ``builder``. Registering it again is fine; another builder of the same name is refused."""
    if _BUILDERS.setdefault(name, builder) != builder:
        raise ValueError(f"there is another builder {name!r} already; give yours another name")


def build(name: str, **settings: Any) -> SPEN:
    """A fresh model from a registered builder, with its ``origin`` set, so that it can be saved and loaded."""
    model = find_builder(name)(**settings)
    model.origin = Origin(name, settings)
    return model


def find_builder(name: str) -> Builder:
    """The builder of this name: a registered one, or that of a task. An unknown name raises with the list."""
    known = _BUILDERS if name in _BUILDERS else {**pkgutil.resolve_name(_TASK_BUILDERS)(), **_BUILDERS}
    if name not in known:
        raise ValueError(
            f"no builder {name!r} is registered here; there are {', '.join(sorted(known))}. Import the module that "
            "registers it, or give build="
        )
    return known[name]
