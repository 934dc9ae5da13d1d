"""Fingerprints of functions, data and modules."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spen.energies import Energy, Linear, NegativeEntropy, Scaled, SoftNand
from spen.objectives import (
    ContrastiveDivergence,
    EndToEnd,
    Langevin,
    StructuredHinge,
    binary_log_loss,
    squared_error,
)
from spen.training import Run, fit, joint
from spen.training.fingerprint import describe, describe_module, digest, fingerprint
from tests.training import toy
from tests.training.test_fingerprint import STAGE, _network_loss, _options, _refused

# ── functions, data, modules ──────────────────────────────────────────────────────────────────────────────────────────

WEIGHT = 2.0


def _weighted(weight: float, scale: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda y, target: weight * scale * (y - target).square().flatten(1).mean(1)


def _reading(y: Tensor, target: Tensor) -> Tensor:
    return WEIGHT * (y - target).square().flatten(1).mean(1)


def _calling(y: Tensor, target: Tensor) -> Tensor:
    return _reading(y, target)


def test_functions_differ_in_code_constants_closures_and_arguments() -> None:
    def power(n: float) -> Any:
        return describe(partial(_network_loss, extra=n))

    assert describe(squared_error) == "squared_error"
    assert describe(_weighted(1.0)) == describe(_weighted(1.0))
    assert describe(_weighted(1.0)) != describe(_weighted(2.0))
    assert describe(lambda y, t: (y - t).abs()) != describe(lambda y, t: (y - t).square())
    assert describe(lambda y, t: 1.0 * y) != describe(lambda y, t: 2.0 * y)
    assert describe(lambda y, t: 2.0 * y) == describe(lambda y, t: 2.0 * y)
    assert power(2.0)["keywords"] == {"extra": 2.0}
    assert power(2.0) != power(3.0)
    assert describe(_network_loss)["function"] == "_network_loss"


def test_functions_differ_in_the_values_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe(_reading), describe(_calling)
    monkeypatch.setitem(globals(), "WEIGHT", 3.0)
    assert describe(_reading) != before[0]
    assert describe(_calling) != before[1]


def test_a_class_outside_the_library_is_compared_by_its_code() -> None:
    def made(power: float) -> Energy:
        class Own(Energy):
            def forward(self, y: Tensor, features: Any) -> Tensor:
                return y.abs().pow(power).flatten(1).sum(1)

        return Own()

    assert describe_module(made(2.0), values=False) == describe_module(made(2.0), values=False)
    assert describe_module(made(2.0), values=False) != describe_module(made(3.0), values=False)
    assert describe_module(NegativeEntropy(), values=False) == {
        "(whole)": {"class": "NegativeEntropy", "over": "simplex"}
    }


def test_options_of_energies_are_seen() -> None:
    def pairs(y: Tensor, features: Any) -> tuple[Tensor, Tensor]:
        return y, y

    for first, second in [
        (Scaled(Linear(), 0.5), Scaled(Linear(), 0.6)),
        (NegativeEntropy("simplex"), NegativeEntropy("box")),
        (SoftNand(pairs, learned=False), SoftNand(pairs, weight=2.0, learned=False)),
        (SoftNand(pairs), SoftNand(pairs, temperature=2.0)),
        (Linear(), Linear(lambda features: features[0])),
    ]:
        assert describe_module(first, values=False) != describe_module(second, values=False)
    trained = SoftNand(pairs, weight=2.0)
    assert describe_module(SoftNand(pairs), values=False) == describe_module(trained, values=False)


def test_an_object_that_holds_itself_can_be_describe() -> None:
    class Loop:
        def __init__(self, other: Any) -> None:
            self.other = self

    assert describe(Loop(None))["other"] == Loop.__qualname__


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_a_digest_sees_values_places_shapes_and_types(dtype: torch.dtype) -> None:
    values = (torch.arange(2 * 1031) % 2).reshape(2, 1031).to(dtype)
    swapped = values.clone()
    swapped[0, :2] = values[0, :2].flip(0)
    assert digest(values) == digest(values.clone())
    assert digest(values) == digest(values.mT.contiguous().mT)
    assert len({digest(t) for t in (values, swapped, values.reshape(1031, 2), 1 - values.float(), values[:, :-1])}) == 5
    assert digest(values).startswith(f"{str(dtype).removeprefix('torch.')} (2, 1031) ")


def test_a_long_tensor_is_read_in_blocks() -> None:
    values = torch.zeros(3 * 2**20 + 5, dtype=torch.int64)
    prints = set()
    for place in (0, 2**20, 2**21, len(values) - 1):
        values.zero_()
        values[place] = 1
        prints.add(digest(values))
    assert len(prints) == 4


class Named:
    """A source that only has a name."""

    def __init__(self, name: str | None, size: int = 2) -> None:
        self.size = size
        if name is not None:
            self.name = name

    def batches(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        train, _ = toy.build_data()
        yield from list(train.batches(epoch))[: self.size]

    def count(self, world: int) -> int:
        return self.size


def test_a_source_says_which_data_it_gives(tmp_path: Path) -> None:
    fit(**{**_options(tmp_path), "train": Named("monday")})
    assert "train: monday there, tuesday now" in _refused(tmp_path, train=Named("tuesday"))
    assert fit(**{**_options(tmp_path), "train": Named("monday", size=3)}) is not None
    source = Named(None)
    source.fingerprint = lambda: {"day": "monday"}  # type: ignore[attr-defined]
    _, dev = toy.build_data()
    found = fingerprint(toy.build_model(), [STAGE], source, dev, toy.MSE(), 1)
    assert found["train"] == {"day": "monday"}
    plain = fingerprint(toy.build_model(), [STAGE], Named(None, 3), dev, toy.MSE(), 1)["train"]
    assert (plain["batches"], plain["size"]) == (3, 3)


def test_a_trained_model_comes_back_to_its_folder(tmp_path: Path) -> None:
    options = _options(tmp_path)
    first = fit(**options)
    again = fit(**options)  # the same objects, with other weights, caches and counts
    assert first is not None
    assert again is not None
    assert {n: v.tolist() for n, v in again.load().items()} == {n: v.tolist() for n, v in first.load().items()}


@pytest.mark.parametrize(
    ("value", "again", "other"),
    [
        (np.arange(3), np.arange(3), np.arange(3)[::-1]),
        (np.array(["a", "b"]), np.array(["a", "b"]), np.array(["a", "c"])),
        ({1, "a"}, {"a", 1}, {"a", 2}),
        (Named("x").count, Named("x").count, Named("x", 3).count),
        (torch.eye(3).to_sparse(), torch.eye(3).to_sparse(), 2 * torch.eye(3).to_sparse()),
        (torch.tensor([1 + 1j]), torch.tensor([1 - 1j]).conj(), torch.tensor([1 - 1j])),
        (math.nan, math.nan, math.inf),
        (list(range(99)), list(range(99)), list(range(100))),
    ],
    ids=["array", "words", "set", "method", "sparse", "complex", "not finite", "long"],
)
def test_other_values_are_described(value: Any, again: Any, other: Any) -> None:
    assert describe(value) == describe(again) != describe(other)
    assert json.dumps(describe(value))


def test_objectives_with_samplers_and_search_are_told_apart() -> None:
    assert describe(ContrastiveDivergence(Langevin(3))) != describe(ContrastiveDivergence(Langevin(4)))
    assert describe(StructuredHinge(squared_error)) != describe(StructuredHinge(binary_log_loss))
    assert describe(joint(EndToEnd(squared_error, weights=[1.0, 2.0]), epochs=1)) != describe(
        joint(EndToEnd(squared_error, weights=[1.0, 3.0]), epochs=1)
    )
    assert Run.__name__ in describe(Run)


def _weighted(weights: Any) -> Any:
    return lambda y, target: ((y - target).square() * torch.as_tensor(weights)).mean((1, 2))


def _looked_up(table: Any) -> Any:
    return lambda y, target: (y - target).square().mean((1, 2)) * table["weight"]


class Weights:
    """Numbers in an object."""

    def __init__(self, weight: float) -> None:
        self.weight = weight


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (_weighted, np.ones(4), np.array([1.0, 0, 0, 0])),
        (_looked_up, {"weight": 1.0}, {"weight": 2.0}),
        (lambda w: lambda y, target: (y - target).square().mean((1, 2)) * w.weight, Weights(1.0), Weights(2.0)),
        (lambda m: lambda y, target: m(y).mean((1, 2)), nn.Linear(4, 4), nn.Linear(4, 4)),
    ],
    ids=["array", "dict", "object", "module"],
)
def test_what_the_closure_of_a_loss_holds_counts(make: Any, one: Any, other: Any) -> None:
    found = [describe(make(value)) for value in (one, one, other)]
    assert found[0] == found[1] != found[2]


RECURSIVE: dict[str, Any] = {}


def _reads_itself(y: torch.Tensor) -> Any:
    return RECURSIVE["loss"] if y is None else y


RECURSIVE["loss"] = _reads_itself


def test_a_function_in_a_table_that_it_reads_is_described() -> None:
    assert json.dumps(describe(_reads_itself))


def test_the_tensor_that_weighs_an_energy_counts() -> None:
    one, again, other = (describe_module(torch.tensor(w) * Linear(), values=False) for w in (0.5, 0.5, 5.0))
    assert one == again != other


PAIRS: dict[str, Callable[[Any], nn.Module]] = {
    "delta": lambda v: nn.HuberLoss(delta=[1.0, 2.0][v]),
    "label smoothing": lambda v: nn.CrossEntropyLoss(label_smoothing=[0.0, 0.1][v]),
    "reduction": lambda v: nn.MSELoss(reduction=["mean", "sum"][v]),
    "heads": lambda v: nn.MultiheadAttention(8, [2, 4][v]),
    "activation": lambda v: nn.TransformerEncoderLayer(8, 2, 8, activation=["relu", "gelu"][v]),
    "norm first": lambda v: nn.TransformerEncoderLayer(8, 2, 8, norm_first=bool(v)),
    "nonlinearity": lambda v: nn.RNN(4, 4, nonlinearity=["tanh", "relu"][v]),
    "iterations": lambda v: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4), n_power_iterations=1 + v),
    "eval mode": lambda v: nn.ModuleList([nn.Sequential(nn.Dropout(0.5)).train(not v)]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_options_of_torchs_layers_and_losses_count(name: str) -> None:
    def described(value: int) -> Any:
        torch.manual_seed(0)
        return describe(PAIRS[name](value))

    first, again, other = described(0), described(0), described(1)
    assert first == again
    assert first != other
