"""The fastest implementation of a product on this GPU: measured once for each shape, checked by value, cached.

The times are stored beside torch.compile's own cache: the next process on this machine need not measure, and one on a
busy GPU does not measure under its load.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spen.gradients.compiled import ops
from spen.gradients.compiled.convolutions import WEIGHT, Convolution, Implementation
from spen.storage import write_whole

Times = dict[str, float]
_AGREES = 2e-2  # relative to cuDNN: TF32 and bfloat16 stay far below, a wrong kernel does not
_known: dict[str, Times] = {}


def times(
    product: Convolution,
    found: dict[str, Implementation],
    device: torch.device,
    layout: torch.memory_format,
    precision: torch.dtype | None,
) -> Times:
    """Seconds of each implementation that works and agrees with the first, on random operands of these shapes."""
    key = _key(product, found, device, layout, precision)
    if not _is_known(key, found):
        _known[key] = _measured(product, found, device)
        _store(key, _known[key])
    return _known[key]


def compile_kernels(
    wanted: Sequence[tuple[Convolution, dict[str, Implementation], torch.memory_format]],
    device: torch.device,
    precision: torch.dtype | None,
) -> None:
    """Compile the kernels that ``times`` is going to measure, all at once.

    Triton compiles a kernel when it is first called, for about a second, most of it without holding Python's lock.
    Only types and strides decide what is compiled, so that one example is enough.
    """
    calls = []
    for product, found, layout in wanted:
        if _is_known(_key(product, found, device, layout, precision), found):
            continue
        one = replace(product, first=(1, *product.first[1:]))
        if product.kind == WEIGHT:
            one = replace(one, second=(1, *product.second[1:]))
        first, second = (torch.zeros(shape, device=device) for shape in (one.first, one.second))
        own = [made for name, made in found.items() if name.startswith("triton")]
        calls += [(made.core, made.first(first), made.second(second)) for made in own]
    if not calls:
        return

    def call(core: Callable[[Tensor, Tensor], Tensor], first: Tensor, second: Tensor) -> None:
        with suppress(Exception), torch.cuda.device(device):  # ``times`` reports what is wrong
            core(first, second)

    with ThreadPoolExecutor(min(len(calls), os.cpu_count() or 1)) as pool:
        list(pool.map(call, *zip(*calls, strict=True)))


def _is_known(key: str, found: dict[str, Implementation]) -> bool:
    """Whether this process or another has measured it."""
    if key not in _known:
        stored = _stored().get(key)
        if not _fits(stored, found):
            return False
        _known[key] = stored
    return True


# ── from one process to the next ──


def _file() -> Path:
    from torch._inductor.runtime.runtime_utils import cache_dir

    return Path(cache_dir()) / "spen-products.json"


def _key(
    product: Convolution,
    found: dict[str, Implementation],
    device: torch.device,
    layout: torch.memory_format,
    precision: torch.dtype | None,
) -> str:
    """The product, its implementations and all else that its times depend on, as a text."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    module = ops.kernels()
    versions = [torch.__version__, torch.backends.cudnn.version(), module and module.triton.__version__]
    settings = [torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark]
    return " | ".join(map(str, [name, *versions, *settings, layout, precision, product, " ".join(found)]))


def _stored() -> Any:
    try:
        found = json.loads(_file().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _fits(stored: Any, found: dict[str, Implementation]) -> bool:
    """Whether it holds the times of some of these implementations, the first among them."""
    if not isinstance(stored, dict) or next(iter(found)) not in stored or not stored.keys() <= found.keys():
        return False
    return all(isinstance(s, float) and math.isfinite(s) and s > 0 for s in stored.values())


def _store(key: str, times: Times) -> None:
    with suppress(OSError):  # without a file the next process measures again
        write_whole(_file(), json.dumps({**_stored(), key: times}, indent=1))


# ── measuring ──


def _measured(product: Convolution, found: dict[str, Implementation], device: torch.device) -> Times:
    generator = torch.Generator(device).manual_seed(0)
    first, second = (torch.randn(s, device=device, generator=generator) for s in (product.first, product.second))
    seconds: Times = {}
    plain: Tensor | None = None
    for name, made in found.items():
        try:
            a, b = made.first(first), made.second(second)
            result = made.core(a, b).float()
            if plain is None:
                plain = result
            elif not float((result - plain).norm()) <= _AGREES * float(plain.norm()):
                warnings.warn(f"{name} disagrees with cuDNN on {product}; it is not used", stacklevel=2)
                continue
            seconds[name] = seconds_of(lambda core=made.core, a=a, b=b: core(a, b), device)  # type: ignore[misc]
        except Exception as error:  # a kernel that does not compile or fit here is no candidate
            if plain is None:
                raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"{name} cannot run {product}: {reason[:200]}", stacklevel=2)
    return seconds


def seconds_of(call: Callable[[], object], device: torch.device, repeats: int = 7, block: int = 4) -> float:
    """The median of single calls on a GPU, replayed from a graph: launching them from Python is not what it costs."""
    with torch.cuda.device(device):
        for _ in range(3):  # compiled and chosen before the capture, which a search would break
            call()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(block):
                call()
        spans = []
        graph.replay()
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            spans.append((begin, end))
        torch.cuda.synchronize(device)
    return statistics.median(begin.elapsed_time(end) / 1000 / block for begin, end in spans)
