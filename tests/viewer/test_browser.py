"""The page in a real browser: Debian's Chromium, driven by Playwright, against `spen view` in a process of its own.

With SPEN_SCREENSHOTS set to a folder, the tests leave there the pictures of docs/viewer.md.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytest.importorskip("gradio", reason="the viewer's extra is not installed")
import httpx
from playwright.sync_api import expect, sync_playwright

from spen.tasks.denoising.data import Rooms
from spen.tasks.srl.decoding import violations
from spen.tasks.srl.formats.conllu import conllu_text
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.views import examples, follow
from tests.viewer.serving import button, new_client, press
from tests.viewer.worlds import train_small, unfinished

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)"),
    pytest.mark.slow,
]
HARD = ".......2...457...9.8....1...4...397.692......7....4....5..........25.8.6...9472.."
"""The shipped solver needs several descents for it."""
PATIENCE = 60_000  # milliseconds; test machines are busy


@dataclass
class View:
    """`spen view` as a person starts it, in a home of its own."""

    address: str
    here: Path  # where it was started
    to_come: list[str]  # lines of the unfinished run's metrics
    outside: list[str] = field(default_factory=list)  # what the page asked others for


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    root = tmp_path_factory.mktemp("browser")
    home, here, temporary = (root / name for name in ("home", "here", "tmp"))
    for place in (home, here, temporary):
        place.mkdir()
    epochs, batches = (12, 8) if os.environ.get("SPEN_SCREENSHOTS") else (3, 2)
    run = train_small(here / "runs" / "foe-3", epochs=epochs, per_epoch=batches)
    to_come = unfinished(run, here / "runs" / "unfinished", epochs=2)
    before = sorted(here.rglob("*"))
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    for name in ("XDG_CACHE_HOME", "GRADIO_TEMP_DIR", "HF_HOME", "MPLCONFIGDIR"):
        environment.pop(name, None)
    code = "import sys; sys.argv[0] = 'spen'; from spen.cli import main; main()"
    command = [sys.executable, "-c", code, "view", "runs", "--port", "0", "--no-browser"]
    with subprocess.Popen(
        command, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+", said)
            assert address, process.stderr.read() if process.stderr else said
            found = View(address[0], here, to_come)
            yield found
            assert httpx.get(found.address).status_code == 200, "the server still answers"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0, "Ctrl-C is how it ends"
    assert "Traceback" not in errors
    assert list(home.iterdir()) == list(temporary.iterdir()) == [], "nothing is left behind"
    assert sorted(here.rglob("*")) == before, "nothing is written among the runs"
    assert found.outside == [], "the page asks nobody else for anything"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any, view: View) -> Iterator[Any]:
    """A fresh page. What it asks of anybody but the server is refused, and remembered."""
    context = chromium.new_context(viewport={"width": 1400, "height": 640})
    context.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)

    def only_here(route: Any) -> None:
        if route.request.url.startswith((view.address, "data:", "blob:")):
            route.continue_()
        else:
            view.outside.append(route.request.url)
            route.abort()

    context.route("**/*", only_here)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto(view.address)
    expect(opened.locator("#rooms button")).to_have_count(6)
    yield opened
    context.close()
    assert problems == []


def shot(page: Any, name: str) -> None:
    """A picture for the documentation, where one is asked for."""
    if folder := os.environ.get("SPEN_SCREENSHOTS"):
        page.mouse.move(0, 0)
        page.wait_for_timeout(400)  # transitions of the theme
        page.screenshot(path=Path(folder) / f"viewer-{name}.png", full_page=True)


def choose(page: Any, component: str, option: str) -> None:
    page.click(f"{component} input")
    options = page.get_attribute(f"{component} input", "aria-controls")
    page.locator(f"#{options}").get_by_role("option", name=option, exact=True).click()


def run(page: Any, name: str, answer: str) -> Any:
    """Press a button and wait for an answer or for a sentence in its place."""
    expect(page.locator(name)).to_be_enabled()
    page.dispatch_event(name, "click")  # wherever it is by now: what was chosen before may still move it down
    page.wait_for_function(
        "id => { const e = document.querySelector(id + ' .iterates, ' + id + ' .mistake, ' + id + ' img.plot');"
        " return e && !e.dataset.seen && (e.dataset.seen = '1') }",
        arg=answer,
    )
    return page.locator(answer)


def scrub(answer: Any, t: int) -> None:
    answer.locator("input[type=range]").fill(str(t))


def shown(answer: Any) -> list[str]:
    return answer.locator(".answer img:visible").evaluate_all("all => all.map(e => e.alt)")


def decibels(answer: Any) -> float:
    return float(answer.locator(".answer figcaption span:visible").first.inner_text().split()[0])


def test_a_room_is_denoised_scrubbed_and_compared(page: Any) -> None:
    page.click('[data-room="1"]')
    answer = run(page, "#denoise", "#denoised")
    assert shown(answer) == [
        "dp-3, iteration 3",
        "error of dp-3, iteration 3",
        "tv, iteration 0",
        "error of tv, iteration 0",
    ]
    expect(answer.locator("output b:visible")).to_have_text("iteration 3 of 3")
    last = decibels(answer)
    shot(page, "denoising")
    scrub(answer, 0)
    assert shown(answer)[:2] == ["dp-3, iteration 0", "error of dp-3, iteration 0"]
    expect(answer.locator("output b:visible")).to_have_text("iteration 0 of 3")
    assert decibels(answer) < last - 3
    assert answer.locator(".cursor:visible").count() == 2  # step 0 has no step size
    scrub(answer, 2)
    assert answer.locator(".cursor:visible").count() == 3
    for chart in ("energy, less that of the start", "PSNR, dB", "step sizes η"):
        expect(answer.locator(f'svg[aria-label="{chart}"]')).to_be_visible()
    answer.get_by_role("button", name="play from the start").click()
    expect(answer.locator("output b:visible")).to_have_text("iteration 3 of 3")


def test_a_trained_run_is_a_system_too(page: Any) -> None:
    choose(page, "#first", "runs/foe-3")
    choose(page, "#second", "dp-3")
    page.get_by_label("Gaussian").check()
    answer = run(page, "#denoise", "#denoised")
    assert len(shown(answer)) == 4
    assert shown(answer)[0] == "runs/foe-3, iteration 3"


def drop(page: Any, path: Path) -> None:
    page.set_input_files("#upload input[type=file]", path)
    expect(page.locator("#upload")).to_contain_text(path.stem)
    expect(page.get_by_label("none: noisy already")).to_be_checked()
    expect(page.locator("#strength input[type=range]")).to_be_disabled()  # the last change: now nothing moves any more


def test_an_uploaded_image_is_denoised(page: Any, tmp_path: Path) -> None:
    frame = Rooms("dev", 1).frame(0)
    values = (4000 * frame.noisy[0, 60:156, 90:218]).round().numpy().astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "kitchen.png")
    drop(page, tmp_path / "kitchen.png")
    choose(page, "#second", "nothing")
    answer = run(page, "#denoise", "#denoised")
    assert shown(answer) == ["dp-3, iteration 3", "change of dp-3, iteration 3"]
    expect(answer).to_contain_text("There is no truth to compare with")
    shot(page, "upload")
    page.get_by_label("depth sensor").check()  # taken for clean, it gets noise and a score
    answer = run(page, "#denoise", "#denoised")
    assert decibels(answer) > 20


def test_bad_uploads_get_one_sentence_and_the_page_goes_on(page: Any, tmp_path: Path, view: View) -> None:
    Image.new("L", (20_000, 10_000), 9).save(tmp_path / "bomb.png", compress_level=1)
    (tmp_path / "text.png").write_text("not an image")
    for name, sentence in (
        ("bomb.png", "bomb.png: claims more than the 1500000 pixels allowed; crop or shrink it first"),
        ("text.png", "text.png: is not an image of a known format"),
    ):
        drop(page, tmp_path / name)
        answer = run(page, "#denoise", "#denoised")
        expect(answer.get_by_role("alert")).to_have_text(sentence)
        page.goto(view.address)
        expect(page.locator("#rooms button")).to_have_count(6)
    assert len(shown(run(page, "#denoise", "#denoised"))) == 4


def test_roles_appear_and_sharpen(page: Any) -> None:
    page.get_by_role("tab", name="Role labelling").click()
    answer = run(page, "#label", "#labelled")
    expect(answer.locator("output b:visible")).to_have_text("iteration 10 of 10")
    followed = follow(Labeller.open(page.input_value("#labeller input")), next(iter(examples().values())))
    broken, *_, left = (int(violations(y, followed.target, followed.core)) for y in followed.outputs)
    assert left < 2 < broken
    of = "1 constraint is" if left else "no constraints are"
    expect(answer.locator(".status:visible")).to_have_text(f"{of} violated before rounding")
    red = "svg.arcs [data-t] path[stroke='#cf222e']:visible"
    assert answer.locator(red).count() == 2 * left
    scrub(answer, 0)
    expect(answer.locator(".status:visible")).to_have_text(f"{broken} constraints are violated before rounding")
    assert answer.locator(red).count() > 2 * left
    assert re.search(r"A1 \.\d\d", answer.locator("svg.arcs").first.text_content())
    expect(answer.locator("h5").first).to_have_text("rounded by AD³")
    shot(page, "roles")


def test_a_sentence_can_be_chosen_or_pasted(page: Any) -> None:
    page.get_by_role("tab", name="Role labelling").click()
    title, sentence = list(examples().items())[-1]
    choose(page, "#sentence", title)
    expect(page.locator("#conllu textarea")).to_have_value(conllu_text(sentence))
    expect(run(page, "#label", "#labelled").locator("h4").first).to_have_text("hit")
    forged = conllu_text(sentence).replace("destroyed\tdestroy", "<img src=x onerror=alert(1)>${1+1}{{value}}\tdestroy")
    page.fill("#conllu textarea", forged)
    answer = run(page, "#label", "#labelled")
    expect(answer.locator("h4").last).to_have_text("<img src=x onerror=alert(1)>${1+1}{{value}}")
    page.fill("#conllu textarea", "The dog barked .")
    answer = run(page, "#label", "#labelled")
    expect(answer.get_by_role("alert")).to_contain_text("pasted text:1: this is plain text")


def test_a_puzzle_settles_step_by_step(page: Any) -> None:
    page.get_by_role("tab", name="Sudoku").click()
    page.fill("#puzzle textarea, #puzzle input", HARD)
    answer = run(page, "#solve", "#solved")
    expect(answer.locator("h4")).to_have_text(re.compile(r"^solved: descent \d+ of \d+$"))
    assert answer.locator(".board:visible td.clash").count() == 0
    assert "".join(answer.locator(".board:visible td.clue").all_inner_texts()) == HARD.replace(".", "")
    shot(page, "sudoku")
    scrub(answer, 0)
    assert answer.locator(".board:visible").count() == 1
    assert answer.locator(".board:visible td.clash").count() > 0
    assert answer.locator(".cursor:visible").count() == 1


def test_the_landscape_of_the_sentence(page: Any) -> None:
    page.get_by_role("tab", name="Energy landscape").click()
    answer = run(page, "#sentence-landscape", "#landscape")
    expect(answer).to_contain_text("10 steps, energy −")
    shot(page, "landscape")


def test_curves_grow_while_a_run_trains(page: Any, view: View) -> None:
    page.get_by_role("tab", name="Runs").click()
    curves = page.locator("#curves")
    expect(page.locator("#run input")).to_have_value("runs/unfinished")
    expect(curves).to_contain_text("2 epochs, last epoch ended")
    with open(view.here / "runs" / "unfinished" / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.writelines(view.to_come)
    count = 2 + len(view.to_come)
    expect(curves).to_contain_text(f"{count} epochs, last epoch ended")
    for chart in ("training loss", "development score", "step sizes η"):
        expect(curves.locator(f'svg[aria-label="{chart}"]')).to_be_visible()
    choose(page, "#run", "runs/foe-3")
    expect(curves).to_contain_text(f"{count} epochs, finished")
    shot(page, "runs")


def test_fifty_quick_requests_leave_it_answering(page: Any, view: View) -> None:
    choose(page, "#first", "reading: the reading, its holes filled")
    choose(page, "#second", "nothing")
    page.evaluate("for (let k = 0; k < 50; k++) document.querySelector('#denoise').click()")
    number, choices = button(view.address, "denoise"), [None, None, "none", 0, "reading", "–"]
    rooms = [0] * 8 + [99] * 42  # most are mistakes, which take no time
    with new_client() as client:
        answered = [press(client, view.address, number, [room, *choices], f"v-{k}") for k, room in enumerate(rooms)]
    assert {response.status_code for response in answered} <= {200, 503}  # queued, or refused because the queue is full
    expect(page.locator("#denoised .iterates")).to_be_visible()
    page.goto(view.address)
    expect(page.locator("#rooms button")).to_have_count(6)
    assert len(shown(run(page, "#denoise", "#denoised"))) == 4
