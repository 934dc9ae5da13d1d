"""Which gradient strategy works with which tool of PyTorch, by value: python -m benchmarks.support

Prints a table in Markdown, for docs/distributed.md. Each cell is the largest difference from ``Exact`` in one process
with the whole batch (under autocast: from ``Exact`` under autocast), over the largest entry of its gradient, or the
sentence of the refusal. ``tests/gradients/test_support.py`` asserts the same cells.
"""

from __future__ import annotations

import copy
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spen import RelativeChange
from spen.domains import Reals
from spen.gradients import (
    Auto,
    Checkpointed,
    Compiled,
    Exact,
    FiniteDifference,
    ForwardOverReverse,
    GradientStrategy,
    Implicit,
    Truncated,
    Written,
)
from spen.model import SPEN
from spen.objectives import EndToEnd, squared_error
from spen.rules import GradientDescent, Momentum
from spen.storage import load_weights, save_weights, write_whole
from spen.testing.strategy import example_model

Gradients = dict[str, Tensor]
Result = Gradients | str  # the sentence of a refusal
WORLD = 2
LIMIT = 300  # seconds for all cases of two processes
STEPS = 3
STRATEGIES: dict[str, GradientStrategy] = {
    "Exact": Exact(),
    "Checkpointed": Checkpointed(),
    "FiniteDifference": FiniteDifference(),
    "ForwardOverReverse": ForwardOverReverse(),
    "Compiled": Compiled(patience=0),
    "Compiled(Checkpointed(), keep=1)": Compiled(Checkpointed(), keep=1.0, patience=0),
    "Written": Written(),
    f"Truncated({STEPS})": Truncated(STEPS),
    "Implicit": Implicit(tolerance=1e-5),
    "Auto": Auto(),
}


def problem(name: str) -> tuple[SPEN, Tensor, Tensor, EndToEnd]:
    """A small model in float32, its batch of six, and an objective that the strategy can serve."""
    strategy = copy.deepcopy(STRATEGIES[name])
    if isinstance(strategy, Implicit):  # a minimum, reached by enough steps
        model, x, target = example_model(Reals(), GradientDescent(400, 1.0), strategy, RelativeChange(1e-5))
        with torch.no_grad():
            model.energy.weigh.weight.mul_(0.1)  # type: ignore[union-attr,operator]
        return model.float(), x.float(), target.float(), EndToEnd(squared_error, weights="last")
    model, x, target = example_model(Reals(), Momentum(STEPS, 0.3, decay=0.25, learn_rates=True), strategy)
    return model.float(), x.float(), target.float(), EndToEnd(squared_error)


def reference(name: str) -> Gradients:
    """``Exact``, in one process with the whole batch."""
    model, x, target, objective = problem(name)
    model.minimizer.gradient = Exact()
    objective(model, x, target).backward()
    return _grads(model)


def plain(name: str) -> Gradients:
    model, x, target, objective = problem(name)
    objective(model, x, target).backward()
    return _grads(model)


def autocast(name: str, gradient: GradientStrategy | None = None) -> Gradients:
    model, x, target, objective = problem(name)
    if gradient is not None:
        model.minimizer.gradient = gradient
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(model, x, target)
    loss.backward()
    return _grads(model)


def compiled_model(name: str) -> Gradients:
    """torch.compile(model), without the generation of machine code, which changes nothing here."""
    model, x, target, objective = problem(name)
    torch._dynamo.reset()
    objective(torch.compile(model, backend="aot_eager"), x, target).backward()
    return _grads(model)


def functional_call(name: str) -> Gradients:
    model, x, target, objective = problem(name)
    weights = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}

    def call(given: Tensor) -> Any:
        return torch.func.functional_call(model, weights, (given,))

    bars = torch.autograd.grad(objective(call, x, target), list(weights.values()), allow_unused=True)  # type: ignore[arg-type]
    return {n: torch.zeros_like(w) if g is None else g for (n, w), g in zip(weights.items(), bars, strict=True)}


def vmap(name: str) -> Gradients:
    """The gradient of each example by torch.func.vmap over torch.func.grad, and their mean."""
    model, x, target, objective = problem(name)
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}

    def loss(given: Gradients, one: Tensor, answer: Tensor) -> Tensor:
        def call(inputs: Tensor) -> Any:
            return torch.func.functional_call(model, given, (inputs,))

        return objective(call, one[None], answer[None])  # type: ignore[arg-type]

    bars = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, target)
    return {n: bar.mean(0) for n, bar in bars.items()}


def data_parallel(name: str) -> Gradients:
    """The copies that nn.DataParallel makes on other GPUs, here on one device."""
    model, x, target, objective = problem(name)
    parts = list(model.modules())
    copies: dict[nn.Module, Any] = {part: part._replicate_for_data_parallel() for part in parts}  # type: ignore[operator]
    for part in parts:
        for child_name, child in part.named_children():
            setattr(copies[part], child_name, copies[child])
        for own, tensor in part._parameters.items():
            setattr(copies[part], own, None if tensor is None else tensor * 1.0)
    objective(copies[model], x, target).backward()
    return _grads(model)


