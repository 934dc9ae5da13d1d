"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spen.storage import write_whole


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
