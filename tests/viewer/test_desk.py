"""What the buttons do, without a browser: answers, and mistakes in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spen.tasks.srl.conllu import conllu_text
from spen.tasks.srl.predict import Labeller
from spen.viewer import desk as module
from spen.viewer.catalogue import Catalogue
from spen.viewer.desk import NOBODY, Desk
from spen.viewer.roles import examples
from tests.viewer.worlds import fake_run


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(Catalogue(), tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A depth image of a wall."""
    values = (2000 + 30 * np.random.default_rng(0).standard_normal((24, 32))).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "wall.png")
    return str(tmp_path / "wall.png")


SENTENCE = conllu_text(next(iter(examples().values())))


def told(html: str) -> str:
    head, tail = '<div class="mistake" role="alert">', "</div>"
    assert html.startswith(head), html[:200]
    return html.removeprefix(head).removesuffix(tail)


def test_an_image_is_denoised_by_two_systems(desk: Desk, small: str) -> None:
    html = desk.denoise(-1, small, None, "Gaussian", 25.0, "dp-3", "tv")
    assert 'alt="dp-3, iteration 3"' in html
    assert 'alt="tv, iteration 0"' in html


def test_the_file_goes_before_the_room(desk: Desk, small: str) -> None:
    html = desk.denoise(0, small, None, "none", 0.0, "reading", NOBODY)
    assert "There is no truth" in html
    assert html.count("<figure") == 2


def test_the_peak_is_a_choice(desk: Desk, small: str) -> None:
    assert "2.0 m" in desk.denoise(-1, small, None, "none", 0.0, "reading")
    assert "2.0 m" not in desk.denoise(-1, small, 8000.0, "none", 0.0, "reading")


def test_one_system_twice_is_one_system(desk: Desk, small: str) -> None:
    assert desk.denoise(-1, small, None, "Gaussian", 5.0, "tv", "tv").count('class="answer"') == 1


def test_a_sentence_is_labelled(desk: Desk) -> None:
    html = desk.label("srl-grammar", SENTENCE, "greedy")
    assert '<section class="predicate">' in html
    assert "rounded by the greedy heuristic" in html


def test_landscapes_of_both_tasks(desk: Desk, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.landscape, "slice_energy", lambda *a, size, **k: _slice(*a, size=5, **k))
    heard: list[float] = []
    html = desk.image_landscape(-1, small, None, "Gaussian", 25.0, "dp-3", heard.append)
    assert '<img class="plot"' in html
    assert "dp-3 on the middle 32×24 pixels of wall.png: 3 steps, energy" in html
    assert heard[-1] == 1.0
    html = desk.sentence_landscape("srl-grammar", SENTENCE)
    assert "srl-grammar on “The old witness did not persuade a witness to …”: 10 steps, energy −" in html


_slice = module.landscape.slice_energy


def test_a_large_image_s_landscape_is_that_of_its_middle(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.landscape, "slice_energy", lambda *a, size, **k: _slice(*a, size=3, **k))
    assert "dp-3 on the middle 80×64 pixels of room 1" in desk.image_landscape(0, None, None, "none", 0, "dp-3")


def test_curves_of_a_run(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", entries=3)
    assert "3 epochs" in Desk(Catalogue([tmp_path]), tmp_path).curves(str(run))


def test_mistakes_are_one_sentence_each(desk: Desk, small: str, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("words")
    claims = "there is no denoising system &#x27;dp-9&#x27; on this page"
    assert told(desk.denoise(-1, small, None, "none", 0.0, "dp-9")) == claims
    assert told(desk.denoise(-1, None, None, "none", 0.0, "dp-3")) == "choose a room or drop in an image"
    assert told(desk.denoise(99, None, None, "none", 0.0, "dp-3")) == "there are rooms 1 to 6, not 100"
    assert told(desk.denoise(0, None, None, "none", 0.0, NOBODY)) == "choose a system"
    assert told(desk.denoise(-1, str(tmp_path / "text.png"), None, "none", 0.0, "tv")) == (
        "text.png: is not an image of a known format"
    )
    assert "there is no such file" in told(desk.denoise(-1, str(tmp_path / "gone.png"), None, "none", 0.0, "tv"))
    assert "peak is -1.0 but must be positive" in told(desk.denoise(-1, small, -1.0, "none", 0.0, "tv"))
    assert told(desk.label("srl-grammar", SENTENCE, "magic")).startswith("no decoder is called &#x27;magic&#x27;")
    assert told(desk.label("srl-mars", SENTENCE, "ad3")) == (
        "there is no role labelling system &#x27;srl-mars&#x27; on this page"
    )
    assert told(desk.curves("/etc")) == "there is no run &#x27;/etc&#x27; on this page"
    assert told(desk.curves(None)).startswith("no folder of runs was named; `spen view RUNS` shows")
    assert told(desk.image_landscape(0, None, None, "none", 0, "tv")) == (
        "tv descends no energy; choose one that does as the first system of Denoising"
    )


def test_a_system_that_does_not_descend_has_no_landscape(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Labeller, "feedforward", True)
    assert told(desk.sentence_landscape("srl-grammar", SENTENCE)) == (
        "srl-grammar descends no energy; choose one that does in Role labelling"
    )
    assert "<input" not in desk.label("srl-grammar", SENTENCE, "ad3")


def test_files_that_were_not_uploaded_are_not_read(desk: Desk, small: str, tmp_path: Path) -> None:
    desk.uploads = tmp_path / "uploads"
    for path in (small, "/etc/passwd", f"{desk.uploads}/../wall.png"):
        assert told(desk.denoise(-1, path, None, "none", 0.0, "tv")) == ("that file was not uploaded here; drop it in")
    desk.uploads.mkdir()
    (desk.uploads / "link.png").symlink_to(small)
    assert "not uploaded here" in told(desk.denoise(-1, str(desk.uploads / "link.png"), None, "none", 0.0, "tv"))


def test_a_failure_is_told_too_and_its_place_is_in_the_terminal(
    desk: Desk, small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of <memory>")

    monkeypatch.setattr(module.denoising, "answer", fail)
    assert told(desk.denoise(-1, small, None, "none", 0.0, "tv")) == (
        "RuntimeError: out of &lt;memory&gt;; the terminal of `spen view` says where"
    )
    assert "Traceback" in capsys.readouterr().err


def test_nonsense_from_a_forged_request_is_a_sentence(desk: Desk) -> None:
    for room in ("x", [1], {}, 1e300):
        assert told(desk.denoise(room, None, None, "none", 0.0, "tv"))  # type: ignore[arg-type]
    assert told(desk.denoise(0, None, None, ["none"], "much", "tv"))  # type: ignore[arg-type]
    assert told(desk.label(None, None, None))  # type: ignore[arg-type]
