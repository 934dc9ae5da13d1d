"""The descent in ONNX: every kind of step, and inputs of other sizes than the one that was traced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Box, Reals, Simplex
from spen.export import BATCH, TOLERANCE, Size, export_onnx
from spen.export.parts import trace_parts
from spen.export.predictor import frozen
from spen.protocols import Domain, StepRule
from spen.rules import LBFGS, GradientDescent, LearnedOptimizer, Momentum
from tests.export.small import chain

SHAPES = {"x": (BATCH, Size("length", 3))}


class Picked(nn.Module):
    """F of an input with a part that it does not read."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: dict[str, Tensor]) -> Any:
        return self.features(x["used"])


@pytest.fixture(scope="module")
def model() -> spen.SPEN:
    """Twenty steps with rates of their own over simplices."""
    made = chain(Simplex("logits"), GradientDescent(20, torch.linspace(0.3, 0.05, 20), learn_rates=True))
    made.features = Picked(made.features)
    return made.train()


@pytest.fixture(scope="module")
def path(model: spen.SPEN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    x = {"spare": torch.zeros(2, 9), "used": torch.randn(2, 5, 3)}
    shapes = {"spare": (BATCH,), "used": (BATCH, Size("length", 3))}
    target = tmp_path_factory.mktemp("onnx") / "new" / "chain.onnx"
    return export_onnx(model, x, target, shapes=shapes, metadata={"recipe": "r"})


def check(path: Path, model: spen.SPEN, wrap: Any = lambda x: x, name: str = "x") -> None:
    session = onnxruntime.InferenceSession(path)
    for batch, length in ((3, 7), (1, 3), (6, 31)):
        x = torch.randn(batch, length, 3)
        with torch.no_grad():
            trajectory = model(wrap(x))
        assert not torch.allclose(trajectory.start, trajectory.output, atol=1e-2), "the descent must do something"
        (found,) = session.run(["y"], {name: x.numpy()})
        np.testing.assert_allclose(found, trajectory.output.numpy(), rtol=0, atol=TOLERANCE)


def test_other_inputs_of_other_sizes(path: Path, model: spen.SPEN) -> None:
    check(path, model, lambda x: {"spare": torch.zeros(len(x), 9), "used": x}, "used")


def test_the_file_describes_itself(path: Path) -> None:
    assert [p.name for p in path.parent.iterdir()] == ["chain.onnx"], "one file, weights inside"
    session = onnxruntime.InferenceSession(path)
    (x,) = session.get_inputs()
    assert (x.name, x.shape, x.type) == ("used", ["batch", "length", 3], "tensor(float)"), (
        "what nobody reads is left out"
    )
    (y,) = session.get_outputs()
    assert (y.name, y.shape) == ("y", ["batch", "length", 4])
    assert session.get_modelmeta().custom_metadata_map == {"spen": spen.__version__, "recipe": "r"}
    graph = onnx.load(path).graph
    assert "site-packages" not in str(graph), "no paths of this machine"
    assert "CastLike" not in {node.op_type for node in graph.node}, "onnxruntime warns of these"


def test_the_model_is_left_alone(path: Path, model: spen.SPEN) -> None:
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert model.minimizer.rule.rates.learned


def test_steps_are_traced_once_whatever_their_number(path: Path, model: spen.SPEN) -> None:
    nodes = [node.op_type for node in onnx.load(path).graph.node]
    assert nodes.count("Softmax") == 20 + 1, "y_0 … y_T, each once"
    shapes = {"spare": (BATCH,), "used": (BATCH, Size("length", 3))}
    x = {"spare": torch.zeros(2, 9), "used": torch.randn(2, 5, 3)}
    parts = trace_parts(frozen(model), x, list(shapes.values()))
    assert parts is not None
    torch.testing.assert_close(parts.rates, torch.linspace(0.3, 0.05, 20))
    assert len(parts.step.graph.nodes) < len(nodes) / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("domain", "rule"),
    [
        (Reals(), LBFGS(3, memory=2)),
        (Box("projected"), Momentum(3, [0.1, 0.3, 0.5], decay=0.5)),
        (Simplex("projected"), LearnedOptimizer(3, 0.2, width=4)),
        (Simplex("through_logits"), Momentum(2, 0.5)),
        (Simplex("mirror"), Momentum(2, 0.5)),
    ],
)
def test_every_domain_and_rule(domain: Domain, rule: StepRule, tmp_path: Path) -> None:
    model = chain(domain, rule)
    if isinstance(rule, LearnedOptimizer):  # it begins as plain descent
        nn.init.normal_(rule.readout.weight)
    check(export_onnx(model, torch.randn(2, 5, 3), tmp_path / "chain.onnx", shapes=SHAPES), model)


def test_descents_that_cannot_be_cut_into_equal_steps_are_traced_whole() -> None:
    x = torch.randn(2, 5, 3)

    def cut(model: spen.SPEN) -> bool:
        return trace_parts(frozen(model), x, list(SHAPES.values())) is not None

    class Own(GradientDescent):
        """A rule derived from a known one may do anything."""

    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    class Plain(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, str]:
            return x, "a word"

    assert not cut(chain(Reals(), LBFGS(3))), "its history grows"
    assert not cut(chain(Reals(), Own(3)))
    model = chain(Reals(), GradientDescent(3))
    assert cut(model)
    model.features, model.init = Flat(), nn.Identity()
    assert not cut(model), "a size that is a product of sizes"
    model.features, model.init = Plain(), nn.Linear(3, 4)
    model.init.forward = lambda features: features[0]  # type: ignore[method-assign]
    assert not cut(model), "a feature that is no tensor"


def test_without_a_descent_it_is_inits_answer(tmp_path: Path) -> None:
    model = chain(Box("logits"), GradientDescent(3))
    path = export_onnx(model, torch.randn(2, 5, 3), tmp_path / "start.onnx", descend=False)
    x = torch.randn(4, 5, 3)
    (found,) = onnxruntime.InferenceSession(path).run(["y"], {"x": x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, model.feedforward(x).numpy(), rtol=0, atol=TOLERANCE)


def test_an_operation_without_translation_is_named(tmp_path: Path) -> None:
    class Gamma(nn.Module):
        def forward(self, features: Any) -> Tensor:
            return torch.lgamma(1 + features.scores.square())

    model = chain(Reals(), GradientDescent(1))
    model.init = Gamma()
    with pytest.raises(ValueError) as error:
        export_onnx(model, torch.randn(2, 5, 3), tmp_path / "chain.onnx", descend=False)
    assert str(error.value) == (
        "the model cannot be written as ONNX: prims.lgamma has no translation. "
        "Write a .pt2 file, or take the layer it comes from out of the model"
    )
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("spen.export.onnx.find_spec", lambda name: None if name == "onnxscript" else True)
    with pytest.raises(ImportError, match="^ONNX needs onnxscript: pip install onnxscript$"):
        export_onnx(chain(Reals(), GradientDescent(1)), torch.randn(2, 5, 3), tmp_path / "chain.onnx")
