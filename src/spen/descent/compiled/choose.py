"""The fastest way to compute a product on this GPU: measured once for each shape, checked by value, remembered."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from spen.descent.compiled.convolutions import Convolution, Way

Times = dict[str, float]
_AGREES = 2e-2  # relative to the plain way: TF32 and bfloat16 stay far below, a wrong kernel does not
_known: dict[object, Times] = {}


def times(
    product: Convolution,
    found: dict[str, Way],
    device: torch.device,
    layout: torch.memory_format,
    precision: torch.dtype | None,
) -> Times:
    """Seconds of each way that works and agrees with the first, on random operands of the product's shapes."""
    tf32 = torch.backends.cudnn.allow_tf32
    key = (product, tuple(found), device, layout, precision, tf32, torch.backends.cudnn.benchmark)
    if key not in _known:
        _known[key] = _measured(product, found, device)
    return _known[key]


def _measured(product: Convolution, found: dict[str, Way], device: torch.device) -> Times:
    generator = torch.Generator(device).manual_seed(0)
    first, second = (torch.randn(s, device=device, generator=generator) for s in (product.first, product.second))
    seconds: Times = {}
    plain: Tensor | None = None
    for name, way in found.items():
        try:
            a, b = way.first(first), way.second(second)
            result = way.core(a, b).float()
            if plain is None:
                plain = result
            elif not float((result - plain).norm()) <= _AGREES * float(plain.norm()):
                warnings.warn(f"{name} disagrees with cuDNN on {product}; it is not used", stacklevel=2)
                continue
            seconds[name] = seconds_of(lambda way=way, a=a, b=b: way.core(a, b), device)  # type: ignore[misc]
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
