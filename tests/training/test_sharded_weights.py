"""Weights go from a run folder into a sharded model of two processes and back, and training goes on with either."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from benchmarks import support
from spen.storage import load_weights, save_weights


def updated(model: nn.Module, updates: int, rank: int = 0, world: int = 1) -> None:
    """Some steps of SGD, each process with its share of the batch."""
    _, x, target, objective = support.problem("Checkpointed")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(updates):
        optimizer.zero_grad()
        objective(model, x.chunk(world)[rank], target.chunk(world)[rank]).backward()  # type: ignore[arg-type]
        optimizer.step()


def in_two(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    model = support.problem("Checkpointed")[0]
    support.sharded(model)
    begun = load_weights(folder / "begun.safetensors") if rank == 0 else {}
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    set_model_state_dict(model, begun, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    updated(model, 2, rank, 2)
    weights = get_model_state_dict(model, options=whole)  # every process takes part
    if rank == 0:
        save_weights(weights, folder / "model.safetensors")
    dist.barrier()  # rank 0 still writes
    dist.destroy_process_group()
    os._exit(0)  # without the interpreter's shutdown, in which a thread of gloo now and then aborts the process


def test_two_processes_go_on_with_the_weights_of_one_and_the_other_way_round(tmp_path: Path) -> None:
    model = support.problem("Checkpointed")[0]
    updated(model, 1)
    save_weights(model.state_dict(), tmp_path / "begun.safetensors")
    mp.spawn(in_two, (tmp_path,), nprocs=2)
    fresh = support.problem("Checkpointed")[0]
    fresh.load_state_dict(load_weights(tmp_path / "model.safetensors"))
    updated(fresh, 1)
    updated(model, 3)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(fresh.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=name)
    untrained = support.problem("Checkpointed")[0].energy.mix.weight  # type: ignore[union-attr]
    assert not torch.allclose(untrained, fresh.energy.mix.weight)  # type: ignore[union-attr,arg-type]
