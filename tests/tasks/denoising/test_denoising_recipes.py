"""Options of denoising recipes: each does something or is refused, and batches are what was asked for."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor

from spen.tasks.denoising.build import build, denoiser
from spen.tasks.denoising.data import Frame
from spen.tasks.denoising.energy import ConvexDeepPrior, DeepPrior, Observation
from spen.tasks.denoising.losses import target
from spen.tasks.denoising.methods import Recipe, Schedule, System
from spen.tasks.denoising.recipes import PAPER, RECIPES, find_recipe
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.denoising.train import stage_of

# One recipe of each class; the others have other values of the same options.
METHODS = ("proximal-net", "convnet", "convnet+", "foe-3", "dp-3", "dp-icnn", "dp-icnn+", "denoise", "depth", "unet")
METHODS += ("spen-best", "paper/dp-3")
SMALL = {"width": 4, "blocks": 1, "scales": 2}
# They leave the first answer as it is: the search does nothing where every step lowers the energy.
IN_TRAINING = {"learn_rates", "iterate_loss", "objective", "gradient", "line_search", "bf16"}
# A net that does not see the level must add to its input.
NEEDS: dict[tuple[str, str], dict[str, Any]] = {
    ("convnet", "blind"): {"residual": True},
    ("convnet", "residual"): {"blind": False},
    ("denoise", "momentum"): {"steps": 2},  # one step has no velocity
    ("denoise", "dampening"): {"steps": 2},
    ("depth", "momentum"): {"steps": 2},
    ("depth", "dampening"): {"steps": 2, "momentum": 0.5},
    ("spen-best", "dampening"): {"momentum": 0.5},
}


def small(name: str) -> Recipe:
    recipe = find_recipe(name)
    return recipe.with_options(**{k: v for k, v in SMALL.items() if k in recipe.option_names()})


def answer(recipe: Recipe) -> Tensor:
    torch.manual_seed(0)
    model, objective = build(recipe, find_regime("rooms"))
    generator = torch.Generator().manual_seed(1)
    image = 0.5 + 0.1 * torch.randn(1, 1, 16, 16, generator=generator)
    seen = (torch.rand(1, 1, 16, 16, generator=generator) > 0.2).float()
    with torch.no_grad():  # a prior that starts off would hide what its options do
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return denoiser(model, objective)(Observation(image * seen, seen))


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 2 if isinstance(value, int) else value * 1.2 + 0.01


@pytest.mark.parametrize("name", METHODS)
def test_every_option_of_a_method_changes_the_answer_or_is_refused(name: str) -> None:
    recipe = small(name)
    options = {k: v for k, v in asdict(recipe.method).items() if not isinstance(v, str) and k not in IN_TRAINING}
    before = answer(recipe)
    for key, value in options.items():
        changed = {key: other(value)}
        if key not in recipe.option_names():
            told = re.escape(f"recipe {name} does not use the option '{key}'; it uses ")
            with pytest.raises(ValueError, match=told):
                recipe.with_options(**changed)
            assert torch.equal(answer(recipe.restored(changed)), before), key
        else:
            base = recipe.with_options(**NEEDS.get((name.rstrip("+"), key), {}))
            assert not torch.equal(answer(base.with_options(**changed)), answer(base)), key


def test_a_classical_method_has_no_schedule() -> None:
    with pytest.raises(ValueError, match="recipe tv does not use the option 'batches'; it uses kind"):
        find_recipe("tv:batches=5")


@pytest.mark.parametrize(
    ("batches", "per_epoch", "epochs", "each"), [(400, 200, 2, 200), (500, 200, 3, 167), (3, 200, 1, 3)]
)
def test_batches_are_those_asked_for_up_to_whole_epochs(batches: int, per_epoch: int, epochs: int, each: int) -> None:
    schedule = Schedule(batches=batches, per_epoch=per_epoch)
    assert (schedule.epochs, schedule.epoch_batches) == (epochs, each)
    assert batches <= epochs * each < batches + epochs
    recipe = find_recipe("dp-3").with_options(batches=batches, per_epoch=per_epoch)
    assert stage_of(recipe.schedule, build(recipe, find_regime("rooms"))[1]).epochs == epochs


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("prior=foo", "prior is one of foe, deep, convex, convex+, unet, not 'foo'"),
        ("objective=foo", "objective is one of end-to-end, hinge, not 'foo'"),
        ("gradient=foo", "gradient is one of auto, exact, "),
        ("batches=0", "batches is a whole number from 1 on, not 0"),
        ("batches=-5", "batches is a whole number from 1 on, not -5"),
        ("per_epoch=0", "per_epoch is a whole number from 1 on, not 0"),
        ("width=0", "width is a whole number from 1 on, not 0"),
        ("warmup=-1", "warmup is a whole number from 0 on, not -1"),
        ("rate=nan", "rate is a finite number, not 'nan'"),
        ("rate=-1", "rate is a number from 0 on, not -1.0"),
        ("crop=48", "crop is height and width, as in 96x128, not '48'"),
        ("crop=0x4", "crop is height and width, as in 96x128, not '0x4'"),
        ("crop=ax4", "crop is whole numbers with x between them, not 'ax4'"),
    ],
)
def test_values_out_of_range_are_named(option: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        find_recipe(f"dp-3:{option}")


def test_the_rows_of_the_paper_take_its_choices() -> None:
    for name in PAPER:
        recipe, tuned = RECIPES[name], RECIPES[name.removeprefix("paper/")]
        schedule = recipe.schedule
        assert (schedule.learning_rate, schedule.warmup, schedule.decay_to) == (1e-3, 0, 1.0), name
        assert (schedule.clip, schedule.epsilon, schedule.average, schedule.every_pixel) == (0.0, 1e-8, 0.0, True), name
        assert (schedule.batches, schedule.batch_size) == (tuned.schedule.batches, tuned.schedule.batch_size), name
        assert recipe.paper == tuned.paper
        if isinstance(recipe.method, System) and isinstance(tuned.method, System):
            assert (recipe.method.steps, recipe.method.momentum) == (tuned.method.steps, tuned.method.momentum), name
            assert recipe.method.dampening == recipe.method.momentum, name
            assert not any((recipe.method.blind, recipe.method.scaled, recipe.method.mask)), name
            assert recipe.method.average_pooling == (recipe.method.prior != "foe"), name


def test_a_descent_without_a_mask_starts_from_the_zeros_of_the_sensor() -> None:
    image, seen = torch.full((1, 1, 8, 8), 0.5), torch.ones(1, 1, 8, 8)
    image[..., 3, 3] = seen[..., 3, 3] = 0
    starts = {}
    for change in ("mask=false", "fill=false", "mask=true"):
        recipe = find_recipe(f"dp-3:{change}:width=4")
        model, _ = build(recipe, find_regime("rooms"))
        features = model.features(Observation(image, seen))
        starts[change] = (float(model.init(features)[0, 0, 3, 3]), float(features.seen.sum()))
    assert starts == {"mask=false": (0.0, 64.0), "fill=false": (0.0, 63.0), "mask=true": (0.5, 63.0)}


def test_average_pooling_divides_by_the_pixels() -> None:
    y = torch.rand(2, 1, 6, 5, generator=torch.Generator().manual_seed(0))
    for kind in (DeepPrior, ConvexDeepPrior):
        torch.manual_seed(0)
        summed = kind(4, 3)
        averaged = kind(4, 3, average_pooling=True)
        averaged.load_state_dict(summed.state_dict())
        x = Observation(y, torch.ones_like(y))
        assert torch.allclose(30 * averaged(y, x), summed(y, x))


def test_every_pixel_counts_where_the_truth_is_not_known() -> None:
    mask = torch.tensor([[[True, False]]])
    frame = Frame(torch.zeros(1, 1, 2), mask, torch.tensor([[[0.5, 0.0]]]), mask, mask, ~mask)
    assert target(frame).scored.tolist() == [[[1.0, 0.0]]]
    assert target(frame, every_pixel=True).scored.tolist() == [[[1.0, 1.0]]]


def test_a_line_search_never_raises_the_energy() -> None:
    x = Observation(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.ones(2, 1, 8, 8))
    rises = {}
    for search in ("false", "true"):
        torch.manual_seed(0)
        model, _ = build(
            find_recipe(f"foe-20:line_search={search}:rate=2:gradient=exact:width=4"), find_regime("rooms")
        )
        energies = torch.stack(list(model(x).energies)).detach()
        rises[search] = bool((energies.diff(dim=0) > 1e-4 * energies[:-1].abs()).any())
    assert rises == {"false": True, "true": False}
