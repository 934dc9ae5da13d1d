"""What the buttons of the page do: from a visitor's choices to a piece of HTML. Knows nothing of a server.

A mistake is answered where the answer would have been, in one sentence. Whatever a visitor sends is taken for wrong
until it is checked: names are looked up in the catalogue, numbers and sizes have bounds.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import torch

from spen.tasks.denoising.priors import Observation
from spen.tasks.denoising.scoring import observation
from spen.viewer import denoising, landscape, roles, runs
from spen.viewer.catalogue import Catalogue
from spen.viewer.film import mistake, note

__all__ = ["Desk"]

P = ParamSpec("P")
NOBODY = "–"
"""The second system, where there is none."""

WINDOW = (64, 80)
"""The part of an image whose landscape is drawn: hundreds of energies of the whole would take minutes."""


def told(act: Callable[Concatenate[Desk, P], str]) -> Callable[Concatenate[Desk, P], str]:
    """A visitor's mistake becomes a sentence in the page, and so does a failure, whose traceback the terminal gets."""

    @wraps(act)
    def answer(self: Desk, *arguments: P.args, **options: P.kwargs) -> str:
        try:
            return act(self, *arguments, **options)
        except (ValueError, OSError, ImportError) as error:
            return mistake(str(error))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return mistake(f"{type(error).__name__}: {error}; the terminal of `spen view` says where")

    return answer


class Desk:
    """One for the page. Every method may be called by anybody, with anything. Files are read below `uploads` alone."""

    def __init__(self, catalogue: Catalogue, uploads: Path) -> None:
        self.catalogue, self.uploads = catalogue, uploads

    @told
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
        """A film of one or two systems on a room or an uploaded image."""
        scene = self._scene(room, file, peak)
        frame = denoising.observe(scene, noise, float(strength))
        names = list(dict.fromkeys(name for name in (first, second) if name and name != NOBODY))
        if not names:
            raise ValueError("choose a system")
        answers = [denoising.answer(name, self.catalogue.denoiser(name), frame) for name in names]
        return denoising.show(scene, frame, answers)

    @told
    def label(self, system: str, conllu: str, decoder: Any) -> str:
        """A film of the arcs of one sentence."""
        if decoder not in roles.DECODERS:
            raise ValueError(f"no decoder is called {decoder!r}; choose from {', '.join(roles.DECODERS)}")
        return roles.show(roles.follow(self.catalogue.labeller(system), roles.read(conllu or "")), decoder)

    @told
    def image_landscape(
        self,
        room: int | None,
        file: str | None,
        peak: float | None,
        noise: Any,
        strength: float,
        system: str,
        tell: Callable[[float], None] | None = None,
    ) -> str:
        """The energy around the answer for (a window of) an image."""
        scene = self._scene(room, file, peak)
        _, model = self.catalogue.denoiser(system)
        if model is None:
            raise ValueError(f"{system} descends no energy; choose one that does as the first system of Denoising")
        frame = denoising.observe(scene, noise, float(strength))
        x = Observation(*(_middle(part)[None] for part in observation(frame)))
        sliced = landscape.slice_energy(model, x, size=21, tell=tell)
        what = f"{system} on the middle {x.image.shape[-1]}×{x.image.shape[-2]} pixels of {scene.name}"
        return self._landscape(sliced, what)

    @told
    def sentence_landscape(self, system: str, conllu: str, tell: Callable[[float], None] | None = None) -> str:
        """The energy around the answer for a sentence."""
        sentence, labeller = roles.read(conllu or ""), self.catalogue.labeller(system)
        if labeller.feedforward:
            raise ValueError(f"{system} descends no energy; choose one that does in Role labelling")
        _, x, _ = roles.batch(labeller, sentence)
        sliced = landscape.slice_energy(labeller.model, x, size=41, tell=tell)
        return self._landscape(sliced, f"{system} on “{' '.join(sentence.words[:9])}{' …' * (len(sentence) > 9)}”")

    @told
    def curves(self, name: str | None) -> str:
        """The curves of a run."""
        if not name:
            raise ValueError("no folder of runs was named; `spen view RUNS` shows the runs below RUNS")
        return runs.show(self.catalogue.run(name))

    def _scene(self, room: int | None, file: str | None, peak: float | None) -> denoising.Scene:
        if file:
            if not Path(file).resolve().is_relative_to(self.uploads.resolve()):
                raise ValueError("that file was not uploaded here; drop it in")
            return denoising.upload(file, float(peak) if peak else None)
        if room is None or room == -1:
            raise ValueError("choose a room or drop in an image")
        return denoising.example(int(room))

    def _landscape(self, sliced: landscape.Slice, what: str) -> str:
        words = f"Energy on a plane through the descent of {what}"
        steps = len(sliced.path) - 1
        return landscape.picture(landscape.figure(sliced), escape(words)) + note(
            f"{what}: {steps} steps, energy {_signed(sliced.path_energies[0])} → {_signed(sliced.path_energies[-1])}; "
            f"the plane holds {100 * sliced.captured:.1f} % of the path."
        )


def _signed(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _middle(image: torch.Tensor) -> torch.Tensor:  # (1, H, W) -> (1, ≤ 64, ≤ 80)
    height, width = (min(full, part) for full, part in zip(image.shape[-2:], WINDOW, strict=True))
    top, left = (image.shape[-2] - height) // 2, (image.shape[-1] - width) // 2
    return image[..., top : top + height, left : left + width]
