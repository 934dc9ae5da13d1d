"""The page: a tab for every task that has one, then the energy landscape and the runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import gradio as gr

from spen.tasks.own import OwnModel
from spen.viewer import runs
from spen.viewer.catalogue import Catalogue
from spen.viewer.own import OwnTab
from spen.viewer.tabs import LandscapeButton, Page, hint, load_tabs, report_errors

MAX_UPLOAD = "16mb"
_WAITING = 40  # requests that may wait; more get a message
_HEAD = (
    '<div class="masthead"><h1>spen</h1><p>An answer is found by descending an energy. '
    "Choose an image or a sentence, run, and move the slider to see how.</p></div>"
)


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


def style() -> str:
    """The style sheet of the page, followed by those of the tabs."""
    own = (resources.files("spen.viewer") / "style.css").read_text(encoding="utf-8")
    return "\n".join([own, *(getattr(tab, "style", "") for _, tab in load_tabs())])


def build(catalogue: Catalogue, uploads: Path, own: OwnModel | None = None) -> gr.Blocks:
    """The page for the models and runs of the catalogue, with a tab for `own`; Gradio puts files into `uploads`."""
    buttons: list[LandscapeButton] = []
    with gr.Blocks(title="spen", analytics_enabled=False, delete_cache=(600, 3600), fill_width=True) as blocks:
        gr.HTML(_HEAD, apply_default_css=False)
        with gr.Tabs():
            for task, tab in load_tabs():
                with gr.Tab(tab.title):
                    buttons += tab.fill(Page(task, tab.title, catalogue, uploads))
            if own is not None:
                with gr.Tab(OwnTab.title):
                    buttons += OwnTab(own).fill()
            if buttons:
                with gr.Tab("Energy landscape"):
                    _landscape(buttons)
            with gr.Tab("Runs"):
                _runs(blocks, catalogue)
    blocks.queue(max_size=_WAITING, api_open=False)
    return blocks


def _landscape(buttons: Sequence[LandscapeButton]) -> None:
    gr.HTML(
        "<p>The energy on the plane through the start y<sub>0</sub>, the answer y<sub>T</sub> and the direction in "
        "which the path between them bends most, for what is chosen in the tabs before this one.</p>",
        apply_default_css=False,
    )
    with gr.Row():
        made = [gr.Button(one.label, variant="primary", elem_id=one.element_id) for one in buttons]
    answer = hint("The landscape and the path of the descent appear here.", "landscape")
    bar = gr.Progress()
    for button, one in zip(made, buttons, strict=True):
        button.click(_with_progress(one, bar), list(one.inputs), answer, **Page.descent)


def _with_progress(button: LandscapeButton, bar: gr.Progress) -> Any:
    # Gradio finds the bar by its being the default of a parameter, and puts it in that place among the inputs.
    def show_landscape(progress: Any = bar, *inputs: Any) -> str:
        return report_errors(button.function)(*inputs, progress)

    return show_landscape


def _runs(blocks: gr.Blocks, catalogue: Catalogue) -> None:
    names = catalogue.runs()
    if not names:
        hint(
            "Name a run, or a folder with runs, on the command line: <code>spen view runs</code>. "
            "Its curves appear here, live while it trains."
        )
        return

    @report_errors
    def curves(name: str | None) -> str:
        return runs.show(catalogue.run(name))

    with gr.Row():
        run = gr.Dropdown(names, value=names[0], label="Run", scale=4, elem_id="run")
        live = gr.Checkbox(True, label="live", scale=0, min_width=110, elem_id="live")
    answer = gr.HTML("", apply_default_css=False, elem_id="curves")
    timer = gr.Timer(2.0)
    blocks.load(lambda: gr.update(choices=catalogue.runs()), None, run, **Page.light)
    blocks.load(curves, run, answer, **Page.light)
    run.change(curves, run, answer, **Page.light)
    timer.tick(curves, run, answer, **Page.light)
    live.change(lambda on: gr.Timer(active=bool(on)), live, timer, **Page.light)
