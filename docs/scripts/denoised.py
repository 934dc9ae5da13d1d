"""The README's picture: a test room, what the sensor saw, and dp-3's answer. python docs/scripts/denoised.py"""

from __future__ import annotations

from pathlib import Path

from spen.models import open_model
from spen.tasks.denoising.data import Rooms
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.losses import observation
from spen.tasks.denoising.report import images_figure

if __name__ == "__main__":
    frame = Rooms("test", 100).frame(12)
    answer = open_model("dp-3").denoise(Observation(*(part[None] for part in observation(frame))))[0]
    path = Path(__file__).parents[1] / "figures" / "denoised.png"
    images_figure(frame, {"dp-3": answer}).savefig(path, dpi=90)
    print(f"wrote {path.name}")
