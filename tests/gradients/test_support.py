"""Strategy × tool of PyTorch, by value: the cells of the table in docs/distributed.md (benchmarks/support.py)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from benchmarks import support
from benchmarks.support import ALONE, STRATEGIES, TOGETHER, Result
from spen.gradients import Exact

NAMES = list(STRATEGIES)
FOR_TWO = {way: NAMES if way in ("DDP", "FSDP2") else ["Exact", "FiniteDifference", "Implicit"] for way in TOGETHER}
# Differences of float32 numbers multiply what another order of sums changes by the inverse of the radius.
SAME = {"FiniteDifference": 1e-5}
NEAR = {"FiniteDifference": 1e-4, "Implicit": 1e-3}  # to Exact, over T steps that converge
alone, reference = functools.cache(support.alone), functools.cache(support.reference)
COPIES = ("Exact", "Written", "Auto")  # work on copies of nn.DataParallel


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Result]:
    return support.together(tmp_path_factory.mktemp("two"), FOR_TWO)


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in FOR_TWO.items() for name in names])
def test_two_processes_have_the_gradient_of_one(shared: dict[tuple[str, str], Result], way: str, name: str) -> None:
    found = shared[way, name]
    assert not isinstance(found, str), found
    plain = alone("plain", name)
    assert not isinstance(plain, str), plain
    assert support.distance(found, plain) <= SAME.get(name, 1e-6)


# Strategies that replay the steps are the same to torch.compile: one of each kind.
COMPILED = ("Exact", "Checkpointed", "Compiled", "Written", "Implicit", "Auto")
FOR_ONE = {"plain": NAMES, "functional_call": NAMES, "torch.compile(model)": COMPILED}


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in FOR_ONE.items() for name in names])
def test_one_process_has_the_gradient_of_exact(way: str, name: str) -> None:
    found = alone(way, name)
    assert not isinstance(found, str), found
    assert support.distance(found, reference(name)) <= NEAR.get(name, 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_has_the_gradient_of_exact_under_autocast(name: str) -> None:
    found = support.autocast(name)
    assert support.distance(found, support.autocast(name, Exact())) <= 0.02
    assert support.distance(found, reference(name)) > 1e-4  # something was lowered


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_work_says_so(name: str) -> None:
    assert support.alone("vmap", name) == (
        "torch.func (vmap, grad, jvp) cannot differentiate or map a descent, which calls autograd itself: give the "
        "model a batch, and use backward() or torch.autograd.grad"
    )
    found = support.alone("nn.DataParallel", name)
    if name in COPIES:
        assert not isinstance(found, str)
        assert support.distance(found, reference(name)) <= 1e-6
    else:
        assert isinstance(found, str)
        assert found.startswith("nn.DataParallel hands out copies without parameters")


def test_every_way_is_tested() -> None:
    tested = {"plain", "functional_call", "torch.compile(model)", "autocast bf16", "vmap", "nn.DataParallel"}
    assert set(ALONE) == tested
    assert set(FOR_TWO) == set(TOGETHER)


def test_under_autocast_y_stays_in_float32() -> None:
    model, x, _, _ = support.problem("Exact")
    with torch.autocast("cpu", torch.bfloat16):
        assert model.init(model.features(x)).dtype == torch.bfloat16
        assert model(x).output.dtype == torch.float32
        assert model.double()(x.double()).output.dtype == torch.float64  # autocast leaves double precision alone


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[torch.distributed.DeviceMesh]:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_a_sharded_energy_predicts_and_is_left_as_it_was(one_process: torch.distributed.DeviceMesh) -> None:
    model, x, _, _ = support.problem("Checkpointed")
    expected = model(x).output.detach()
    fully_shard(model.energy, mesh=one_process)
    hooks = len(model.energy._forward_pre_hooks)
    with torch.no_grad():
        trajectory = model(x)
    assert torch.equal(trajectory.output, expected)
    assert hooks == len(model.energy._forward_pre_hooks) > 0
    assert all(hasattr(p, "device_mesh") for p in model.energy.parameters())
    assert trajectory.energies.shape == (support.STEPS + 1, 6)  # E(y_T) by the hooks of fully_shard
    assert torch.equal(model(x).output.detach(), expected)


@pytest.mark.parametrize("name", ["Exact", "Checkpointed", "FiniteDifference"])
def test_a_sharded_energy_in_a_descent_and_beside_it(one_process: torch.distributed.DeviceMesh, name: str) -> None:
    model, x, target, objective = support.problem(name)

    def gradient() -> Tensor:
        model.zero_grad()
        loss = objective(model, x, target) - model.energy(target, model.features(x)).mean()
        (loss + objective(model, x, target)).backward()
        bar = model.energy.mix.weight.grad  # type: ignore[union-attr]
        return bar.full_tensor() if isinstance(bar, DTensor) else bar.clone()  # type: ignore[union-attr,operator,return-value]

    expected = gradient()
    fully_shard(model.energy, mesh=one_process)
    assert torch.allclose(gradient(), expected, rtol=1e-5, atol=1e-7)
    assert torch.allclose(gradient(), expected, rtol=1e-5, atol=1e-7)


def test_types_of_a_sharded_energy_are_refused(one_process: torch.distributed.DeviceMesh) -> None:
    model, x, _, _ = support.problem("Exact")
    fully_shard(model.energy, mesh=one_process, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"MixedPrecisionPolicy\(param_dtype or output_dtype\).* use torch\.autocast"):
        model(x)


def test_a_tied_weight_of_a_sharded_energy_stays_tied(one_process: torch.distributed.DeviceMesh) -> None:
    model, x, target, objective = support.problem("Checkpointed")
    model.energy.again = nn.Linear(4, 7)  # type: ignore[assignment]
    model.energy.again.weight = model.energy.mix.weight  # type: ignore[union-attr]
    objective(model, x, target).backward()
    expected = model.energy.mix.weight.grad  # type: ignore[union-attr]
    model.zero_grad()
    fully_shard(model.energy, mesh=one_process)
    objective(model, x, target).backward()
    assert torch.allclose(model.energy.mix.weight.grad.full_tensor(), expected)  # type: ignore


def test_a_group_of_modules_is_refused(one_process: torch.distributed.DeviceMesh) -> None:
    model, x, _, _ = support.problem("Exact")
    fully_shard([model.energy.mix, model.energy.weigh], mesh=one_process)  # type: ignore
    with pytest.raises(ValueError, match=r"a list of modules of the energy, .* one module at a time"):
        model(x)
