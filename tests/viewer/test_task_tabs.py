"""What the buttons of the package's tabs do, without a browser: answers, and mistakes in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gradio", reason="the viewer's extra is not installed")

from spen import tasks
from spen.tasks.denoising import tab
from spen.tasks.denoising.tab import NO_SECOND, DenoisingTab
from spen.tasks.srl.formats.conllu import conllu_text
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.tab import RolesTab
from spen.tasks.srl.views import examples
from spen.viewer import landscape
from spen.viewer.catalogue import Catalogue
from spen.viewer.tabs import Page, report_errors


@pytest.fixture
def images(tmp_path: Path) -> DenoisingTab:
    tab = DenoisingTab()
    tab.page = Page(tasks.find("denoising"), tab.title, Catalogue(), tmp_path)
    return tab


@pytest.fixture
def roles(tmp_path: Path) -> RolesTab:
    tab = RolesTab()
    tab.page = Page(tasks.find("srl"), tab.title, Catalogue(), tmp_path)
    return tab


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A depth image of a wall."""
    values = (2000 + 30 * np.random.default_rng(0).standard_normal((24, 32))).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "wall.png")
    return str(tmp_path / "wall.png")


SENTENCE = conllu_text(next(iter(examples().values())))


def sentence(function: Callable[..., str], *arguments: Any) -> str:
    """What the page says instead of an answer."""
    html = report_errors(function)(*arguments)
    head, tail = '<div class="mistake" role="alert">', "</div>"
    assert html.startswith(head), html[:200]
    return html.removeprefix(head).removesuffix(tail)


def test_an_image_is_denoised_by_two_systems(images: DenoisingTab, small: str) -> None:
    html = images.denoise(-1, small, None, "Gaussian", 25.0, "dp-3", "tv")
    assert 'alt="dp-3, iteration 3"' in html
    assert 'alt="tv, iteration 0"' in html


def test_the_file_goes_before_the_room(images: DenoisingTab, small: str) -> None:
    html = images.denoise(0, small, None, "none", 0.0, "reading", NO_SECOND)
    assert "There is no truth" in html
    assert html.count("<figure") == 2


def test_the_peak_is_a_choice(images: DenoisingTab, small: str) -> None:
    assert "2.0 m" in images.denoise(-1, small, None, "none", 0.0, "reading")
    assert "2.0 m" not in images.denoise(-1, small, 8000.0, "none", 0.0, "reading")


def test_one_system_twice_is_one_system(images: DenoisingTab, small: str) -> None:
    assert images.denoise(-1, small, None, "Gaussian", 5.0, "tv", "tv").count('class="answer"') == 1


def test_a_sentence_is_labelled(roles: RolesTab) -> None:
    html = roles.label("srl-grammar", SENTENCE, "greedy")
    assert '<section class="predicate">' in html
    assert "rounded by the greedy heuristic" in html


def test_a_sentence_of_another_parser_is_doubted(roles: RolesTab) -> None:
    assert "was not trained on" not in roles.label("srl-ewt", SENTENCE, "greedy")
    other = SENTENCE.replace("\tnsubj\t", "\tSBJ<&\t")
    assert other != SENTENCE
    html = roles.label("srl-ewt", other, "greedy")
    claim = "srl-ewt was not trained on the relations SBJ&lt;&amp;, which "
    assert html.startswith(f'<p class="status bad" role="alert">{claim}')
    assert '<section class="predicate">' in html


def test_landscapes_of_both_tasks(
    images: DenoisingTab, roles: RolesTab, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landscape, "slice_energy", lambda *a, size, **k: _slice(*a, size=5, **k))
    heard: list[float] = []
    html = images.landscape(-1, small, None, "Gaussian", 25.0, "dp-3", heard.append)
    assert '<img class="plot"' in html
    assert "dp-3 on the middle 32×24 pixels of wall.png: 3 steps, energy" in html
    assert heard[-1] == 1.0
    html = roles.landscape("srl-grammar", SENTENCE)
    assert "srl-grammar on “The old witness did not persuade a witness to …”: 10 steps, energy −" in html


