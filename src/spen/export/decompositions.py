"""Derivatives of layers, written with operations that ONNX has.

dE/dy is part of the exported graph, so the graph holds the backward operations of the energy's layers. Torch decomposes
most of them. Below are those that it does not decompose, or decomposes into gathers of single numbers, which take
longer than the convolutions. Each is the derivative in the input only: weights are constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Operation → how to write it with simpler ones, for ``ExportedProgram.run_decompositions``."""
    return {**get_decompositions(_OF_TORCH), **_OWN}


_OF_TORCH = [
    aten.elu_backward,
    aten.gelu_backward,
    aten.hardtanh_backward,
    aten.leaky_relu_backward,
    aten.log_sigmoid_backward,
    aten.native_group_norm_backward,
    aten.native_layer_norm_backward,
    aten.sigmoid_backward,
    aten.silu_backward,
    aten.tanh_backward,
    aten.threshold_backward,
    aten.unfold_backward,
    aten._log_softmax_backward_data,
    aten._softmax_backward_data,
]


def _filled_like(value: float) -> Callable[..., Tensor]:
    # Autograd starts from ones_like(E). A plain fill does not need E, so its last layers become dead code.
    def like(of: Tensor, **options: Any) -> Tensor:
        dtype, device = options.get("dtype") or of.dtype, options.get("device") or of.device
        return aten.full.default(list(of.shape), value, dtype=dtype, device=device)

    return like


def _softplus(gradient: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    """d/dx log(1 + e^{βx})/β = σ(βx); above the threshold σ rounds to 1."""
    return gradient * torch.sigmoid(beta * x)


def _convolution(
    gradient: Tensor,  # (B, out, …)
    inputs: Tensor,  # (B, in, …)
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Gradients:
    """The derivative of a convolution in its input is the transposed convolution, and vice versa."""
    if any(wanted[1:]):
        return NotImplemented
    axes = range(2, gradient.dim())
    none = [0] * len(axes)
    if transposed:
        return aten.convolution(gradient, weight, None, stride, padding, dilation, False, none, groups), None, None
    margins = [d * (weight.shape[axis] - 1) - p for axis, p, d in zip(axes, padding, dilation, strict=True)]
    if groups == 1 and all(s == 1 for s in stride) and min(margins) >= 0:
        # With stride 1 it is a plain convolution by the flipped kernels, which runs faster.
        flipped = weight.transpose(0, 1).flip(*axes)
        return aten.convolution(gradient, flipped, None, stride, margins, dilation, False, none, 1), None, None
    full = aten.convolution(gradient, weight, None, stride, none, dilation, True, none, groups)
    # Pixels at the end of the input that no stride reaches have no gradient.
    unread = [size for s in reversed(stride) for size in (0, s - 1)]
    full = aten.constant_pad_nd(full, unread) if any(unread) else full
    for axis, p in zip(axes, padding, strict=True):
        full = full.narrow(axis, p, inputs.shape[axis])
    return full, None, None


def _reflection(gradient: Tensor, inputs: Tensor, padding: Sequence[int]) -> Tensor:
    """Margins are added to the pixels they mirror: pixel k to the left of the edge is pixel k to its right."""
    return _unpadded(gradient, inputs, padding, _mirrored)


def _replication(gradient: Tensor, inputs: Tensor, padding: Sequence[int]) -> Tensor:
    """Margins are summed into the edge they repeat."""
    return _unpadded(gradient, inputs, padding, _repeated)


def _unpadded(
    gradient: Tensor,
    inputs: Tensor,
    padding: Sequence[int],  # (left, right, top, bottom, …), the last axis first
    fold: Callable[[Tensor, int, int, int, int], Tensor],
) -> Tensor:
    for place in range(len(padding) // 2):
        axis = gradient.dim() - 1 - place
        before, after = padding[2 * place], padding[2 * place + 1]
        if not statically_known_true(before + after == 0):  # a margin that depends on the size may be 0 in the example
            gradient = fold(gradient, axis, inputs.shape[axis], before, after)
    return gradient


def _mirrored(padded: Tensor, axis: int, size: int, before: int, after: int) -> Tensor:
    core = padded.narrow(axis, before, size)
    low = padded.narrow(axis, 0, before).flip(axis)
    high = padded.narrow(axis, before + size, after).flip(axis)
    if not statically_known_true(size >= before + after + 2):  # the mirrored parts may overlap
        return core + _placed(low, axis, 1, size - 1 - before) + _placed(high, axis, size - 1 - after, 1)
    parts = [
        core.narrow(axis, 0, 1),
        core.narrow(axis, 1, before) + low,
        core.narrow(axis, 1 + before, size - 2 - before - after),
        core.narrow(axis, size - 1 - after, after) + high,
        core.narrow(axis, size - 1, 1),
    ]
    return torch.cat(parts, axis)


def _repeated(padded: Tensor, axis: int, size: int, before: int, after: int) -> Tensor:
    core = padded.narrow(axis, before, size)
    low = padded.narrow(axis, 0, before).sum(axis, keepdim=True)
    high = padded.narrow(axis, before + size, after).sum(axis, keepdim=True)
    return core + _placed(low, axis, 0, size - 1) + _placed(high, axis, size - 1, 0)


def _slice(gradient: Tensor, sizes: Sequence[int], axis: int, start: int, end: int, step: int) -> Tensor:
    """Zero outside of the slice."""
    if step != 1:
        return NotImplemented
    axis = axis % len(sizes)
    size, kept = sizes[axis], gradient.shape[axis]
    if statically_known_true(size == kept):
        return gradient
    begin = start if start >= 0 else size + start
    return _placed(gradient, axis, begin, size - begin - kept)


def _select(gradient: Tensor, sizes: Sequence[int], axis: int, index: int) -> Tensor:
    axis = axis % len(sizes)
    begin = index if index >= 0 else sizes[axis] + index
    return _placed(gradient.unsqueeze(axis), axis, begin, sizes[axis] - begin - 1)


def _placed(part: Tensor, axis: int, before: int, after: int) -> Tensor:
    """The part among zeros."""
    around: list[Any] = [0, 0] * (part.dim() - 1 - axis) + [before, after]
    return aten.constant_pad_nd(part, around)


def _average_pool(
    gradient: Tensor,
    inputs: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """An average is a convolution with one kernel for every channel, so its derivative is a transposed one."""
    if ceil_mode or (any(padding) and not count_include_pad):
        return NotImplemented
    axes = len(kernel)
    channels = inputs.shape[-axes - 1]
    count = math.prod(kernel) if divisor_override is None else divisor_override
    weight = torch.full((channels, 1, *kernel), 1 / count, dtype=gradient.dtype, device=gradient.device)
    step = list(stride) or list(kernel)
    ones, zeros = [1] * axes, [0] * axes
    arguments = (None, step, list(padding), ones, False, zeros, channels, (True, False, False))
    found = _convolution(gradient, inputs, weight, *arguments)[0]
    return NotImplemented if found is None else found


_OWN: dict[Any, Callable[..., Any]] = {
    aten.ones_like.default: _filled_like(1),
    aten.zeros_like.default: _filled_like(0),
    aten.convolution_backward.default: _convolution,
    aten.avg_pool2d_backward.default: _average_pool,
    aten.softplus_backward.default: _softplus,
    aten.slice_backward.default: _slice,
    aten.select_backward.default: _select,
    **{getattr(aten, f"reflection_pad{n}d_backward").default: _reflection for n in (1, 2, 3)},
    **{getattr(aten, f"replication_pad{n}d_backward").default: _replication for n in (1, 2, 3)},
}
