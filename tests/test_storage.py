"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spen.storage import noted, save_weights, write_whole


def test_a_text_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    write_whole(path, "first: ∇E\n")
    assert path.read_text(encoding="utf-8") == "first: ∇E\n"

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left on device"):
        write_whole(path, "second")
    assert path.read_text(encoding="utf-8") == "first: ∇E\n"
    assert list(tmp_path.iterdir()) == [path]


def test_the_first_asking_is_noted_and_the_next_compared(tmp_path: Path) -> None:
    path = tmp_path / "new" / "asked.json"
    assert noted(path, {"sizes": (1, 2)}) == ({"sizes": [1, 2]}, {"sizes": [1, 2]})
    assert noted(path, {"sizes": (3,)}) == ({"sizes": [1, 2]}, {"sizes": [3]})


def test_weights_may_be_read_by_whoever_may_read_other_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("")
    save_weights({"w": torch.zeros(1)}, tmp_path / "w.safetensors")
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "text").stat().st_mode


class Stateful(nn.Linear):
    """A module whose state dict holds more than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 1}


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (Stateful(2, 2).state_dict(), "_extra_state of the state dict is a dict, and weights are stored as tensors"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "a is of type torch.complex128, which safetensors cannot"),
    ],
)
def test_what_no_file_can_hold_is_refused(tmp_path: Path, weights: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        save_weights(weights, tmp_path / "w.safetensors")
    assert not list(tmp_path.iterdir())
