"""Programs rewritten for a CPU: the same values, in a layout that oneDNN likes and in fewer operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from spen.gradients.compiled.cpu import for_cpu
from spen.gradients.compiled.simplify import simplified

aten = torch.ops.aten


def count(program: GraphModule, *targets: Any) -> int:
    return sum(node.target in targets for node in program.graph.nodes)


def softplus_twice(z: Tensor, v: Tensor) -> list[Tensor]:
    leaf = z.detach().requires_grad_()
    total = F.softplus(leaf, beta=3.0).square().sum()
    (first,) = torch.autograd.grad(total, leaf, create_graph=True)
    (second,) = torch.autograd.grad(first, leaf, v)
    return [first.detach(), second]


def test_softplus_bends_in_three_passes() -> None:
    z = torch.linspace(-12, 12, 61, dtype=torch.float64)  # beyond the threshold of 20 as well
    v = torch.randn_like(z)
    program = simplified(make_fx(softplus_twice)(z, v))
    before, expected = len(program.graph.nodes), program(z, v)
    short = for_cpu(program)
    assert count(short, aten.softplus_backward.default) == 1
    assert count(short, aten.lt.Scalar, aten.sigmoid.default) == 0
    assert len(short.graph.nodes) < before
    for a, b in zip(short(z, v), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_single_slope_is_left_alone() -> None:
    def first(z: Tensor) -> Tensor:
        leaf = z.detach().requires_grad_()
        return torch.autograd.grad(F.softplus(leaf).sum(), leaf)[0]

    program = for_cpu(simplified(make_fx(first)(torch.randn(5))))
    assert count(program, aten.softplus_backward.default) == 1
    assert count(program, aten.mul.Tensor) == 0


def test_weights_in_channels_last_carry_the_results_along() -> None:
    x, weight = torch.randn(2, 1, 8, 9), torch.randn(16, 1, 3, 3)
    program = for_cpu(simplified(make_fx(lambda x, w: F.conv2d(x, w, padding=1))(x, weight)))
    found = program(x, weight)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, F.conv2d(x, weight, padding=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("groups", "dtype"), [(2, torch.float32), (1, torch.float64)])
def test_other_convolutions_keep_their_layout(groups: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 4, 8, 9, dtype=dtype), torch.randn(6, 4 // groups, 3, 3, dtype=dtype)
    program = for_cpu(simplified(make_fx(lambda x, w: F.conv2d(x, w, groups=groups))(x, weight)))
    assert count(program, aten.clone.default) == 0
    torch.testing.assert_close(program(x, weight), F.conv2d(x, weight, groups=groups))


def strided(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.conv2d(F.conv2d(x, w, padding=1), v, padding=1, stride=2)


def transposed(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.conv_transpose2d(F.conv2d(x, w, padding=1), v)


def stride_one(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.conv2d(F.conv2d(x, w, padding=1), v, padding=1)


def gradients(function: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    def both(*given: Tensor) -> list[Tensor]:
        leaves = [g.detach().requires_grad_() for g in given]
        return list(torch.autograd.grad(function(*leaves).square().sum(), leaves))

    return both


@pytest.mark.parametrize(("function", "clones"), [(stride_one, 2), (strided, 0), (transposed, 0)])
def test_one_convolution_with_strides_or_transposed_keeps_the_layout(
    function: Callable[..., Tensor], clones: int
) -> None:
    given = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3), torch.randn(4, 4, 3, 3)
    program = for_cpu(simplified(make_fx(gradients(function))(*given)))
    assert count(program, aten.clone.default) == clones
    for a, b in zip(program(*given), gradients(function)(*given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
