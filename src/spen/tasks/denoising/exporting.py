"""Denoisers for export: their inputs, which sizes are dynamic, and ``fill_pyramid`` for all sizes at once.

``fill_pyramid`` has more levels for larger images, which a graph cannot have. Both forms here have as many as the
largest image needs: below one pixel a level changes nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import spen
from spen.export import BATCH, Exportable, Size
from spen.tasks.denoising.energy import NoisyObservation, Observation
from spen.tasks.denoising.methods import Recipe, System

_HALVINGS, _COARSE = 6, 128
LARGEST = 2**_HALVINGS * (_COARSE - 2)
"""The longest side of an image that an exported ``fill_pyramid`` takes."""


def fill_any_size(image: Tensor, seen: Tensor) -> Tensor:
    """``fill_pyramid`` with torch's operations.

    Pixels outside of the image are added at the right and below: up to a multiple of 2⁶ first, so that six halvings
    come out even whatever the size; to 128 after these, so that the other seven have sizes that are known.
    Interpolation is that of the pixels inside alone, (k ∗ p·y) / (k ∗ p), which at the rim is the same as to repeat
    the last row.
    """
    height, width = image.shape[-2:]
    unit = 2**_HALVINGS
    outer = (unit * (height // unit + 2), unit * (width // unit + 2))  # two more, for a size of one is a special case
    sizes = [outer] + [None] * (_HALVINGS - 1) + [(_COARSE, _COARSE)] + [None] * (_COARSE.bit_length() - 2)
    along = 1 - (torch.arange(4, dtype=image.dtype, device=image.device) - 1.5).abs() / 2  # ¼ ¾ ¾ ¼
    kernel = torch.outer(along, along).expand(2, 1, 4, 4)
    return _fill_levels(image, seen, torch.ones_like(seen), kernel, sizes)


def _fill_levels(
    image: Tensor,  # (B, 1, H, W)
    seen: Tensor,  # (B, 1, H, W), 1 where there is a reading
    inside: Tensor,  # (B, 1, H, W), 1 inside of the image
    kernel: Tensor,  # (2, 1, 4, 4): bilinear interpolation to twice the size
    sizes: list[tuple[int, int] | None],  # what each level is enlarged to before it is halved
) -> Tensor:  # (B, 1, H, W)
    image = image * seen
    if not sizes:
        return image
    right, under = (sizes[0][1] - image.shape[-1], sizes[0][0] - image.shape[-2]) if sizes[0] else (0, 0)
    here = torch.cat([image, seen, inside], 1)
    mean, weight, part = F.avg_pool2d(F.pad(here, (0, right, 0, under)) if sizes[0] else here, 2).split(1, 1)
    mean, inside = mean / torch.where(weight > 0, weight, 1.0), (part > 0).to(image.dtype)
    below = _fill_levels(mean, (weight > 0).to(image.dtype), inside, kernel, sizes[1:])
    spread = F.conv_transpose2d(torch.cat([below * inside, inside], 1), kernel, stride=2, padding=1, groups=2)
    above, mass = (F.pad(spread, (0, -right, 0, -under)) if sizes[0] else spread).split(1, 1)
    return image + (1 - seen) * above / mass.clamp(min=1e-3)


def fill_onnx(image: Any, seen: Any) -> Any:
    """``fill_pyramid`` in ONNX's own operations, whose sizes are found when they run."""
    return _fill_onnx(image, seen, LARGEST.bit_length())


def _fill_onnx(image: Any, seen: Any, levels: int) -> Any:
    from onnxscript import opset18

    op: Any = opset18  # its types know no plain lists and numbers, which it takes
    image = op.Mul(image, seen)
    if not levels:
        return image
    both = op.Concat(image, seen, axis=1)
    # An average that overlaps the rim divides by fewer pixels, in both alike: the quotient is the same.
    pooled = op.AveragePool(both, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    mean, weight = op.Split(pooled, num_outputs=2, axis=1)
    there = op.Greater(weight, 0.0)
    below = _fill_onnx(op.Div(mean, op.Where(there, weight, 1.0)), op.Cast(there, to=1), levels - 1)
    wide = op.Resize(below, None, [1.0, 1.0, 2.0, 2.0], mode="linear", coordinate_transformation_mode="half_pixel")
    above = op.Slice(wide, [0, 0], op.Shape(image, start=2), [2, 3])
    return op.Add(image, op.Mul(op.Sub(1.0, seen), above))


def exportable(model: spen.SPEN, recipe: Recipe) -> Exportable:
    """A trained model, ready to be exported."""
    reads_noise = recipe.method.reads_noise
    side = Size("height", 8, LARGEST), Size("width", 8, LARGEST)
    shape = (BATCH, None, *side)
    fill = torch.ops.spen.fill_pyramid.default
    return Exportable(
        model=model,
        example=(lambda seed: _with_noise(_example(seed))) if reads_noise else _example,
        shapes={"image": shape, "seen": shape, **({"noise": (BATCH,)} if reads_noise else {})},
        descend=isinstance(recipe.method, System),
        metadata={
            "task": recipe.task,
            "recipe": recipe.name,
            "image": "depth divided by 4000 mm, or grey values by 255",
            "seen": "1 where there is a reading, 0 in a hole",
            **(
                {"noise": "its standard deviation in units of the image; of a depth sensor strength / 306"}
                if reads_noise
                else {}
            ),
            "y": "the image without noise, holes filled",
        },
        decompositions={fill: fill_any_size},
        translations={fill: fill_onnx},
    )


def _with_noise(x: Observation) -> NoisyObservation:
    return NoisyObservation(x.image, x.seen, torch.linspace(0.01, 0.1, len(x.image)).view(-1, 1, 1, 1))


def _example(seed: int) -> Observation:
    """Smooth images with noise and holes; the first has sizes that no power of two divides."""
    batch, height, width = ((2, 26, 35), (3, 41, 60), (1, 97, 16))[seed % 3]
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, 1, 5, 5, generator=generator)
    image = F.interpolate(coarse, size=(height, width), mode="bilinear")
    image = image + 0.03 * torch.randn(image.shape, generator=generator)
    seen = (torch.rand(image.shape, generator=generator) > 0.2).float()
    seen[:, :, : height // 3, : width // 3] = 0
    return Observation(image * seen, seen)
