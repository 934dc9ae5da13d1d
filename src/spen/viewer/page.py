"""The page: four tabs of Gradio components around the desk. What they show is made elsewhere."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import gradio as gr

from spen.viewer import denoising, roles
from spen.viewer.catalogue import BASELINES, Catalogue
from spen.viewer.desk import NOBODY, Desk

__all__ = ["MAX_UPLOAD", "STYLE", "build", "theme"]

MAX_UPLOAD = "16mb"
STYLE = (resources.files("spen.viewer") / "style.css").read_text(encoding="utf-8")
_WAITING = 40  # requests that may wait; more are told so
_HEAD = (
    '<div class="masthead"><h1>spen</h1><p>An answer is found by descending an energy. '
    "Choose an image or a sentence, run, and move the slider to see how.</p></div>"
)
# One descent at a time, whoever asks for it. What is cheap does not join the queue at all: queued requests are answered
# over a stream that is closed after the last answer, and a request that joins while it closes can lose its own.
_DESCENT: dict[str, Any] = {"concurrency_id": "descent", "concurrency_limit": 1, "api_visibility": "private"}
_LIGHT: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}


def theme() -> gr.themes.Base:
    """System fonts alone: the page asks nobody for others."""
    return gr.themes.Default(
        primary_hue="orange",
        neutral_hue="slate",
        spacing_size="sm",
        text_size="sm",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )


def build(catalogue: Catalogue, uploads: Path) -> gr.Blocks:
    """The page for what the catalogue holds; `uploads` is where Gradio puts files that are dropped in."""
    desk = Desk(catalogue, uploads)
    with gr.Blocks(title="spen", analytics_enabled=False, delete_cache=(600, 3600), fill_width=True) as page:
        gr.HTML(_HEAD, apply_default_css=False)
        with gr.Tabs():
            with gr.Tab("Denoising"):
                image = _denoising(desk)
            with gr.Tab("Role labelling"):
                sentence = _roles(desk)
            with gr.Tab("Energy landscape"):
                _landscape(desk, image, sentence)
            with gr.Tab("Runs"):
                _runs(page, desk)
    page.queue(max_size=_WAITING, api_open=False)
    return page


def _hint(words: str) -> gr.HTML:
    return gr.HTML(f'<div class="hint">{words}</div>', apply_default_css=False)


def _denoising(desk: Desk) -> list[gr.components.Component]:
    """The tab; returned are the components that say which image, noise and system are chosen."""
    names = desk.catalogue.denoisers()
    titles = [(f"{name}: {BASELINES[name]}" if name in BASELINES else name, name) for name in names]
    begin, most, what = denoising.STRENGTHS["depth sensor"]
    with gr.Row():
        with gr.Column(scale=1, min_width=330):
            room = _rooms()
            file = gr.File(label="or drop in a grey image", height=140, elem_id="upload")
            peak = gr.Number(0, label="Value that counts as 1", info="0: 255, or 4000 for 16 bits", visible=False)
            noise = gr.Radio(
                [("depth sensor", "depth sensor"), ("Gaussian", "Gaussian"), ("none: noisy already", "none")],
                value="depth sensor",
                label="Noise to add",
                elem_id="noise",
            )
            strength = gr.Slider(0, most, begin, step=0.01, label="Strength", info=what, elem_id="strength")
            first = gr.Dropdown(titles, value=names[0], label="System", elem_id="first")
            second = gr.Dropdown([("nothing", NOBODY), *titles], value="tv", label="Compare with", elem_id="second")
            run = gr.Button("Run", variant="primary", elem_id="denoise")
        with gr.Column(scale=3, min_width=520):
            answer = _hint("The image at every iteration, its error, the energy and the step sizes appear here.")
            answer.elem_id = "denoised"
    chosen: list[gr.components.Component] = [room, file, peak, noise, strength, first]
    run.click(desk.denoise, [*chosen, second], answer, **_DESCENT)
    room.input(_take_room, None, [file, noise, peak], **_LIGHT)
    file.upload(_take_file, None, [room, noise, peak], **_LIGHT)
    file.clear(_drop_file, None, [room, noise, peak], **_LIGHT)
    noise.change(_bounds, noise, strength, **_LIGHT)
    return chosen


def _rooms() -> gr.HTML:
    """Thumbnails; the component's value is the number of the room that is chosen, −1 for none."""
    rooms = [denoising.example(number) for number in range(denoising.EXAMPLES)]
    buttons = "".join(
        f'<button type="button" data-room="{n}" title="{scene.name}"><img alt="{scene.name}" '
        f'src="{denoising.thumbnail(scene)}"></button>'
        for n, scene in enumerate(rooms)
    )
    rules = "".join(
        f'[data-chosen="{n}"] [data-room="{n}"]{{outline-color:#d9480f !important}}' for n in range(len(rooms))
    )
    return gr.HTML(
        0,
        html_template=f'<div class="rooms" data-chosen="${{value}}"><style>{rules}</style>{buttons}</div>',
        js_on_load=(
            "element.addEventListener('click', e => { const b = e.target.closest('[data-room]'); "
            "if (b) { props.value = +b.dataset.room; trigger('input'); } })"
        ),
        apply_default_css=False,
        elem_id="rooms",
    )


