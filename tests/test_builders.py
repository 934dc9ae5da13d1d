"""Builders by name, and models in folders: config.json and model.safetensors."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import spen
from spen import builders
from spen.domains import Reals, Simplex
from spen.energies import ICNN, EntropySmoothed, Linear
from spen.models import open_model
from spen.pretrained import fitting
from spen.rules import GradientDescent
from spen.tasks.denoising.build import build as build_denoiser
from spen.tasks.denoising.energy import Observation
from spen.tasks.denoising.recipes import find_recipe
from spen.tasks.denoising.regimes import find_regime
from spen.tasks.multilabel.build import build_model as build_sets
from spen.tasks.multilabel.recipes import find_recipe as find_sets
from spen.tasks.multilabel.tables import Schema
from spen.tasks.srl.build import build as build_roles
from spen.tasks.srl.predict import Labeller
from spen.tasks.srl.recipes import RECIPES as ROLES
from tests.tasks.srl.small import batch, prepared


def squares(size: int, steps: int = 3) -> spen.SPEN:
    return spen.SPEN(
        features=torch.nn.Linear(size, size),
        init=torch.nn.Identity(),
        energy=ICNN(size, (4,), context=size),
        minimizer=spen.Minimizer(Reals(), GradientDescent(steps, 0.1)),
    )


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(builders._BUILDERS)
    yield
    builders._BUILDERS.clear()
    builders._BUILDERS.update(before)


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_registered_builder_saves_and_loads(tmp_path: Path) -> None:
    builders.register("squares", squares)
    model = builders.build("squares", size=5, steps=4).train()
    folder = model.save_pretrained(tmp_path / "saved")
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((folder / "config.json").read_text())
    assert config == {
        "model_type": "spen",
        "architectures": ["SPEN"],
        "spen_version": spen.__version__,
        "builder": "squares",
        "settings": {"size": 5, "steps": 4},
    }
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(model.state_dict())
    loaded = spen.SPEN.from_pretrained(folder)
    assert not loaded.training
    assert loaded.origin == model.origin
    x = torch.randn(3, 5)
    assert torch.equal(loaded(x).output, model(x).output)
    again = spen.SPEN.from_pretrained(loaded.save_pretrained(tmp_path / "again"))
    assert torch.equal(again(x).output, model(x).output)


def test_a_model_of_no_builder_is_loaded_with_ones_own(tmp_path: Path) -> None:
    model = squares(3)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["builder"] is None
    with pytest.raises(ValueError) as error:
        spen.SPEN.from_pretrained(tmp_path)
    assert str(error.value) == f"{tmp_path / 'config.json'} does not say how to build the model; give build="
    x = torch.randn(2, 3)
    loaded = spen.SPEN.from_pretrained(tmp_path, build=lambda: squares(3))
    assert torch.equal(loaded(x).output, model(x).output)


def test_a_file_names_a_builder_and_never_code(tmp_path: Path) -> None:
    builders.register("squares", squares)
    builders.build("squares", size=2).save_pretrained(tmp_path)
    change(tmp_path, builder="os:system", settings={"command": "false"})
    with pytest.raises(ValueError) as error:
        spen.SPEN.from_pretrained(tmp_path)
    assert str(error.value) == (
        "no builder 'os:system' is registered here; there are denoising, multilabel, reasoning, squares, srl. "
        "Import the module that registers it, or give build="
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"settings": {"size": 2, "colour": 3}}, "the settings in .*config.json do not fit the builder: .*'colour'"),
        ({"settings": {"size": 9}}, "the weights in .* do not fit the model that was built: .*size mismatch"),
        ({"model_type": "bert"}, "config.json is of another library: its model_type is not 'spen'"),
        ({"settings": []}, "config.json needs a builder .a name or null. and its settings .an object."),
        ({"builder": 3}, "config.json needs a builder .a name or null. and its settings .an object."),
    ],
)
def test_a_config_that_does_not_fit_is_told(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    builders.register("squares", squares)
    builders.build("squares", size=2).save_pretrained(tmp_path)
    change(tmp_path, **values)
    with pytest.raises(ValueError, match=message):
        spen.SPEN.from_pretrained(tmp_path)


def test_a_text_of_torch_ends_with_a_whole_word(tmp_path: Path) -> None:
    text = "Error(s) in loading state_dict for SPEN: Missing key(s) in state_dict: " + "energy.first.weight, " * 20
    with pytest.raises(ValueError, match=r"energy\.first\.weight, …$"), fitting(tmp_path):
        raise RuntimeError(text)


def test_a_run_without_weights_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    builders.register("squares", squares)
    builders.build("squares", size=2).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    for build in (None, squares):
        with pytest.raises(ValueError) as error:
            spen.SPEN.from_pretrained(tmp_path, build=build)
        assert str(error.value) == f"{tmp_path} has no trained weights yet: train it to the end, or resume it"


def test_a_model_of_the_package_is_opened_by_name() -> None:
    with pytest.raises(ValueError) as error:
        spen.SPEN.from_pretrained("dp-3")
    told = "'dp-3' is no folder but a model of the package: open it with spen.models.open_model(\"dp-3\").model"
    assert str(error.value) == told
    with pytest.raises(ValueError, match="^dp-9 is not a saved model: it has no config.json$"):
        spen.SPEN.from_pretrained("dp-9")


def test_damaged_folders_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a saved model: it has no config.json"):
        spen.SPEN.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json cannot be read"):
        spen.SPEN.from_pretrained(tmp_path)
    builders.register("squares", squares)
    builders.build("squares", size=2).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(ValueError, match="model.safetensors cannot be read as weights"):
        spen.SPEN.from_pretrained(tmp_path)


def test_settings_are_what_json_can_hold(tmp_path: Path) -> None:
    model = squares(2)
    model.origin = builders.Origin("squares", {"size": torch.tensor(2)})
    with pytest.raises(ValueError, match="the settings of builder 'squares' cannot be written as JSON"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_name_is_given_once() -> None:
    builders.register("squares", squares)
    builders.register("squares", squares)
    with pytest.raises(ValueError, match="there is another builder 'squares' already; give yours another name"):
        builders.register("squares", lambda: squares(2))


def test_an_origin_is_not_copied() -> None:
    """It may hold on to a data set."""
    model = squares(2)
    model.origin = builders.Origin("squares", lambda: {"size": 2})
    assert copy.deepcopy(model).origin is model.origin


def test_denoisers_know_their_origin(tmp_path: Path) -> None:
    for name in ("foe-3", "convnet"):
        recipe = find_recipe(name).with_options(width=4)
        model, objective = build_denoiser(recipe, find_regime("simulated"))
        folder = model.save_pretrained(tmp_path / name)
        loaded = spen.SPEN.from_pretrained(folder)
        image = torch.rand(1, 1, 12, 16)
        x = Observation(image, (image > 0.2).float())
        with torch.no_grad():
            expected = objective.predict(model, x)
            assert torch.equal(objective.predict(loaded, x), expected)
        assert torch.equal(open_model(folder).denoise(x), expected), "a saved folder serves as a run does"
    with pytest.raises(ValueError, match="not of role labelling"):
        Labeller.open(folder)


def test_role_labellers_know_their_origin(tmp_path: Path) -> None:
    data = prepared()
    model = build_roles(ROLES["spen"], data).eval()
    folder = model.save_pretrained(tmp_path / "roles")
    x, _ = batch()
    with torch.no_grad():
        assert torch.equal(spen.SPEN.from_pretrained(folder)(x).output, model(x).output)
    labeller = Labeller.open(folder)
    sentences = data.corpora["dev"].sentences[:3]
    labeller.model.load_state_dict(model.state_dict())
    assert len(labeller(sentences)) == 3
    assert open_model(folder).recipe.describe() == ROLES["spen"].describe()


def test_label_sets_know_their_origin(tmp_path: Path) -> None:
    recipe = replace(find_sets("bibtex-implicit"), hidden=(8,), network=(8,))
    model = build_sets(recipe, Schema.numbered(20, 5)).eval()
    loaded = spen.SPEN.from_pretrained(model.save_pretrained(tmp_path))
    x = (torch.rand(4, 20) < 0.3).float()
    with torch.no_grad():
        assert torch.equal(loaded(x).output, model(x).output)


def test_energies_that_need_functions_are_no_obstacle(tmp_path: Path) -> None:
    def made() -> spen.SPEN:
        energy = EntropySmoothed(Linear(lambda f: 2 * f))
        minimizer = spen.Minimizer(Simplex(), GradientDescent(2, 0.5, learn_rates=True))
        return spen.SPEN(energy=energy, init=torch.nn.Identity(), minimizer=minimizer)

    builders.register("function", made)
    model = builders.build("function")
    x = torch.randn(2, 3, 4)
    assert torch.equal(spen.SPEN.from_pretrained(model.save_pretrained(tmp_path))(x).output, model(x).output)
