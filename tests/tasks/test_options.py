"""Text as values: what --set, --seeds and --size take, and what they refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spen.tasks.options import changed, image_size, parse_seeds, parse_settings, parse_value


@dataclass(frozen=True)
class Recipe:
    name: str = "toy"
    steps: int = 3
    rate: float = 0.1
    convex: bool = False
    update: Literal["logits", "mirror"] = "logits"
    hidden: tuple[int, ...] = (8,)
    terms: tuple[str, ...] = ("a", "b")
    patience: int | None = None


def test_every_type_is_read() -> None:
    text = {"steps": "5", "rate": "1e-3", "convex": "true", "update": "mirror", "hidden": "400x200", "terms": "a+c"}
    found = changed(Recipe(), {**text, "patience": "4"})
    assert found == Recipe("toy", 5, 1e-3, True, "mirror", (400, 200), ("a", "c"), 4)
    assert changed(found, {"patience": "none", "terms": ""}) == Recipe(
        "toy", 5, 1e-3, True, "mirror", (400, 200), (), None
    )


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        ("steps", "few", "steps is a whole number, not 'few'"),
        ("rate", "fast", "rate is a finite number, not 'fast'"),
        ("rate", "nan", "rate is a finite number, not 'nan'"),
        ("rate", "-inf", "rate is a finite number, not '-inf'"),
        ("convex", "yes", "convex is true or false, not 'yes'"),
        ("update", "newton", "update is one of logits, mirror, not 'newton'"),
        ("hidden", "", "hidden is whole numbers with x between them, not ''"),
        ("hidden", "16xx8", "hidden is whole numbers with x between them, not '16xx8'"),
        ("patience", "never", "patience is a whole number or none, not 'never'"),
        ("speed", "1", "recipe toy has no option 'speed'; it has steps, rate"),
        ("name", "x", "recipe toy has no option 'name'"),
    ],
)
def test_mistakes_are_sentences(key: str, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        changed(Recipe(), {key: text}, fixed=("name",))


def test_a_type_that_no_text_can_be_is_refused() -> None:
    with pytest.raises(ValueError, match="table cannot be changed by --set"):
        parse_value(dict[str, int], "table", "{}")


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_numbers_are_read_back_as_they_were_written(value: Any) -> None:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    assert parse_value(type(value), "key", text) == value


def test_settings_seeds_sizes_and_devices() -> None:
    assert parse_settings(["steps=5", "spen:rate=0.1", "about=a=b"]) == {
        "steps": "5",
        "spen:rate": "0.1",
        "about": "a=b",
    }
    for wrong in ("steps", "=5"):
        with pytest.raises(ValueError, match="--set takes KEY=VALUE, not"):
            parse_settings([wrong])
    assert [parse_seeds(text) for text in ("3", "0,2,5", "5,")] == [(0, 1, 2), (0, 2, 5), (5,)]
    for wrong in ("", "0", "-1", "a", "1,b"):
        with pytest.raises(ValueError, match="--seeds takes how many, as 3, or which, as 0,2,5; not"):
            parse_seeds(wrong)
    assert image_size("96x128") == (96, 128)
