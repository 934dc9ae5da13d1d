"""Holes filled for every size at once, and every recipe as an ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import spen
from spen.domains import Reals
from spen.export import TOLERANCE, export_onnx, write
from spen.models import open_model
from spen.pretrained import write_config
from spen.rules import GradientDescent
from spen.tasks.denoising import exporting
from spen.tasks.denoising.build import build, origin_of
from spen.tasks.denoising.energy import DataTerm, Observation
from spen.tasks.denoising.exporting import LARGEST, exportable, fill_any_size
from spen.tasks.denoising.holes import fill_pyramid
from spen.tasks.denoising.recipes import find_recipe
from spen.tasks.denoising.regimes import find_regime

SIZES = st.tuples(st.integers(1, 3), st.integers(1, 150), st.integers(1, 150), st.integers(0, 1000))


def with_holes(batch: int, height: int, width: int, seed: int) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(batch, 1, height, width, generator=generator)
    rare = torch.rand(batch, 1, 1, 1, generator=generator) ** 0.2
    return Observation(image, (torch.rand(image.shape, generator=generator) > rare).float())


@given(SIZES)
def test_holes_are_filled_alike_with_operations_of_torch(sizes: tuple[int, int, int, int]) -> None:
    x = with_holes(*sizes)
    torch.testing.assert_close(fill_any_size(*x), fill_pyramid(*x), rtol=0, atol=1e-6)


class Fill(nn.Module):
    def forward(self, features: Observation) -> Tensor:
        return fill_pyramid(*features)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> onnxruntime.InferenceSession:
    thing = open_model("dp-3").exportable()
    model = spen.SPEN(energy=DataTerm(), init=Fill(), minimizer=spen.Minimizer(Reals(), GradientDescent(1)))
    path = tmp_path_factory.mktemp("fill") / "fill.onnx"
    options = {"shapes": thing.shapes, "translations": thing.translations}
    return onnxruntime.InferenceSession(export_onnx(model, thing.example(0), path, descend=False, **options))


@given(SIZES)
def test_holes_are_filled_alike_with_operations_of_onnx(
    filled: onnxruntime.InferenceSession, sizes: tuple[int, int, int, int]
) -> None:
    x = with_holes(*sizes)
    (found,) = filled.run(["y"], {"image": x.image.numpy(), "seen": x.seen.numpy()})
    np.testing.assert_allclose(found, fill_pyramid(*x).numpy(), rtol=0, atol=1e-6)


def test_one_reading_fills_the_largest_image(filled: onnxruntime.InferenceSession) -> None:
    """As many levels as it takes, and the exported sizes say how far that goes."""
    image, seen = torch.zeros(1, 1, 2, LARGEST), torch.zeros(1, 1, 2, LARGEST)
    image[..., 0, 7], seen[..., 0, 7] = 0.5, 1
    expected = torch.full_like(image, 0.5)
    torch.testing.assert_close(fill_any_size(image, seen), expected)
    (found,) = filled.run(["y"], {"image": image.numpy(), "seen": seen.numpy()})
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    assert {size.most for shape in open_model("dp-3").exportable().shapes.values() for size in shape[2:] if size} == {
        LARGEST
    }


def fresh(name: str) -> exporting.Exportable:
    """A recipe with weights of its own, small and awake."""
    recipe = find_recipe(name if "width" in name else f"{name}:width=8")
    torch.manual_seed(0)
    model, _ = build(recipe, find_regime("rooms"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return exportable(model, recipe)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["dp-icnn:steps=1", "spen-best:steps=1:scales=2:blocks=1:width=4", "proximal-net:iterations=2"],
)
def test_every_energy_is_exported_and_a_feed_forward_net_without_a_descent(name: str, tmp_path: Path) -> None:
    """The deep prior is exported elsewhere, with its shipped weights; a field of experts has no other operations."""
    thing = fresh(name)
    assert thing.descend == (not name.startswith("proximal"))
    written = write(thing, tmp_path / "model.onnx")
    assert written.inputs == {name: ["batch", 1, "height", "width"] for name in ("image", "seen")}
    assert written.difference is not None
    assert written.difference < TOLERANCE


def test_a_method_without_a_network_is_told(tmp_path: Path) -> None:
    write_config(tmp_path, origin_of(find_recipe("tv"), find_regime("rooms")))
    (tmp_path / "chosen.json").write_text('{"options": {"weight": 0.1}}')
    with pytest.raises(ValueError, match="is a model of tv, which has no network to export"):
        open_model(tmp_path).exportable()