def _take_room() -> tuple[None, Any, Any]:
    return None, "depth sensor", gr.update(value=0, visible=False)


def _take_file() -> tuple[int, Any, Any]:
    return -1, "none", gr.update(visible=True)


def _drop_file() -> tuple[int, Any, Any]:
    return 0, "depth sensor", gr.update(value=0, visible=False)


def _bounds(noise: denoising.Noise) -> Any:
    begin, most, what = denoising.STRENGTHS.get(noise, denoising.STRENGTHS["none"])
    return gr.update(value=begin, maximum=most, info=what, interactive=noise != "none")


def _roles(desk: Desk) -> list[gr.components.Component]:
    """The tab; returned are the components that say which sentence and system are chosen."""
    names = desk.catalogue.labellers()
    sentences = roles.examples()
    begin = next(iter(sentences))
    with gr.Row():
        with gr.Column(scale=1, min_width=330):
            example = gr.Dropdown(list(sentences), value=begin, label="Take a sentence", elem_id="sentence")
            conllu = gr.Textbox(
                roles.conllu_text(sentences[begin]),
                label="or paste a parsed one (CoNLL-U)",
                lines=13,
                max_lines=18,
                max_length=roles.MAX_CHARACTERS,
                elem_classes="conllu",
                elem_id="conllu",
            )
            system = gr.Dropdown(names, value=names[0], label="System", elem_id="labeller")
            decoder = gr.Dropdown(
                [("AD³", "ad3"), ("greedy", "greedy"), ("integer programme", "ilp"), ("argmax", "argmax")],
                value="ad3",
                label="Rounding",
            )
            run = gr.Button("Run", variant="primary", elem_id="label")
        with gr.Column(scale=3, min_width=520):
            answer = _hint("Arcs from every verb to its arguments appear here, and sharpen as the descent goes on.")
            answer.elem_id = "labelled"
    example.input(lambda title: roles.conllu_text(sentences[title]), example, conllu, **_LIGHT)
    run.click(desk.label, [system, conllu, decoder], answer, **_DESCENT)
    return [system, conllu]


def _landscape(desk: Desk, image: list[gr.components.Component], sentence: list[gr.components.Component]) -> None:
    gr.HTML(
        "<p>The energy on the plane through the start y<sub>0</sub>, the answer y<sub>T</sub> and the direction in "
        "which the path between them bends most, for what is chosen in the first two tabs.</p>",
        apply_default_css=False,
    )
    with gr.Row():
        of_image = gr.Button("Of the image and the first system", variant="primary", elem_id="image-landscape")
        of_sentence = gr.Button("Of the sentence", variant="primary", elem_id="sentence-landscape")
    answer = _hint("The landscape and the path of the descent appear here.")
    answer.elem_id = "landscape"
    bar = gr.Progress()  # Gradio knows it by its place as a default

    def show_image(
        room: int, file: str | None, peak: float | None, noise: str, strength: float, system: str, tell: Any = bar
    ) -> str:
        return desk.image_landscape(room, file, peak, noise, strength, system, tell)

    def show_sentence(system: str, conllu: str, tell: Any = bar) -> str:
        return desk.sentence_landscape(system, conllu, tell)

    of_image.click(show_image, image, answer, **_DESCENT)
    of_sentence.click(show_sentence, sentence, answer, **_DESCENT)


def _runs(page: gr.Blocks, desk: Desk) -> None:
    names = desk.catalogue.runs()
    if not names:
        gr.HTML(
            '<div class="hint">Name a run, or a folder with runs, on the command line: <code>spen view runs</code>. '
            "Its curves appear here, live while it trains.</div>",
            apply_default_css=False,
        )
        return
    with gr.Row():
        run = gr.Dropdown(names, value=names[0], label="Run", scale=4, elem_id="run")
        live = gr.Checkbox(True, label="live", scale=0, min_width=110, elem_id="live")
    answer = gr.HTML("", apply_default_css=False, elem_id="curves")
    timer = gr.Timer(2.0)
    page.load(lambda: gr.update(choices=desk.catalogue.runs()), None, run, **_LIGHT)
    page.load(desk.curves, run, answer, **_LIGHT)
    run.change(desk.curves, run, answer, **_LIGHT)
    timer.tick(desk.curves, run, answer, **_LIGHT)
    live.change(lambda on: gr.Timer(active=bool(on)), live, timer, **_LIGHT)
