"""The tab of denoising: an image, noise, one system or two; and the energy landscape of the first."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any, cast

import gradio as gr
import torch

import spen
from spen.tasks.denoising import views
from spen.tasks.denoising.build import Denoise
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.losses import observation
from spen.tasks.denoising.opened import Denoiser
from spen.tasks.denoising.report import answer
from spen.viewer.tabs import LandscapeButton, Page

NO_SECOND = "–"
"""The second system, where there is none."""

WINDOW = (64, 80)
"""The part of an image whose landscape is drawn: hundreds of energies of the whole would take minutes."""


WATCHED = "dp-3"
"""The model that is shown first: it takes several steps, the others of the package one."""


class DenoisingTab:
    """``denoise`` and ``landscape`` are reached from the network with any arguments; wrong ones are an error."""

    title = "Denoising"
    style = (resources.files("spen.tasks.denoising") / "tab.css").read_text(encoding="utf-8")
    page: Page

    def fill(self, page: Page) -> list[LandscapeButton]:
        self.page = page
        titles = [(name, name) for name in page.models()]
        titles += [(f"{name}: {baseline.about}", name) for name, baseline in views.BASELINES.items()]
        begin, most, what = views.STRENGTHS["depth sensor"]
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
                first = gr.Dropdown(titles, value=WATCHED, label="System", elem_id="first")
                second = gr.Dropdown(
                    [("nothing", NO_SECOND), *titles], value="tv", label="Compare with", elem_id="second"
                )
                run = gr.Button("Run", variant="primary", elem_id="denoise")
            with gr.Column(scale=3, min_width=520):
                answer = page.hint(
                    "The image at every iteration, its error, the energy and the step sizes appear here.", "denoised"
                )
        chosen: list[gr.components.Component] = [room, file, peak, noise, strength, first]
        run.click(page.report_errors(self.denoise), [*chosen, second], answer, **page.descent)
        room.input(_take_room, None, [file, noise, peak], **page.light)
        file.upload(_take_file, None, [room, noise, peak], **page.light)
        file.clear(_drop_file, None, [room, noise, peak], **page.light)
        noise.change(_bounds, noise, strength, **page.light)
        return [LandscapeButton("Of the image and the first system", "image-landscape", chosen, self.landscape)]

    def system(self, name: str) -> tuple[Denoise, spen.SPEN | None]:
        """A system by its name; the model is None if it descends no energy."""
        if name in views.BASELINES:
            return views.BASELINES[name].denoise, None
        opened = cast(Denoiser, self.page.open(name))
        return opened.denoise, opened.model

    def denoise(
        self,
        room: int | None,
        file: str | None,
        peak: float | None,  # 0 and None: by the bit depth
        noise: Any,
        strength: float,
        first: str,
        second: str | None = None,
    ) -> str:
        """The answers of one or two systems for a room or an uploaded image."""
        scene = self._scene(room, file, peak)
        frame = views.observe(scene, noise, float(strength))
        names = list(dict.fromkeys(name for name in (first, second) if name and name != NO_SECOND))
        if not names:
            raise ValueError("choose a system")
        answers = [answer(name, self.system(name), frame) for name in names]
        return views.show(scene, frame, answers)

    def landscape(
        self,
        room: int | None,
        file: str | None,
        peak: float | None,
        noise: Any,
        strength: float,
        system: str,
        progress: Callable[[float], None] | None = None,
    ) -> str:
        """The energy around the answer for (a window of) an image."""
        scene = self._scene(room, file, peak)
        _, model = self.system(system)
        if model is None:
            raise ValueError(f"{system} descends no energy; choose one that does as the first system of Denoising")
        frame = views.observe(scene, noise, float(strength))
        x = Observation(*(_middle(part)[None] for part in observation(frame)))
        what = f"{system} on the middle {x.image.shape[-1]}×{x.image.shape[-2]} pixels of {scene.name}"
        return self.page.landscape(model, x, size=21, what=what, progress=progress)

    def _scene(self, room: int | None, file: str | None, peak: float | None) -> views.Scene:
        if file:
            return views.upload(self.page.uploaded(file), float(peak) if peak else None)
        if room is None or room == -1:
            raise ValueError("choose a room or drop in an image")
        return views.example(int(room))


def _rooms() -> gr.HTML:
    """Thumbnails; the component's value is the number of the room that is chosen, −1 for none."""
    rooms = [views.example(number) for number in range(views.EXAMPLES)]
    buttons = "".join(
        f'<button type="button" data-room="{n}" title="{scene.name}"><img alt="{scene.name}" '
        f'src="{views.thumbnail(scene)}"></button>'
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


def _bounds(noise: views.Noise) -> Any:
    begin, most, what = views.STRENGTHS.get(noise, views.STRENGTHS["none"])
    return gr.update(value=begin, maximum=most, info=what, interactive=noise != "none")


def _middle(image: torch.Tensor) -> torch.Tensor:  # (1, H, W) -> (1, ≤ 64, ≤ 80)
    height, width = (min(full, part) for full, part in zip(image.shape[-2:], WINDOW, strict=True))
    top, left = (image.shape[-2] - height) // 2, (image.shape[-1] - width) // 2
    return image[..., top : top + height, left : left + width]
