"""Binary segmentation with a prior of shapes, as a task of its own: a model, its data, its metric, files, a tab.

    pip install ./examples/segmentation
    spen train segmentation/shapes
    spen predict runs/blobs/shapes/seed-0 photo.png -o mask.png

E(y; x) = −⟨F(x), y⟩ + P(y) + entropy: F scores every pixel by what is around it, P is a small network that reads the
mask alone and learns what shapes look like.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spen.tasks.simple import SimpleTask
from spen.tasks.task import Dataset

SIZE = 24


@dataclass(frozen=True)
class Shapes:
    """What `--set` changes."""

    about: str = "pixel scores and a prior of shapes, trained end to end"
    width: int = 8
    steps: int = 5
    rate: float = 1.0
    epochs: int = 6
    learning_rate: float = 3e-3


class Segmentation(SimpleTask):
    """Grey images in, masks out."""

    name = "segmentation"
    measure = "IoU"
    systems = {"shapes": Shapes()}
    datasets = {"blobs": Dataset("blobs", "disks and boxes under heavy noise, drawn when they are asked for")}
    tab = "spen_segmentation:SegmentationTab"

    def model(self, system: Shapes) -> Any:
        import torch
        from torch import nn

        import spen
        from spen.domains import Box
        from spen.energies import Energy, EntropySmoothed, Linear
        from spen.rules import GradientDescent

        def network(inputs: int) -> nn.Module:
            layers = [nn.Conv2d(inputs, system.width, 5, padding=2), nn.Softplus()]
            layers += [nn.Conv2d(system.width, system.width, 5, padding=2), nn.Softplus()]
            return nn.Sequential(*layers, nn.Conv2d(system.width, 1, 1))

        class ShapePrior(Energy):
            """P(y): the sum of a network's output over the mask."""

            def __init__(self) -> None:
                super().__init__()
                self.network = network(1)

            def forward(self, y: torch.Tensor, features: Any) -> torch.Tensor:
                return self.network(y).flatten(1).sum(1)

        return spen.SPEN(
            features=network(1),
            init=nn.Identity(),  # the scores are the first logits
            energy=EntropySmoothed(Linear() + ShapePrior(), 1.0, over="box"),
            minimizer=spen.Minimizer(
                Box("logits"), GradientDescent(system.steps, system.rate / system.steps, learn_rates=True)
            ),
        )

    def stages(self, system: Shapes) -> Any:
        from spen.objectives import EndToEnd, binary_log_loss
        from spen.training import joint

        objective = EndToEnd(binary_log_loss)
        return [joint(objective, epochs=system.epochs, learning_rate=system.learning_rate, clip=1.0)]

    def metric(self, system: Any) -> Any:
        from torchmetrics.classification import BinaryJaccardIndex

        return BinaryJaccardIndex()

    def examples_of(self, data: str, split: str) -> tuple[Any, Any]:
        import torch

        count, seed = {"train": (256, 0), "dev": (64, 1), "test": (128, 2)}[split]
        draw = torch.Generator().manual_seed(seed)
        at = torch.arange(SIZE).float()
        masks = torch.zeros(count, 1, SIZE, SIZE)
        for mask in masks:
            for _ in range(2):
                row, column, radius, kind = torch.rand(4, generator=draw).tolist()
                down, across = (at - SIZE * row).abs()[:, None], (at - SIZE * column).abs()[None]
                reach = 4 + 6 * radius
                inside = (down**2 + across**2 < reach**2) if kind < 0.5 else (down < reach) & (across < reach)
                mask[0][inside] = 1.0
        return masks + torch.randn(masks.shape, generator=draw), masks

    def read(self, path: Path, **options: Any) -> Any:
        import numpy as np
        import torch
        from PIL import Image

        pixels = np.asarray(Image.open(path).convert("L"), dtype=np.float32)
        return torch.from_numpy(pixels / 255.0)[None]

    def write(self, answer: Any, path: Path, **options: Any) -> None:
        import numpy as np
        from PIL import Image

        Image.fromarray((255 * (answer[0].numpy() > 0.5)).astype(np.uint8)).save(path)


class SegmentationTab:
    """A tab of `spen view`: an image of the test split and the mask that a run finds in it."""

    title = "Segmentation"

    def fill(self, page: Any) -> list[Any]:
        import gradio as gr

        from spen.viewer.pictures import Scale, paint

        x, _ = TASK.examples_of("blobs", "test")

        def show(name: str, number: float) -> str:
            image = x[int(number)]
            mask = page.open(name).answer(image[None])[0]
            pictures = (paint(plane[0].numpy(), Scale("mask", "gray", 0.0, 1.0)) for plane in (image, mask))
            return "".join(f'<img width="240" src="{picture}">' for picture in pictures)

        run_folder = gr.Dropdown(page.models(), label="Run", elem_id="segmentation-run")
        number = gr.Slider(0, len(x) - 1, 0, step=1, label="Test image")
        button = gr.Button("Find the mask", variant="primary", elem_id="segment")
        answer = page.hint("The image and its mask appear here.", "segmented")
        button.click(page.report_errors(show), [run_folder, number], answer, **page.descent)
        return []


TASK = Segmentation()