_slice = landscape.slice_energy


def test_a_large_image_s_landscape_is_that_of_its_middle(images: DenoisingTab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landscape, "slice_energy", lambda *a, size, **k: _slice(*a, size=3, **k))
    assert "dp-3 on the middle 80×64 pixels of room 1" in images.landscape(0, None, None, "none", 0, "dp-3")


def test_mistakes_are_one_sentence_each(images: DenoisingTab, roles: RolesTab, small: str, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("words")
    claims = "there is no denoising system &#x27;dp-9&#x27; on this page"
    assert sentence(images.denoise, -1, small, None, "none", 0.0, "dp-9") == claims
    assert sentence(images.denoise, -1, None, None, "none", 0.0, "dp-3") == "choose a room or drop in an image"
    assert sentence(images.denoise, 99, None, None, "none", 0.0, "dp-3") == "there are rooms 1 to 6, not 100"
    assert sentence(images.denoise, 0, None, None, "none", 0.0, NO_SECOND) == "choose a system"
    assert sentence(images.denoise, -1, str(tmp_path / "text.png"), None, "none", 0.0, "tv") == (
        "text.png: is not an image of a known format"
    )
    assert "there is no such file" in sentence(images.denoise, -1, str(tmp_path / "gone.png"), None, "none", 0.0, "tv")
    assert "peak is -1.0 but must be positive" in sentence(images.denoise, -1, small, -1.0, "none", 0.0, "tv")
    assert sentence(roles.label, "srl-grammar", SENTENCE, "magic").startswith("no decoder is called &#x27;magic&#x27;")
    assert sentence(roles.label, "srl-mars", SENTENCE, "ad3") == (
        "there is no role labelling system &#x27;srl-mars&#x27; on this page"
    )
    assert sentence(images.landscape, 0, None, None, "none", 0, "tv") == (
        "tv descends no energy; choose one that does as the first system of Denoising"
    )


def test_a_system_that_does_not_descend_has_no_landscape(roles: RolesTab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Labeller, "feedforward", True)
    assert sentence(roles.landscape, "srl-grammar", SENTENCE) == (
        "srl-grammar descends no energy; choose one that does in Role labelling"
    )
    assert "<input" not in roles.label("srl-grammar", SENTENCE, "ad3")


def test_files_that_were_not_uploaded_are_not_read(images: DenoisingTab, small: str, tmp_path: Path) -> None:
    uploads = tmp_path / "uploads"
    images.page = replace(images.page, uploads=uploads)
    for path in (small, "/etc/passwd", f"{uploads}/../wall.png"):
        assert sentence(images.denoise, -1, path, None, "none", 0.0, "tv") == (
            "that file was not uploaded here; drop it in"
        )
    uploads.mkdir()
    (uploads / "link.png").symlink_to(small)
    assert "not uploaded here" in sentence(images.denoise, -1, str(uploads / "link.png"), None, "none", 0.0, "tv")


def test_a_failure_is_told_too_and_its_place_is_in_the_terminal(
    images: DenoisingTab, small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of <memory>")

    monkeypatch.setattr(tab, "answer", fail)
    assert sentence(images.denoise, -1, small, None, "none", 0.0, "tv") == (
        "RuntimeError: out of &lt;memory&gt;; the terminal of `spen view` says where"
    )
    assert "Traceback" in capsys.readouterr().err


def test_nonsense_from_a_forged_request_is_a_sentence(images: DenoisingTab, roles: RolesTab) -> None:
    for room in ("x", [1], {}, 1e300):
        assert sentence(images.denoise, room, None, None, "none", 0.0, "tv")
    assert sentence(images.denoise, 0, None, None, ["none"], "much", "tv")
    assert sentence(roles.label, None, None, None)
