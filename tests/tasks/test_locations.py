"""Data is looked for in the folder that the user names, else in the cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from spen.tasks import locations


def test_the_variable_decides_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srl" / "x").mkdir(parents=True)
    monkeypatch.setenv("SPEN_DATA", str(tmp_path))
    assert locations.find_data("srl", "x") == (tmp_path / "srl" / "x").resolve()
    with pytest.raises(FileNotFoundError) as error:
        locations.find_data("srl", "y")
    message = (
        f"no {Path('srl', 'y')} under {tmp_path}; set SPEN_DATA to the folder that holds it, or run `spen data fetch`"
    )
    assert str(error.value) == message


def test_without_the_variable_the_cache_is_searched_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEN_DATA", raising=False)
    monkeypatch.setattr(locations, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "shared" / "data" / "odd-name").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=f"^no odd-name under {tmp_path / 'cache'}; set SPEN_DATA"):
        locations.find_data("odd-name")
    (tmp_path / "cache" / "odd-name").mkdir(parents=True)
    assert locations.find_data("odd-name") == (tmp_path / "cache" / "odd-name").resolve()


def test_the_cache_is_the_operating_system_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEN_DATA", raising=False)
    assert locations.data_folders() == [locations.cache_folder()]
    assert locations.cache_folder().name == "spen"
