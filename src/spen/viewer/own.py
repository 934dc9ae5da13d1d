"""The tab of a model of your own (`spen view RUN --build …`): y_t as a picture and the energy, at every iteration."""

from __future__ import annotations

from typing import Any

import gradio as gr
import torch
from torch import Tensor

from spen.tasks.charts import draw_lines
from spen.tasks.own import OwnModel
from spen.tensors import select, tensors_of
from spen.viewer import landscape
from spen.viewer.iterates import SMALL, with_slider
from spen.viewer.pictures import Scale, legend, paint
from spen.viewer.tabs import LandscapeButton, Page, hint, report_errors


class OwnTab:
    """Descends on the examples of the file ``opened.data``."""

    title = "Your model"

    def __init__(self, opened: OwnModel) -> None:
        self.opened = opened
        self.x, self.y = opened.read(opened.data)

    def fill(self) -> list[LandscapeButton]:
        number = gr.Number(1, precision=0, label=f"Example, 1 to {len(tensors_of(self.x)[0])}", elem_id="own-example")
        run = gr.Button("Run", variant="primary", elem_id="own-run")
        answer = hint("The iterates and their energies appear here.", "own-answer")
        run.click(report_errors(self.show), number, answer, **Page.descent)
        return [LandscapeButton("Of the example", "own-landscape", [number], self.landscape)]

    def show(self, number: Any) -> str:
        """All iterates of an example under a slider: every picture has a row for each index of y but the last."""
        with torch.no_grad():
            trajectory = self.opened.model(self._example(number))
        iterates = [y[0] for y in (trajectory.start, *trajectory.outputs)]
        shown = iterates if self.y is None else [*iterates, self.y[int(number) - 1]]
        finite = torch.cat([y.double().flatten() for y in shown])
        finite = finite[finite.isfinite()]
        scale = Scale("y", "viridis", float(finite.min()), float(finite.max()), digits=2)
        figures = [f'<img data-t="{t}" alt="iteration {t}" src="{_paint(y, scale)}">' for t, y in enumerate(iterates)]
        columns = [f"<figure><figcaption><b>y_t</b></figcaption>{''.join(figures)}{legend(scale)}</figure>"]
        if self.y is not None:
            picture = _paint(shown[-1], scale)
            columns.append(f'<figure><figcaption><b>target</b></figcaption><img alt="target" src="{picture}"></figure>')
        energies = draw_lines("energy", {"energy": trajectory.energies[:, 0].tolist()}, cursor=True, size=SMALL)
        tiles = f'<div class="tiles pixels" style="--columns:{len(columns)}">{"".join(columns)}</div>'
        return with_slider([tiles, f'<div class="charts">{energies}</div>'], len(iterates) - 1)

    def landscape(self, number: Any, progress: Any = None) -> str:
        what = f"{self.opened.name} on example {number}"
        return landscape.show(self.opened.model, self._example(number), size=31, what=what, progress=progress)

    def _example(self, number: Any) -> Any:
        count = len(tensors_of(self.x)[0])
        if not isinstance(number, int | float) or not 1 <= number <= count:
            raise ValueError(f"there are examples 1 to {count}, not {number!r}")
        return select(self.x, torch.tensor([int(number) - 1]))


def _paint(y: Tensor, scale: Scale) -> str:
    return paint(y.double().reshape(-1, y.shape[-1] if y.dim() else 1).numpy(), scale)
