"""Models on the Hugging Face hub, with a fake of its library: what is called with what, and the texts of errors."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import spen
from spen import builders
from spen.domains import Reals
from spen.energies import ICNN
from spen.rules import GradientDescent


def squares(size: int) -> spen.SPEN:
    return spen.SPEN(
        init=torch.nn.Identity(),
        energy=ICNN(size, (4,), context=size),
        minimizer=spen.Minimizer(Reals(), GradientDescent(2, 0.1)),
    )


class Hub(ModuleType):
    """Repositories are folders below ``root``; every call is written down."""

    def __init__(self, root: Path) -> None:
        super().__init__("huggingface_hub")
        self.root, self.calls, self.fails = root, [], None

    def note(self, call: str, *arguments: Any, **options: Any) -> None:
        self.calls.append((call, arguments, options))

    def snapshot_download(self, name: str, **options: Any) -> str:
        self.note("download", name, **options)
        if self.fails is not None:
            raise self.fails
        return str(self.root / name)

    def HfApi(self, **options: Any) -> SimpleNamespace:  # noqa: N802, the name that the library has
        self.note("api", **options)

        def upload(*, repo_id: str, folder_path: Path, **more: Any) -> SimpleNamespace:
            self.note("upload", repo_id, sorted(p.name for p in Path(folder_path).iterdir()), **more)
            shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
            return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

        def file_exists(name: str, file: str, **more: Any) -> bool:
            self.note("exists", name, file, **more)
            return (self.root / name / file).exists()

        return SimpleNamespace(
            create_repo=lambda *a, **o: self.note("repository", *a, **o),
            create_branch=lambda *a, **o: self.note("branch", *a, **o),
            file_exists=file_exists,
            upload_folder=upload,
        )


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(builders, "_BUILDERS", {**builders._BUILDERS, "squares": squares})
    return made


WHO = {"library_name": "spen", "library_version": spen.__version__}
MESSAGE = f"Upload a model of spen {spen.__version__}"


def test_a_model_goes_up_and_comes_back(hub: Hub) -> None:
    model = builders.build("squares", size=3)
    assert model.push_to_hub("ann/squares", private=True) == "https://hub/ann/squares/commit/1"
    assert hub.calls == [
        ("api", (), WHO),
        ("repository", ("ann/squares",), {"private": True, "exist_ok": True}),
        ("exists", ("ann/squares", "README.md"), {"revision": None}),
        (
            "upload",
            ("ann/squares", ["README.md", "config.json", "model.safetensors"]),
            {"revision": None, "commit_message": MESSAGE},
        ),
    ]
    hub.calls.clear()
    loaded = spen.SPEN.from_pretrained("ann/squares", revision="v1")
    files = ["config.json", "model.safetensors"]
    assert hub.calls == [("download", ("ann/squares",), {"revision": "v1", "allow_patterns": files, **WHO})]
    x = torch.randn(2, 3)
    assert torch.equal(loaded(x).output, model(x).output)
    assert loaded.origin == model.origin


def test_a_branch_is_made(hub: Hub) -> None:
    builders.build("squares", size=3).push_to_hub("ann/squares", revision="trial")
    calls = {call: (arguments, options) for call, arguments, options in hub.calls}
    assert calls["repository"] == (("ann/squares",), {"private": None, "exist_ok": True})
    assert calls["branch"] == (("ann/squares",), {"branch": "trial", "exist_ok": True})
    assert calls["exists"][1] == {"revision": "trial"}
    assert calls["upload"][1] == {"revision": "trial", "commit_message": MESSAGE}


def test_the_card_says_how_to_load_the_model_and_is_not_overwritten(hub: Hub) -> None:
    builders.build("squares", size=3).push_to_hub("ann/squares")
    card = hub.root / "ann" / "squares" / "README.md"
    text = card.read_text(encoding="utf-8")
    assert text.startswith("---\nlibrary_name: spen\ntags:\n")
    assert "# squares\n" in text
    parameters = sum(p.numel() for p in squares(3).parameters())
    assert f"Its builder is `squares`; it has {parameters:,} parameters." in text
    assert 'spen.SPEN.from_pretrained("ann/squares")' in text
    card.write_text("mine")
    squares(3).push_to_hub("ann/squares")
    assert card.read_text() == "mine"
    squares(3).push_to_hub("ann/by-hand")
    text = (hub.root / "ann" / "by-hand" / "README.md").read_text(encoding="utf-8")
    assert "It was built by hand; it has" in text
    assert 'spen.SPEN.from_pretrained("ann/by-hand", build=make_model)' in text


def test_a_folder_comes_before_the_hub(hub: Hub) -> None:
    builders.build("squares", size=3).save_pretrained("ann/squares")
    assert spen.SPEN.from_pretrained("ann/squares").energy is not None
    with pytest.raises(ValueError) as error:
        spen.SPEN.from_pretrained("ann/squares", revision="v1")
    assert str(error.value) == "a revision is one of a model on the Hugging Face hub, and 'ann/squares' is a folder"
    assert hub.calls == []


@pytest.mark.parametrize(
    "name", ["squares", "./squares", "/ann/squares", "ann/squares/1", "ann/", "../ann", "a b/c", ""]
)
def test_other_texts_are_folders(hub: Hub, name: str) -> None:
    with pytest.raises(ValueError, match=r"is not a saved model: it has no config\.json"):
        spen.SPEN.from_pretrained(name)
    with pytest.raises(ValueError, match=re.escape(f'is called "user/name", not {name!r}')):
        squares(3).push_to_hub(name)
    assert hub.calls == []


def test_a_path_is_never_looked_for_on_the_hub(hub: Hub) -> None:
    with pytest.raises(ValueError, match=r"ann/squares is not a saved model: it has no config\.json"):
        spen.SPEN.from_pretrained(Path("ann/squares"))
    assert hub.calls == []


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        (FileNotFoundError("404 Client Error.\nRepository Not Found"), "404 Client Error."),
        (ValueError("no good name"), "no good name"),
        (OSError(), "OSError"),
    ],
)
def test_what_the_hub_says_is_passed_on_in_a_sentence(hub: Hub, fails: Exception, why: str) -> None:
    hub.fails = fails
    with pytest.raises(ValueError) as error:
        spen.SPEN.from_pretrained("ann/none")
    assert str(error.value) == (
        f"there is no folder 'ann/none', and it cannot be fetched from the Hugging Face hub: {why}"
    )


def test_a_model_that_cannot_be_saved_makes_no_repository(hub: Hub) -> None:
    model = squares(3)
    model.origin = builders.Origin("squares", {"size": torch.tensor(3)})
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        model.push_to_hub("ann/squares")
    assert [call for call, *_ in hub.calls] == ["api"]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError) as error:
        spen.SPEN.from_pretrained("ann/squares")
    assert str(error.value) == (
        "there is no folder 'ann/squares', and to look for it on the Hugging Face hub, "
        "run `pip install huggingface_hub`"
    )
    with pytest.raises(ModuleNotFoundError) as error:
        squares(3).push_to_hub("ann/squares")
    assert str(error.value) == "to upload a model to the Hugging Face hub, run `pip install huggingface_hub`"


def test_the_library_takes_these_calls() -> None:
    """The library that is installed has the functions and options that are used here."""
    import inspect

    library = pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
    used = {
        library.snapshot_download: ("repo_id", "revision", "allow_patterns", "library_name", "library_version"),
        library.HfApi: ("library_name", "library_version"),
        library.HfApi.create_repo: ("repo_id", "private", "exist_ok"),
        library.HfApi.create_branch: ("repo_id", "branch", "exist_ok"),
        library.HfApi.file_exists: ("repo_id", "filename", "revision"),
        library.HfApi.upload_folder: ("repo_id", "folder_path", "revision", "commit_message"),
    }
    for function, options in used.items():
        assert set(options) <= set(inspect.signature(function).parameters)
