"""The tab of role labelling: a sentence, a system, and how the answer is rounded; and its energy landscape."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib import resources
from typing import Any, cast

import gradio as gr

from spen.tasks.srl import views
from spen.tasks.srl.decoding import DECODERS
from spen.tasks.srl.formats.conllu import conllu_text
from spen.tasks.srl.predict import Labeller
from spen.viewer.tabs import LandscapeButton, Page


class RolesTab:
    """The methods ``label`` and ``landscape`` are exposed to visitors, so they validate their arguments."""

    title = "Role labelling"
    style = (resources.files("spen.tasks.srl") / "tab.css").read_text(encoding="utf-8")
    page: Page

    def fill(self, page: Page) -> list[LandscapeButton]:
        self.page = page
        names = page.models(runs_first=True)
        sentences = views.examples()
        begin = next(iter(sentences))
        with gr.Row():
            with gr.Column(scale=1, min_width=330):
                example = gr.Dropdown(list(sentences), value=begin, label="Take a sentence", elem_id="sentence")
                conllu = gr.Textbox(
                    conllu_text(sentences[begin]),
                    label="or paste a parsed one (CoNLL-U)",
                    lines=13,
                    max_lines=18,
                    max_length=views.MAX_CHARACTERS,
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
                answer = page.hint(
                    "Arcs from every verb to its arguments appear here, and sharpen as the descent goes on.", "labelled"
                )
        example.input(lambda title: conllu_text(sentences[title]), example, conllu, **page.light)
        run.click(page.report_errors(self.label), [system, conllu, decoder], answer, **page.descent)
        return [LandscapeButton("Of the sentence", "sentence-landscape", [system, conllu], self.landscape)]

    def label(self, system: str, conllu: str, decoder: Any) -> str:
        """The arcs of one sentence at every iteration."""
        if decoder not in DECODERS:
            raise ValueError(f"no decoder is called {decoder!r}; choose from {', '.join(DECODERS)}")
        labeller, sentence = self._labeller(system), views.read(conllu or "")
        doubt = labeller.other_relations([sentence])
        said = f'<p class="status bad" role="alert">{escape(doubt)}</p>' if doubt else ""
        return said + views.show(views.follow(labeller, sentence), decoder)

    def landscape(self, system: str, conllu: str, progress: Callable[[float], None] | None = None) -> str:
        """The energy around the answer for a sentence."""
        sentence, labeller = views.read(conllu or ""), self._labeller(system)
        if labeller.feedforward:
            raise ValueError(f"{system} descends no energy; choose one that does in Role labelling")
        _, x, _ = views.batch(labeller, sentence)
        what = f"{system} on “{' '.join(sentence.words[:9])}{' …' * (len(sentence) > 9)}”"
        return self.page.landscape(labeller.model, x, size=41, what=what, progress=progress)

    def _labeller(self, name: str) -> Labeller:
        return cast(Labeller, self.page.open(name))
