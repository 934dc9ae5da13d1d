"""Checkpoints: any tree of tensors and plain values, back as it was; nothing else is read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spen.training import load_weights, save_weights
from spen.training.checkpoints import SafeCheckpointIO, load_tree, save_tree
from spen.training.sources import TensorSource, stream

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.integers(0, 3).map(lambda n: torch.arange(n, dtype=torch.float64)),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(0, 9)), inner, max_size=3),
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(tree=values)
def test_trees_come_back(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    path = tmp_path_factory.mktemp("tree") / "state.safetensors"
    save_tree(tree, path)
    assert same(load_tree(path), tree)


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a checkpoint cannot hold object \(at /a/1\)"):
        save_tree({"a": [1, object()]}, tmp_path / "x")
    with pytest.raises(TypeError, match="dict keys are strings or integers, not tuple"):
        save_tree({(1, 2): 3}, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_pickles_and_strangers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="evil cannot be read as a checkpoint"):
        load_tree(path)
    with pytest.raises(ValueError, match="evil cannot be read as weights"):
        load_weights(path)
    save_weights({"a": torch.ones(2)}, tmp_path / "plain")
    with pytest.raises(ValueError, match="plain is not a checkpoint of spen"):
        load_tree(tmp_path / "plain")
    assert torch.equal(load_weights(tmp_path / "plain")["a"], torch.ones(2))


def test_lightning_reads_and_removes(tmp_path: Path) -> None:
    plugin = SafeCheckpointIO()
    plugin.save_checkpoint({"epoch": 3, "state": {0: torch.ones(1)}}, tmp_path / "c")
    assert plugin.load_checkpoint(tmp_path / "c")["state"][0] == 1
    plugin.remove_checkpoint(tmp_path / "c")
    assert not (tmp_path / "c").exists()


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 3), st.booleans(), st.integers(0, 5))
def test_every_example_is_seen_once_an_epoch(size: int, batch: int, world: int, shuffle: bool, epoch: int) -> None:
    source = TensorSource(torch.arange(size), torch.arange(size), batch, shuffle=shuffle)
    shares = [list(source.batches(epoch, rank, world)) for rank in range(world)]
    assert {len(s) for s in shares} == {source.count(world)}
    seen = torch.cat([x for share in shares for x, _ in share])
    assert set(seen.tolist()) == set(range(size))
    again = [list(source.batches(epoch, rank, world)) for rank in range(world)]
    assert all(torch.equal(a[0], b[0]) for s, t in zip(shares, again, strict=True) for a, b in zip(s, t, strict=True))


def test_epochs_and_seeds_change_the_order() -> None:
    def order(epoch: int, seed: int) -> list[int]:
        return torch.cat(
            [x for x, _ in TensorSource(torch.arange(50), torch.arange(50), 8, seed=seed).batches(epoch)]
        ).tolist()

    assert order(0, 0) != order(1, 0)
    assert order(0, 0) != order(0, 1)
    assert TensorSource(torch.arange(10), torch.arange(10), 4, drop_last=True).count() == 2
    assert len({stream(a, b) for a in range(30) for b in range(30)}) == 900
