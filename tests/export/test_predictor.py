"""Names of inputs, free sizes, and what cannot be exported, each in a sentence."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import spen
from spen.bundle_entropy import BundleEntropy
from spen.domains import Box, Reals
from spen.export import BATCH, Size
from spen.export.predictor import check_exportable, check_shapes, named_inputs, trace
from spen.rules import GradientDescent
from tests.export.small import chain


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_inputs_are_called_by_their_fields() -> None:
    t = torch.zeros(2)
    assert list(named_inputs(t)) == ["x"]
    assert list(named_inputs(Pair(t, t))) == ["first", "second"]
    assert list(named_inputs({"a": t, "b": Pair(t, t)})) == ["a", "b_first", "b_second"]
    assert list(named_inputs((t, [t]))) == ["0", "1_0"]
    with pytest.raises(ValueError, match="the input n is int; an exported model takes tensors alone"):
        named_inputs({"x": t, "n": 3})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Size("a b"), "the name of a size must be a Python identifier, not 'a b'"),
        (lambda: Size("n", 0), "size n goes from 0 to None; it must take two values or more"),
        (lambda: Size("n", 4, 4), "size n goes from 4 to 4; it must take two values or more"),
        (lambda: check_shapes({"x": torch.zeros(2)}, {"y": ()}), "there is no input y; there are x"),
        (
            lambda: check_shapes({"x": torch.zeros(2)}, {"x": (BATCH, None)}),
            "x has 1 dimensions, but 2 are given for it",
        ),
        (
            lambda: check_shapes({"x": torch.zeros(2), "y": torch.zeros(3)}, {"x": (BATCH,), "y": (BATCH,)}),
            "size batch is 2 and 3 in the example",
        ),
        (
            lambda: check_shapes({"x": torch.zeros(1, 2)}, {"x": (BATCH,)}),
            "size batch is 1 in the example; give one of 2 or more",
        ),
        (
            lambda: check_shapes({"x": torch.zeros(6)}, {"x": (Size("n", 8),)}),
            "size n is 6 in the example; give one of 8 or more",
        ),
    ],
)
def test_wrong_sizes_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message


def test_a_descent_of_no_fixed_length_is_refused() -> None:
    model = chain(Reals(), GradientDescent(7), stop=spen.RelativeChange(1e-3))
    with pytest.raises(ValueError) as error:
        trace(model, torch.randn(2, 5, 3))
    assert str(error.value) == (
        "a descent that stops early (RelativeChange(0.001)) cannot be exported: an exported graph takes the same steps "
        "for every input. Set model.minimizer.stop = None to export all 7 steps"
    )
    check_exportable(model, descend=False)
    model.minimizer = BundleEntropy(Box("logits"))  # type: ignore[assignment]
    with pytest.raises(ValueError, match="BundleEntropy cannot be exported: its number of steps depends on the input"):
        check_exportable(model)


def test_sizes_that_the_model_does_not_take_are_told() -> None:
    model = chain(Reals(), GradientDescent(1))
    with pytest.raises(ValueError) as error:
        trace(model, torch.randn(2, 5, 3), shapes={"x": (BATCH, Size("length"))})
    assert str(error.value) == ('the model cannot be exported for all of these sizes: Size("length", least=3) would do')
    with pytest.raises(
        ValueError, match="the model cannot be exported for all of these sizes: inputs is always 3 in it"
    ):
        trace(model, torch.randn(2, 5, 3), shapes={"x": (None, None, Size("inputs"))})


def test_a_number_is_a_fixed_size() -> None:
    model, x = chain(Reals(), GradientDescent(1)), torch.randn(2, 5, 3)
    program = trace(model, x, shapes={"x": (BATCH, 5, 3)})
    shape = next(n.meta["val"].shape for n in program.graph.nodes if n.name in program.graph_signature.user_inputs)
    assert [isinstance(size, torch.SymInt) for size in shape] == [True, False, False]
    with pytest.raises(ValueError, match="x has a size of 5 in the example where 6 is given for it"):
        trace(model, x, shapes={"x": (BATCH, 6)})
