"""How fast the hardware is, measured, and how little work a training step could get by with, counted.

    floor = max(operations / rate of a big product, bytes / bandwidth of a copy)

A *product* is one pass of the network's linear maps: forward, with respect to the input, or with respect to the
weights; all three cost the same operations. Per step of the descent, ∇E takes 2 (forward, input). Its backward pass
takes 4 more: ∇E is bilinear in (weights, activations) at two places, each with two factors. A method that stores the
iterates alone has to make the forward and the input product of ∇E again: 8 instead of 6. The floor is that of 6 direct
products (FFT and Winograd would need fewer operations); *kernels* is the time of the 8, each measured alone on this
machine at the problem's own shapes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

STORED, REPLAYED = 6, 8
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


class Work(ABC):
    """What a training step has to do at least."""

    @abstractmethod
    def operations(self, products: int = STORED) -> float:
        """Multiplications and additions, each counted as one."""

    @abstractmethod
    def traffic(self, itemsize: int, products: int = STORED) -> float:
        """Bytes between memory and the processor: every product reads its operands and writes its result once."""

    def kernels(self, device: torch.device, precision: str) -> float | None:
        """Seconds of the replayed products as single kernels, where they can be measured alone."""
        return None


@dataclass(frozen=True)
class Convolutions(Work):
    """The DeepPrior: size×size from 1 to c channels, size×size from c to c, 1×1 from c to 1, at every pixel."""

    batch: int
    height: int
    width: int
    channels: int
    size: int
    steps: int

    @property
    def pixels(self) -> int:
        return self.batch * self.height * self.width

    def operations(self, products: int = STORED) -> float:
        c, area = self.channels, self.size**2
        return products * self.steps * 2.0 * self.pixels * (area * c + area * c * c + c)

    def traffic(self, itemsize: int, products: int = STORED) -> float:
        c = self.channels
        return products * self.steps * float(itemsize) * self.pixels * ((1 + c) + (c + c) + (c + 1))

    def kernels(self, device: torch.device, precision: str) -> float | None:
        total = 0.0
        for inputs in (1, self.channels):
            forward, of_input, of_weight = self._times(inputs, device, precision)
            total += 3 * forward + 3 * of_input + 2 * of_weight
        return self.steps * total

    def _times(self, inputs: int, device: torch.device, precision: str) -> tuple[float, float, float]:
        """Seconds of the three products of one convolution, the better of both memory layouts for each."""
        dtype, pad = _DTYPES[precision], self.size // 2
        best = [float("inf")] * 3
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(self.batch, inputs, self.height, self.width, device=device, dtype=dtype)
            w = torch.randn(self.channels, inputs, self.size, self.size, device=device, dtype=dtype)
            x, w = x.contiguous(memory_format=layout), w.contiguous(memory_format=layout)
            out = torch.nn.functional.conv2d(x, w, padding=pad)

            def backward(
                mask: list[bool], x: Tensor = x, w: Tensor = w, out: Tensor = out
            ) -> tuple[Tensor | None, ...]:
                sizes = ([1, 1], [pad, pad], [1, 1], False, [0, 0], 1)
                return torch.ops.aten.convolution_backward(out, x, w, None, *sizes, mask)

            calls: list[Callable[[], object]] = [
                lambda x=x, w=w: torch.nn.functional.conv2d(x, w, padding=pad),  # type: ignore[misc]
                lambda backward=backward: backward([True, False, False]),  # type: ignore[misc]
                lambda backward=backward: backward([False, True, False]),  # type: ignore[misc]
            ]
            with precise(precision):
                best = [min(b, seconds_of(call, device)) for b, call in zip(best, calls, strict=True)]
        return best[0], best[1], best[2]


@dataclass(frozen=True)
class Attention(Work):
    """A transformer: per layer four width×width maps, two to 4·width, and scores and mixtures over all positions."""

    batch: int
    positions: int
    width: int
    layers: int
    steps: int

    def operations(self, products: int = STORED) -> float:
        tokens = self.batch * self.positions
        maps = 2.0 * tokens * 12 * self.width**2
        mixing = 2.0 * tokens * 2 * self.positions * self.width
        # Both factors of a mixture depend on y, so ∇E takes 3 of its products, not 2, and the rest likewise.
        return self.steps * self.layers * products * (maps + 1.5 * mixing)

    def traffic(self, itemsize: int, products: int = STORED) -> float:
        per_layer = 12 * self.width**2 + self.batch * self.positions * self.width * 22
        return float(products * self.steps * self.layers * itemsize * per_layer)


@dataclass(frozen=True)
class Ceilings:
    """Measured on this machine in this run."""

    rates: dict[str, float]  # operations a second, by precision
    bandwidth: float  # bytes a second, read and written counted both

    def floor(self, work: Work, precision: str) -> float:
        """Seconds of the stored products at the measured rates, were there nothing else to do."""
        rate = self.rates.get(precision)
        if rate is None:
            raise ValueError(f"no rate was measured in {precision}; there are {', '.join(self.rates)}")
        itemsize = _DTYPES[precision].itemsize
        return max(work.operations() / rate, work.traffic(itemsize) / self.bandwidth)


def measure_ceilings(device: torch.device, *, matrix: int | None = None, copied: int | None = None) -> Ceilings:
    """The faster of a square matrix product and a wide convolution, per precision, and a copy.

    ``matrix`` is the side of the matrix and ``copied`` the number of floats; large ones if not given.
    """
    cuda = device.type == "cuda"
    side, count = matrix or (8192 if cuda else 1024), copied or (2**28 if cuda else 2**26)
    rates = {}
    for precision in ("tf32", "bf16", "float32") if cuda else ("float32",):
        try:
            rates[precision] = max(_matmul_rate(device, precision, side), _conv_rate(device, precision))
        except RuntimeError:
            continue
    source = torch.zeros(count, device=device)
    target = torch.empty_like(source)
    seconds = seconds_of(lambda: target.copy_(source), device)
    return Ceilings(rates, 2 * source.numel() * source.element_size() / seconds)


def _matmul_rate(device: torch.device, precision: str, n: int) -> float:
    a, b = (torch.randn(n, n, device=device, dtype=_DTYPES[precision]) for _ in range(2))
    with precise(precision):
        return 2.0 * n**3 / seconds_of(lambda: a @ b, device)


def _conv_rate(device: torch.device, precision: str) -> float:
    batch, channels, side = (32, 256, 64) if device.type == "cuda" else (2, 64, 32)
    dtype, layout = _DTYPES[precision], torch.channels_last
    x = torch.randn(batch, channels, side, side, device=device, dtype=dtype).contiguous(memory_format=layout)
    w = torch.randn(channels, channels, 3, 3, device=device, dtype=dtype).contiguous(memory_format=layout)
    with precise(precision):
        seconds = seconds_of(lambda: torch.nn.functional.conv2d(x, w, padding=1), device)
    return 2.0 * batch * side**2 * channels**2 * 9 / seconds


def seconds_of(call: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """The best of several timings of a block of calls: a ceiling is what the machine can do, not what it did once."""
    call()
    wait(device)
    began = time.perf_counter()
    call()
    wait(device)
    block = max(1, min(100, int(0.005 / max(time.perf_counter() - began, 1e-7))))
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(block):
            call()
        wait(device)
        best = min(best, (time.perf_counter() - began) / block)
    return best


@contextmanager
def precise(precision: str) -> Iterator[None]:
    """Single precision products as TF32, or strictly in float32; the caller's setting comes back."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    strict = precision in ("float32", "float64")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not strict
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def wait(device: torch.device) -> None:
    """Until everything that was enqueued is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
