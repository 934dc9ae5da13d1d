"""How to build a model again, by name: what a saved model's config.json may ask for. Imports nothing heavy.

A file names a builder and gives it plain values; it never names code. Builders are registered by the program that
loads the file, as a function or, to import nothing before it is needed, as the text "module:function".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spen.model import SPEN

__all__ = ["Builder", "Origin", "build", "find_builder", "register", "register_finder"]

Builder = Callable[..., "SPEN"]
_BUILDERS: dict[str, Builder | str] = {}
_FINDERS: list[str] = []  # "module:function" of functions that return more builders by name


@dataclass(frozen=True)
class Origin:
    """Which builder made a model, and from what: ``builder(**settings)`` makes it again, with fresh weights.

    ``settings`` are what JSON can hold, or a function that gives them, where putting them together takes a while.
    """

    builder: str
    settings: Mapping[str, Any] | Callable[[], Mapping[str, Any]]

    def plain(self) -> dict[str, Any]:
        """The settings."""
        return dict(self.settings() if callable(self.settings) else self.settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        return self  # it never changes, and a function may hold on to a data set


def register(name: str, builder: Builder | str) -> None:
    """Let saved models ask for ``builder`` under this name; a name is given once."""
    if isinstance(builder, str) and builder.count(":") != 1:
        raise ValueError(f'a builder is a function or the text "module:function", not {builder!r}')
    if _BUILDERS.setdefault(name, builder) != builder:
        raise ValueError(f"there is another builder {name!r} already; give yours another name")


def register_finder(finder: str) -> None:
    """Let saved models ask for the builders that ``finder``, the text "module:function", returns by name."""
    if finder not in _FINDERS:
        _FINDERS.append(finder)


def build(name: str, **settings: Any) -> SPEN:
    """A fresh model from a registered builder, which knows where it came from and so can be saved and loaded."""
    model = find_builder(name)(**settings)
    model.origin = Origin(name, settings)
    return model


def find_builder(name: str) -> Builder:
    """The builder of this name; a name that nobody has registered gets the list."""
    if name not in _BUILDERS:
        further = {n: builder for finder in _FINDERS for n, builder in _imported(finder)().items()}
        if name in further:
            return further[name]
        known = ", ".join(sorted({*_BUILDERS, *further}))
        raise ValueError(
            f"no builder {name!r} is registered here; there are {known}. Import the module that registers it, or give "
            "build="
        )
    builder = _BUILDERS[name]
    return _imported(builder) if isinstance(builder, str) else builder


def _imported(name: str) -> Any:
    module, function = name.split(":")
    return getattr(import_module(module), function)
