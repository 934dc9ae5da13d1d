"""The three products of a convolution, and the implementations of each: cuDNN's kernels, one for another, ours.

With stride 1 the convolution by W is the input gradient of the convolution by Wᵀ turned by 180°, padded by k − 1 − p in
place of p; and the reverse. Both are exact; which of cuDNN's kernels is faster depends on shape and type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spen.gradients.compiled import ops

aten = torch.ops.aten
FORWARD, INPUT, WEIGHT = "forward", "input", "weight"  # z(a, W), ∂a(δ, W), dW(δ, a)
WIDE = 16  # narrower contractions gain nothing from the matrix units and lose digits
Unary = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Convolution:
    """One product of a convolution of stride 1 and one group: what is computed, from operands of which shapes."""

    kind: str
    first: tuple[int, ...]  # a (forward) or δ
    second: tuple[int, ...]  # W (forward, input) or a
    kernel: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def channels(self) -> tuple[int, int]:
        """(out, in)."""
        return (self.first[1], self.second[1]) if self.kind == WEIGHT else (self.second[0], self.second[1])

    @property
    def wide(self) -> bool:
        return min(self.channels) >= WIDE

    @property
    def narrow(self) -> bool:
        """From one channel to many."""
        return self.channels[1] == 1 and self.channels[0] >= WIDE

    @property
    def turned_padding(self) -> list[int]:
        return [d * (k - 1) - p for d, k, p in zip(self.dilation, self.kernel, self.padding, strict=True)]

    @property
    def proved(self) -> bool:
        """Whether our own kernels may compute it."""
        largest = max(torch.Size(self.first).numel(), torch.Size(self.second).numel())
        return self.dilation == (1, 1) and ops.proved(*self.channels, self.kernel, self.padding, largest)


@dataclass(frozen=True)
class Implementation:
    """How to compute a product: how the operands are prepared, which fuses with what computes them, and the call."""

    first: Unary
    second: Unary
    core: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        result = self.core(self.first(first), self.second(second))
        return result if result.dtype is torch.float32 else aten._to_copy(result, dtype=torch.float32)


def implementations(
    product: Convolution, layout: torch.memory_format, precision: torch.dtype | None, *, turned: bool, kernels: bool
) -> dict[str, Implementation]:
    """Every implementation by name, cuDNN's own first. ``precision`` is the type of the operands of wide ones."""
    rounded = precision if product.wide else None

    def prepared(tensor: Tensor) -> Tensor:
        if rounded is None:
            return aten.clone(tensor, memory_format=layout)
        return aten._to_copy(tensor, dtype=rounded, memory_format=layout)

    def half_turn(weight: Tensor) -> Tensor:
        return prepared(aten.flip(weight, [2, 3]).transpose(0, 1))

    p, other, d = list(product.padding), product.turned_padding, list(product.dilation)
    found: dict[str, Implementation] = {}
    if product.kind == WEIGHT:
        found["cudnn"] = Implementation(prepared, prepared, _weight_gradient(product))
    else:
        backwards = product.kind == INPUT
        found["cudnn"] = Implementation(prepared, prepared, _convolution(p, d, transposed=backwards))
        if turned and min(other) >= 0:
            found["turned"] = Implementation(prepared, half_turn, _convolution(other, d, transposed=not backwards))
    if kernels and product.proved:
        found.update(_own(product, layout, rounded, prepared))
    return found


def _convolution(padding: list[int], dilation: list[int], *, transposed: bool) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, w: aten.convolution(a, w, None, [1, 1], padding, dilation, transposed, [0, 0], 1)


def _weight_gradient(product: Convolution) -> Callable[[Tensor, Tensor], Tensor]:
    geometry = ([1, 1], list(product.padding), list(product.dilation), False, [0, 0], 1, [False, True, False])

    def core(cotangent: Tensor, image: Tensor) -> Tensor:
        weight = image.new_empty((*product.channels, *product.kernel))  # its values are never read
        return aten.convolution_backward(cotangent, image, weight, None, *geometry)[1]

    return core


def _own(
    product: Convolution, layout: torch.memory_format, rounded: torch.dtype | None, prepared: Unary
) -> dict[str, Implementation]:
    k, p, last = list(product.kernel), list(product.padding), layout is torch.channels_last

    def flat(tensor: Tensor) -> Tensor:
        return aten.clone(tensor, memory_format=torch.contiguous_format)

    if product.kind == WEIGHT and not product.narrow:
        found = ops.configurations(*product.channels, k, rounded or torch.float32)
        return {
            _name(c): Implementation(prepared, prepared, _bound(torch.ops.spen.weight_gradient, k, p, c)) for c in found
        }
    if product.kind == WEIGHT:
        narrow = torch.ops.spen.narrow_weight_gradient
        return {_name(c): Implementation(prepared, flat, _bound(narrow, k, p, c)) for c in map(list, ops.NARROW_WEIGHT)}
    if product.narrow and product.kind == INPUT:
        narrow = torch.ops.spen.narrow_input_gradient
        return {_name(c): Implementation(prepared, flat, _bound(narrow, p, c)) for c in map(list, ops.NARROW_INPUT)}
    if product.narrow:
        narrow = torch.ops.spen.narrow_forward
        return {_name(c): Implementation(flat, flat, _bound(narrow, p, last, c)) for c in map(list, ops.NARROW_FORWARD)}
    return {}


def _bound(operation: Callable[..., Tensor], *rest: object) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda first, second: operation(first, second, *rest)


def _name(config: list[int]) -> str:
    return "triton " + " ".join(map(str, config))
