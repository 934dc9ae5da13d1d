"""Programs rewritten for a CPU: the same values, in fewer operations and with less memory held."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from spen.descent.compiled.host import for_host
from spen.descent.compiled.order import Memory, release_early
from spen.descent.compiled.simplify import simplified

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
    short = for_host(program)
    assert count(short, aten.softplus_backward.default) == 1
    assert count(short, aten.lt.Scalar, aten.sigmoid.default) == 0
    assert len(short.graph.nodes) < before
    for a, b in zip(short(z, v), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_single_slope_is_left_alone() -> None:
    def first(z: Tensor) -> Tensor:
        leaf = z.detach().requires_grad_()
        return torch.autograd.grad(F.softplus(leaf).sum(), leaf)[0]

    program = for_host(simplified(make_fx(first)(torch.randn(5))))
    assert count(program, aten.softplus_backward.default) == 1
    assert count(program, aten.mul.Tensor) == 0


def convolution_gradients(options: dict[str, Any]) -> Any:
    def gradients(x: Tensor, weight: Tensor, v: Tensor) -> list[Tensor]:
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        return list(torch.autograd.grad(F.conv2d(x, weight, **options), [x, weight], v))

    return gradients


@pytest.mark.parametrize("options", [{"padding": 2}, {"padding": (1, 0)}, {"stride": 2}, {"dilation": 2, "padding": 3}])
@pytest.mark.parametrize("channels", [1, 3, 8])
def test_gradients_of_narrow_images_are_matrix_products(options: dict[str, Any], channels: int) -> None:
    x, weight = torch.randn(2, channels, 11, 12), torch.randn(6, channels, 5, 3)
    v = torch.randn_like(F.conv2d(x, weight, **options))
    program = simplified(make_fx(convolution_gradients(options))(x, weight, v))
    expected = program(x, weight, v)
    program = for_host(program)
    assert count(program, aten.col2im.default) == (channels <= 4)
    (left,) = [n for n in program.graph.nodes if n.target is aten.convolution_backward.default]
    assert left.args[-1][:2] == [channels > 4, True]
    for a, b in zip(program(x, weight, v), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_weights_in_channels_last_carry_the_results_along() -> None:
    x, weight = torch.randn(2, 1, 8, 9), torch.randn(16, 1, 3, 3)
    program = for_host(simplified(make_fx(lambda x, w: F.conv2d(x, w, padding=1))(x, weight)))
    found = program(x, weight)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, F.conv2d(x, weight, padding=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("groups", "dtype"), [(2, torch.float32), (1, torch.float64)])
def test_other_convolutions_keep_their_layout(groups: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 4, 8, 9, dtype=dtype), torch.randn(6, 4 // groups, 3, 3, dtype=dtype)
    program = for_host(simplified(make_fx(lambda x, w: F.conv2d(x, w, groups=groups))(x, weight)))
    assert count(program, aten.clone.default) == 0
    torch.testing.assert_close(program(x, weight), F.conv2d(x, weight, groups=groups))


def fan(x: Tensor) -> Tensor:
    wide = [(x + i).unsqueeze(0).expand(100, -1).clone() for i in range(6)]
    return sum(w.sum() for w in wide)  # type: ignore[return-value]


def test_results_are_used_up_before_new_ones_are_made() -> None:
    x = torch.randn(50)
    program = make_fx(fan)(x)
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    expected, size = program(x), 100 * 50 * 4
    assert Memory.of(nodes).peak(range(len(nodes))) >= 6 * size
    release_early(program)
    program.recompile()
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    assert Memory.of(nodes).peak(range(len(nodes))) < 2 * size
    torch.testing.assert_close(program(x), expected)


def test_the_order_of_writes_is_kept() -> None:
    def writing(x: Tensor) -> Tensor:
        box = torch.zeros(100, 50)
        box.copy_(x)
        first = box.sum()
        box.mul_(2)
        return first + box.sum()

    program, x = make_fx(writing)(torch.randn(50)), torch.randn(50)
    names = [n.name for n in program.graph.nodes]
    release_early(program)
    assert [n.name for n in program.graph.nodes] == names
    torch.testing.assert_close(program(x), 300 * x.sum())
