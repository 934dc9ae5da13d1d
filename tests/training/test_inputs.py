"""What ``fit`` takes: DataLoaders, pairs of tensors, functions as metrics, losses as objectives, a precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import spen
from spen.objectives import EndToEnd, squared_error
from spen.training import Run, Stage, TensorSource, clamped, fit, joint
from spen.training.fingerprint import describe
from spen.training.sources import LoaderSource, MeanOf, as_source
from tests.training import toy


class Noisy(Dataset[Any]):
    """Augmentation: noise that the worker draws."""

    def __init__(self, source: TensorSource) -> None:
        self.x, self.target = source.x, source.target

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.01 * torch.randn(6), self.target[index]


def train(out: Path, data: Any, dev: Any = None, metric: Any = None, **options: Any) -> Run:
    metric = toy.MSE() if metric is None else metric
    dev = toy.build_data()[1] if dev is None else dev
    stage = joint(squared_error, epochs=2, learning_rate=0.01)
    plain = {"accelerator": "cpu", "progress": False, **options}
    return fit(toy.build_model(), [stage], data, dev, metric, out=out, **plain)


def loader(workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(toy.build_data()[0]), batch_size=8, shuffle=True, num_workers=workers, **options)


def same(one: Run, other: Run) -> bool:
    return all(torch.equal(value, other.load()[name]) for name, value in one.load().items())


def test_a_data_loader_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", loader(1))
    first = train(tmp_path / "parts", loader(1), seconds=0.0)
    assert not first.complete
    torch.manual_seed(99)  # as another process would have drawn
    assert same(train(tmp_path / "parts", loader(1)), whole)
    assert not same(train(tmp_path / "other", loader(1), seed=1), whole)


def test_the_batches_of_a_loader_are_shared_out() -> None:
    data = TensorDataset(torch.arange(10.0), torch.arange(10.0))
    source = LoaderSource(DataLoader(data, batch_size=2), 0)
    shares = [[batch[0].tolist() for batch in source.batches(0, rank, 2)] for rank in range(2)]
    assert shares == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [6, 7]]]
    assert (source.count(2), source.own(0, 2), source.own(1, 2)) == (3, 3, 2)
    few = LoaderSource(DataLoader(data, batch_size=10), 0)
    assert [len(batch[0]) for batch in few.batches(0, 1, 2)] == [10], "an empty share takes part in the step"
    own = DataLoader(data, batch_size=5, sampler=DistributedSampler(data, 2, 1, shuffle=False))
    assert [batch[0].tolist() for batch in LoaderSource(own, 0).batches(0, 1, 2)] == [[1, 3, 5, 7, 9]]


def test_a_loader_changes_its_order_with_the_epoch_and_the_seed() -> None:
    source = LoaderSource(loader(), 0)
    orders = [
        [x.sum().item() for x, _ in of.batches(epoch)] for of in (source, LoaderSource(loader(), 1)) for epoch in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4


def test_a_pair_of_tensors(tmp_path: Path) -> None:
    source, dev = toy.build_data()
    found = train(tmp_path / "pair", (source.x, source.target), (dev.x, dev.target))
    expected = train(tmp_path / "source", TensorSource(source.x, source.target, 32, seed=0))
    assert same(found, expected)


def test_what_is_no_data_is_refused() -> None:
    with pytest.raises(TypeError, match=r"data must be a TensorSource, a DataLoader, a pair of tensors .*, not Tensor"):
        as_source(torch.zeros(3), 0, shuffle=True)
    with pytest.raises(ValueError, match=r"a DataLoader for fit must give pairs \(x, target\), not 1 things"):
        next(LoaderSource(DataLoader(TensorDataset(torch.zeros(3))), 0).batches(0))

    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([])

    with pytest.raises(TypeError, match="a DataLoader of an IterableDataset has no length"):
        LoaderSource(DataLoader(Endless()), 0)


def test_a_function_as_the_metric(tmp_path: Path) -> None:
    source, _ = toy.build_data()

    def error(y: Tensor, target: Tensor) -> Tensor:
        return (y - target).square().flatten(1).mean(1)

    expected = [e["dev"] for e in train(tmp_path / "metric", source).metrics()]
    for name, function in (("each", error), ("mean", lambda y, target: float(error(y, target).mean()))):
        run = train(tmp_path / name, source, metric=function, higher_is_better=False)
        assert [e["dev"] for e in run.metrics()] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="error does not say whether higher is better: give fit higher_is_better=True"):
        train(tmp_path / "none", source, metric=error)
    with pytest.raises(TypeError, match="metric must be a torchmetrics Metric or a function of"):
        train(tmp_path / "none", source, metric=toy.MSE, higher_is_better=False)


def test_higher_is_better_decides_which_epoch_is_the_best(tmp_path: Path) -> None:
    source, _ = toy.build_data()
    best = {}
    for higher in (False, True):
        run = train(tmp_path / str(higher), source, metric=squared_error, higher_is_better=higher)
        scores = [e["dev"] for e in run.metrics()]
        best[higher] = run.scores(0)["best"]
        assert best[higher] == (max if higher else min)(scores)
    assert best[True] > best[False]


def test_the_mean_of_no_example_is_not_a_number() -> None:
    metric = MeanOf(lambda y, target: y - target)
    metric.update(torch.ones(3), torch.zeros(3))
    metric.update(torch.zeros(1), torch.zeros(1))
    assert float(metric.compute()) == 0.75


def test_a_loss_alone_means_end_to_end() -> None:
    for stage in (joint(squared_error, epochs=1), clamped(squared_error, epochs=1)):
        assert isinstance(stage.objective, EndToEnd)
        assert stage.objective.loss is squared_error
    with pytest.raises(TypeError, match="loss"):
        Stage(name="a", objective=3, epochs=1)  # type: ignore[arg-type]


def test_mixed_precision_lowers_and_trains(tmp_path: Path) -> None:
    seen = []
    model = toy.build_model()
    hook = lambda module, x, y: seen.append(y.dtype)  # noqa: E731
    next(m for m in model.energy.modules() if isinstance(m, nn.Linear)).register_forward_hook(hook)
    source, dev = toy.build_data()
    stage = joint(squared_error, epochs=2, learning_rate=0.01)
    options: dict[str, Any] = {"accelerator": "cpu", "progress": False, "vitals_every": 0}
    run = fit(model, [stage], source, dev, toy.MSE(), out=tmp_path / "low", precision="bf16-mixed", **options)
    assert torch.bfloat16 in seen
    assert all(value.dtype == torch.float32 for value in run.load().values())
    full = train(tmp_path / "full", source)
    for low, high in zip(run.metrics(), full.metrics(), strict=True):
        assert low["dev"] == pytest.approx(high["dev"], rel=0.02)
    assert not same(run, full)


def test_a_run_folder_of_any_model_is_opened_with_its_builder(tmp_path: Path) -> None:
    source, dev = toy.build_data()
    run = train(tmp_path, source)
    with pytest.raises(ValueError, match=r"config\.json does not say how to build the model; give build="):
        spen.SPEN.from_pretrained(run.folder)
    model = spen.SPEN.from_pretrained(run.folder, build=toy.build_model)
    assert all(torch.equal(value, run.load()[name]) for name, value in model.state_dict().items())
    assert model(dev.x).output.shape == (32, 3, 4)


@pytest.mark.parametrize(
    ("model", "stages", "sentence"),
    [
        (
            nn.Linear(6, 3),
            [joint(squared_error, epochs=1)],
            "fit trains a spen.SPEN, not an object of type Linear: "
            "write SPEN(features=…, init=…, energy=…, minimizer=…)",
        ),
        (
            toy.build_model(),
            joint(squared_error, epochs=1),
            "stages must be a list of stages, not an object of type Stage: write [joint(EndToEnd(loss), epochs=10)]",
        ),
        (
            toy.build_model(),
            None,
            "stages must be a list of stages, not None: write [joint(EndToEnd(loss), epochs=10)]",
        ),
        (
            toy.build_model(),
            [EndToEnd(squared_error)],
            "a stage must be a Stage, not an object of type EndToEnd; write joint(EndToEnd(loss), epochs=10)",
        ),
    ],
)
def test_a_model_or_stages_of_another_kind_are_refused(tmp_path: Path, model: Any, stages: Any, sentence: str) -> None:
    with pytest.raises(TypeError) as error:
        fit(model, stages, *toy.build_data(), toy.MSE(), out=tmp_path / "run", accelerator="cpu", progress=False)
    assert str(error.value) == sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("x", "target", "sentence"),
    [
        (np.zeros((4, 6)), torch.zeros(4), "x must hold a tensor with one row per example, and is of type ndarray"),
        (torch.zeros(4, 6), np.zeros(4), "target must hold a tensor .* of type ndarray: give torch.as_tensor"),
        (torch.zeros(4, 6), [0.0, 1.0, 2.0, 3.0], "target must hold a tensor with one row per example, .* type list"),
        (torch.zeros(4, 6), (torch.zeros(4), np.zeros(4)), "target holds an array beside its tensors: give torch"),
        ((torch.zeros(4, 6), torch.tensor(2.0)), torch.zeros(4), "x holds a tensor without rows beside its tensors"),
    ],
)
def test_what_would_not_be_shuffled_along_is_refused(x: Any, target: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        TensorSource(x, target, 2)


def test_data_without_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="the data hold no example"):
        TensorSource(torch.zeros(0, 6), torch.zeros(0), 2)
    with pytest.raises(ValueError, match="4 examples make no batch of 8: leave drop_last out"):
        TensorSource(torch.zeros(4, 6), torch.zeros(4), 8, drop_last=True)


def _difference(y: Tensor, target: Tensor) -> Tensor:
    return y - target


@pytest.mark.parametrize("reduce", [lambda d: d.mean(1), lambda d: d.mean(), lambda d: d.mean()[None]])
def test_a_metric_returns_one_number_per_example_or_their_mean(reduce: Any) -> None:
    metric = MeanOf(lambda y, target: reduce(_difference(y, target)))
    metric.update(torch.arange(6.0).view(3, 2), torch.zeros(3, 2))
    assert float(metric.compute()) == 2.5


def test_a_metric_of_other_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the metric returned shape \(3, 2\) for a batch of 3: it must return one"):
        MeanOf(_difference).update(torch.zeros(3, 2), torch.zeros(3, 2))


class Disturbed(Dataset[Any]):
    """Augmentation with an option."""

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((6,), self.sigma * index), torch.zeros(3, 4)


def _pairs(x: Tensor, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x, x), batch_size=2, **options)


def _drawn(*weights: float) -> DataLoader[Any]:
    return _pairs(torch.zeros(2), sampler=WeightedRandomSampler(weights, 2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_pairs(torch.zeros(5)), _pairs(torch.ones(5))),
        (_pairs(torch.zeros(5)), _pairs(torch.zeros(5), drop_last=True)),
        (_pairs(torch.zeros(5)), _pairs(torch.zeros(5), shuffle=True)),
        (_pairs(torch.zeros(5)), _pairs(torch.zeros(5), collate_fn=lambda rows: rows)),
        (DataLoader(Disturbed(0.1)), DataLoader(Disturbed(5.0))),
        (DataLoader(Subset(Disturbed(0.1), [0, 1])), DataLoader(Subset(Disturbed(0.1), [0, 2]))),
        (_drawn(1, 1), _drawn(1, 9)),
        (
            DataLoader(Disturbed(0.1), batch_sampler=BatchSampler([0, 1], 2, drop_last=False)),
            DataLoader(Disturbed(0.1), batch_sampler=BatchSampler([0, 2], 2, drop_last=False)),
        ),
    ],
    ids=["data", "drop_last", "shuffle", "collate_fn", "option", "subset", "sampler", "batch_sampler"],
)
def test_loaders_of_other_data_are_told_apart(one: DataLoader[Any], other: DataLoader[Any]) -> None:
    found = [describe(LoaderSource(loader, 0).fingerprint()) for loader in (one, one, other)]
    assert found[0] == found[1] != found[2]