def ddp(model: SPEN) -> nn.Module:
    # The constant of an energy has no gradient: unused parameters are looked for.
    return DistributedDataParallel(model, find_unused_parameters=True)


def static_ddp(model: SPEN) -> nn.Module:
    return DistributedDataParallel(model, static_graph=True)


def sharded(model: SPEN) -> nn.Module:
    """fully_shard on every layer of the energy, the energy, F, Init and the whole."""
    layers = [part for part in model.energy.children() if any(True for _ in part.parameters())]
    return _sharded(*layers, model.energy, model.features, model.init, model)


def sharded_whole(model: SPEN) -> nn.Module:
    """fully_shard on the whole alone, whose weights are freed between the forward and the backward pass."""
    return _sharded(model, reshard_after_forward=True)


def _sharded(*modules: nn.Module, **options: Any) -> nn.Module:
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    for module in modules:
        fully_shard(module, mesh=mesh, **options)
    return modules[-1]


ALONE: dict[str, Callable[[str], Gradients]] = {
    "plain": plain,
    "autocast bf16": autocast,
    "torch.compile(model)": compiled_model,
    "functional_call": functional_call,
    "vmap": vmap,
    "nn.DataParallel": data_parallel,
}
TOGETHER: dict[str, Callable[[SPEN], nn.Module]] = {
    "DDP": ddp,
    "DDP, static_graph": static_ddp,
    "FSDP2": sharded,
    "FSDP2, whole model": sharded_whole,
}


def alone(way: str, name: str) -> Result:
    """The gradients of a strategy in one process, or the first sentence of what it says instead."""
    try:
        return ALONE[way](name)
    except Exception as error:
        return sentence(error)


def together(folder: Path, cases: dict[str, list[str]]) -> dict[tuple[str, str], Result]:
    """The same for two processes that share the batch, for each way its strategies; one start for all cases."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = mp.spawn(_worker, (port, folder, cases), nprocs=WORLD, join=False)
    deadline = time.monotonic() + LIMIT
    while not processes.join(timeout=5):
        if time.monotonic() > deadline:
            for process in processes.processes:
                process.kill()
            raise TimeoutError(f"two processes did not finish in {LIMIT} s")
    found: dict[tuple[str, str], Result] = {}
    for way, names in cases.items():
        for name in names:
            path = _path(folder, way, name)
            text = path.with_suffix(".txt")
            found[way, name] = text.read_text(encoding="utf-8") if text.exists() else load_weights(path)
    return found


def _worker(rank: int, port: int, folder: Path, cases: dict[str, list[str]]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=LIMIT))
    for way, names in cases.items():
        for name in names:
            path = _path(folder, way, name)
            try:
                found = _shared(way, name, rank)
            except Exception as error:
                write_whole(path.with_suffix(".txt"), sentence(error))
                continue
            if rank == 0:
                save_weights(found, path)
    dist.destroy_process_group()


def _shared(way: str, name: str, rank: int) -> Gradients:
    model, x, target, objective = problem(name)
    wrapped = TOGETHER[way](model)
    for _ in range(2):  # what one pass leaves behind must not harm the next
        wrapped.zero_grad()
        objective(wrapped, x.chunk(WORLD)[rank], target.chunk(WORLD)[rank]).backward()  # type: ignore[arg-type]
    return _grads(model)


def _path(folder: Path, way: str, name: str) -> Path:
    return folder / f"{list(TOGETHER).index(way)}-{list(STRATEGIES).index(name)}.safetensors"


def _grads(model: nn.Module) -> Gradients:
    def whole(p: Tensor) -> Tensor:
        bar = torch.zeros_like(p) if p.grad is None else p.grad
        return (bar.full_tensor() if isinstance(bar, DTensor) else bar).detach()

    return {name: whole(p) for name, p in model.named_parameters()}


def distance(found: Gradients, wanted: Gradients) -> float:
    """The largest difference over the largest entry."""
    scale = max(float(g.abs().max()) for g in wanted.values())
    return max(float((found[n] - g).abs().max()) for n, g in wanted.items()) / scale


def sentence(error: Exception) -> str:
    """What a refusal says, on one line."""
    return " ".join(str(error).split())


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names, notes = list(STRATEGIES), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        shared = together(Path(folder), dict.fromkeys(TOGETHER, names))
    ways = [*list(ALONE)[:1], *TOGETHER, *list(ALONE)[1:]]
    print("| | " + " | ".join(ways) + " |\n" + "| --- " * (len(ways) + 1) + "|")
    for name in names:
        cells = []
        for way in ways:
            found = shared[way, name] if way in TOGETHER else alone(way, name)
            if isinstance(found, str):
                note = found.split(". ")[0][:300]
                notes += [note] if note not in notes else []
                cells.append(f"refused ({notes.index(note) + 1})")
            else:
                wanted = autocast(name, Exact()) if way == "autocast bf16" else reference(name)
                cells.append(f"{distance(found, wanted):.0e}")
        print(f"| `{name}` | " + " | ".join(cells) + " |")
        sys.stdout.flush()
    for number, note in enumerate(notes, 1):
        print(f"\n{number}. {note}")


if __name__ == "__main__":
    main()
