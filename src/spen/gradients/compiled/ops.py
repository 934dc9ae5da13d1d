"""The kernels as operations of torch, which a program may hold: each computes the same without Triton, by cuDNN.

    spen::weight_gradient          dW of a convolution between 16, 32 or 64 channels
    spen::narrow_weight_gradient   dW of a convolution from one channel
    spen::narrow_input_gradient    its input gradient
    spen::narrow_forward           the convolution itself

Stride 1, no dilation, one group, odd kernels of 3 to 9 pixels. Layout (channels last or first) is that of the operands.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
CHANNELS = (16, 32, 64)
_TAPS = (3, 5, 7, 9)

# (rows, columns) of the product, pixels a block, warps, stages: what the measurement chooses from.
WIDE = ((64, 256, 32, 8, 3), (128, 256, 32, 8, 3), (64, 128, 32, 4, 4), (128, 128, 32, 4, 3), (32, 256, 32, 4, 4))
WIDE_BF16 = ((64, 256, 64, 8, 3), (128, 256, 64, 8, 3), (64, 128, 64, 4, 4), (128, 128, 64, 4, 4), (128, 256, 32, 8, 4))
# pixels a block, warps, stages
NARROW_WEIGHT = ((64, 4, 3), (128, 4, 2), (32, 2, 4))
# rows of the image a program, warps, stages
NARROW_INPUT = ((8, 4, 2), (4, 4, 2), (8, 8, 2))
# pixels a block, warps
NARROW_FORWARD = ((128, 4), (64, 4), (128, 8))


@functools.cache
def kernels() -> Any:
    """The module of Triton kernels, or None where Triton cannot be imported."""
    from spen.gradients.compiled import kernels as module  # imports Triton, which takes its time

    return module if module.AVAILABLE else None


def usable(tensor: Tensor) -> bool:
    """Whether kernels can run on such a tensor now: on a GPU with Triton, float32 only where TF32 is allowed."""
    module = kernels()
    if module is None:
        return False
    if module.INTERPRETED:
        return tensor.device.type == "cpu"
    allowed = tensor.dtype is not torch.float32 or torch.backends.cudnn.allow_tf32
    return tensor.is_cuda and torch.version.hip is None and allowed


def proved(outputs: int, inputs: int, kernel: Sequence[int], padding: Sequence[int], elements: int) -> bool:
    """Whether the kernels are tested for a convolution like this: ``elements`` is the size of the larger operand."""
    channels = outputs in CHANNELS and (inputs == 1 or inputs in CHANNELS)
    within = all(k in _TAPS and 0 <= p < k for k, p in zip(kernel, padding, strict=True))
    return channels and within and elements < 2**30


def configurations(outputs: int, inputs: int, kernel: Sequence[int], dtype: torch.dtype) -> list[list[int]]:
    """Kernel rows and columns a product, pixels a block, warps, stages, for the weight gradient of this shape."""
    found = []
    for rows, columns, block, warps, stages in WIDE if dtype is torch.float32 else WIDE_BF16:
        high, across = min(rows // outputs, _power(kernel[0])), min(columns // inputs, _power(kernel[1]))
        config = [high, across, block, warps, stages]
        if min(high, across) >= 1 and config not in found:
            found.append(config)
    return found


def _layout(*tensors: Tensor) -> bool | None:
    """True: channels last; False: channels first; None: not the same, or neither."""
    if all(t.is_contiguous() for t in tensors):
        return False
    if all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors):
        return True
    return None


def _format(last: bool) -> torch.memory_format:
    return torch.channels_last if last else torch.contiguous_format


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _shares(device: torch.device, groups: int, total: int, each: int) -> tuple[int, int]:
    """(programs, blocks a program): about ``each`` programs of all groups together for every multiprocessor."""
    splits = max(1, min(total, each * _processors(device) // groups))
    per = -(-total // splits)
    return -(-total // per), per


def _reduced(module: Any, partial: Tensor, shape: Sequence[int], taps: int) -> Tensor:
    result = torch.empty(shape, device=partial.device, dtype=torch.float32)
    size, (o, i, kh, kw) = result.numel(), shape
    grid = (-(-size // 128),)
    module.reduce_partial[grid](
        partial, result, partial.shape[0], partial[0].numel(), size, o, i, kh, kw, taps, BLOCK=128, SPLITS=8
    )
    return result


@torch.library.custom_op(
    "spen::weight_gradient",
    mutates_args=(),
    schema="(Tensor cotangent, Tensor image, int[] kernel, int[] padding, int[] config) -> Tensor",
)
def weight_gradient(
    cotangent: Tensor,  # (B, O, H, W)
    image: Tensor,  # (B, I, HI, WI)
    kernel: list[int],
    padding: list[int],
    config: list[int],
) -> Tensor:  # (O, I, KH, KW), float32
    """dW[o, i, kh, kw] = Σ_{b,h,w} δ[o, h, w] a[i, h + kh − ph, w + kw − pw]."""
    last = _layout(cotangent, image)
    module = kernels()
    if last is None or not usable(cotangent):
        return _plain_weight_gradient(cotangent, image, kernel, padding)
    rows, columns, block, warps, stages = config
    (batch, o, h, w), (_, i, hi, wi) = cotangent.shape, image.shape
    kh, kw = kernel
    groups = -(-kh // rows) * -(-kw // columns)
    wide = -(-w // block)
    total = batch * (h + rows - 1) * wide
    # Large tiles leave room for one program on a multiprocessor, small ones for two or more.
    splits, per = _shares(cotangent.device, groups, total, 1 if rows * o * columns * i >= 2**15 else 2)
    partial = torch.empty((splits, kh, o, kw, i), device=image.device, dtype=torch.float32)
    module.weight_partial[(groups, splits)](
        cotangent, image, partial, h, w, hi, wi, *padding, per, wide, total,
        o, i, kh, kw, rows, columns, block, last, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return _reduced(module, partial, (o, i, kh, kw), 0)


@torch.library.custom_op(
    "spen::narrow_weight_gradient",
    mutates_args=(),
    schema="(Tensor cotangent, Tensor image, int[] kernel, int[] padding, int[] config) -> Tensor",
)
def narrow_weight_gradient(
    cotangent: Tensor,  # (B, C, H, W)
    image: Tensor,  # (B, 1, HI, WI)
    kernel: list[int],
    padding: list[int],
    config: list[int],
) -> Tensor:  # (C, 1, KH, KW), float32
    """The same for an image of one channel."""
    last = _layout(cotangent)
    module = kernels()
    if last is None or not image.is_contiguous() or not usable(cotangent):
        return _plain_weight_gradient(cotangent, image, kernel, padding)
    block, warps, stages = config
    (batch, c, h, w), (_, _, hi, wi) = cotangent.shape, image.shape
    taps, wide = max(16, _power(kernel[0] * kernel[1])), -(-w // block)
    splits, per = _shares(cotangent.device, 1, batch * h * wide, 4)
    partial = torch.empty((splits, c, taps), device=image.device, dtype=torch.float32)
    module.narrow_weight_partial[(splits,)](
        cotangent, image, partial, h, w, hi, wi, *padding, per, wide, batch * h * wide,
        c, *kernel, taps, block, last, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return _reduced(module, partial, (c, 1, *kernel), taps)


@torch.library.custom_op(
    "spen::narrow_input_gradient",
    mutates_args=(),
    schema="(Tensor cotangent, Tensor weight, int[] padding, int[] config) -> Tensor",
)
def narrow_input_gradient(
    cotangent: Tensor,  # (B, C, H, W)
    weight: Tensor,  # (C, 1, KH, KW)
    padding: list[int],
    config: list[int],
) -> Tensor:  # (B, 1, HI, WI)
    """∂a[y, x] = Σ_{c,kh,kw} δ[c, y − kh + ph, x − kw + pw] W[c, kh, kw]."""
    last = _layout(cotangent)
    module = kernels()
    if last is None or not weight.is_contiguous() or not usable(cotangent):
        return aten.convolution(cotangent, weight, None, [1, 1], padding, [1, 1], True, [0, 0], 1).contiguous()
    rows, warps, stages = config
    batch, c, h, w = cotangent.shape
    kh, kw = weight.shape[2:]
    hi, wi = h + kh - 1 - 2 * padding[0], w + kw - 1 - 2 * padding[1]
    result = cotangent.new_empty((batch, 1, hi, wi))
    whole = max(w, wi) <= 256
    block = max(16, _power(max(w, wi))) if whole else 128
    step = block if whole else block - kw + 1
    module.narrow_input_gradient[(-(-hi // rows), -(-wi // step), batch)](
        cotangent, weight, result, h, w, hi, wi, *padding, step,
        c, kh, kw, rows, _power(kw), block, whole, last, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return result


@torch.library.custom_op(
    "spen::narrow_forward",
    mutates_args=(),
    schema="(Tensor image, Tensor weight, int[] padding, bool last, int[] config) -> Tensor",
)
def narrow_forward(
    image: Tensor,  # (B, 1, HI, WI)
    weight: Tensor,  # (C, 1, KH, KW)
    padding: list[int],
    last: bool,
    config: list[int],
) -> Tensor:  # (B, C, H, W), channels last if ``last``
    """z[c, h, w] = Σ_{kh,kw} a[h + kh − ph, w + kw − pw] W[c, kh, kw]."""
    module = kernels()
    if not image.is_contiguous() or not weight.is_contiguous() or not usable(image):
        plain = aten.convolution(image, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1)
        return plain.contiguous(memory_format=_format(last))
    block, warps = config
    result = _narrow_result(image, weight, padding, last)
    batch, c, h, w = result.shape
    kh, kw = weight.shape[2:]
    module.narrow_forward[(-(-w // block), h, batch)](
        image, weight, result, h, w, *image.shape[2:], *padding,
        c, kh, kw, max(16, _power(kh * kw)), block, last, num_warps=warps,
    )  # fmt: skip
    return result


def _narrow_result(image: Tensor, weight: Tensor, padding: Sequence[int], last: bool) -> Tensor:
    h, w = (n + 2 * p - k + 1 for n, p, k in zip(image.shape[2:], padding, weight.shape[2:], strict=True))
    shape = (image.shape[0], weight.shape[0], h, w)
    return torch.empty(shape, device=image.device, dtype=image.dtype, memory_format=_format(last))


def _plain_weight_gradient(cotangent: Tensor, image: Tensor, kernel: Sequence[int], padding: Sequence[int]) -> Tensor:
    weight = image.new_empty((cotangent.shape[1], image.shape[1], *kernel))  # its values are never read
    geometry = ([1, 1], padding, [1, 1], False, [0, 0], 1, [False, True, False])
    return aten.convolution_backward(cotangent, image, weight, None, *geometry)[1].float().contiguous()


def _fake_weight_gradient(
    cotangent: Tensor, image: Tensor, kernel: list[int], padding: list[int], config: list[int]
) -> Tensor:
    shape = (cotangent.shape[1], image.shape[1], *kernel)
    return torch.empty(shape, device=image.device, dtype=torch.float32)


weight_gradient.register_fake(_fake_weight_gradient)
narrow_weight_gradient.register_fake(_fake_weight_gradient)


@narrow_input_gradient.register_fake
def _(cotangent: Tensor, weight: Tensor, padding: list[int], config: list[int]) -> Tensor:
    h, w = (n + k - 1 - 2 * p for n, p, k in zip(cotangent.shape[2:], padding, weight.shape[2:], strict=True))
    return torch.empty((cotangent.shape[0], 1, h, w), device=cotangent.device, dtype=cotangent.dtype)


@narrow_forward.register_fake
def _(image: Tensor, weight: Tensor, padding: list[int], last: bool, config: list[int]) -> Tensor:
    return _narrow_result(image, weight, padding, last)
