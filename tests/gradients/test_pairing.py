"""Products merged, written out or computed another way: fewer of them, and the same values."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from spen.descent.potential import Potential
from spen.energies import Energy, Scaled
from spen.gradients import Checkpointed, ForwardOverReverse
from spen.gradients.compiled import convolutions
from spen.gradients.compiled.convolutions import FORWARD, INPUT, WEIGHT, Convolution, implementations
from spen.gradients.compiled.lower import Passes, lowered
from spen.gradients.compiled.pairing import paired
from spen.gradients.compiled.pointwise import without_narrow_products
from spen.gradients.compiled.program import Bound
from spen.tasks.denoising.energy import DeepPrior

aten = torch.ops.aten


class Branches(Energy):
    """One filter on y, on 2y and again on its own result: two independent products, one that depends on them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, y: Tensor, features: None) -> Tensor:
        both = torch.tanh(self.conv(y)) + torch.tanh(self.conv(2 * y))
        return torch.tanh(self.conv(both)).flatten(1).sum(1)


class Strided(Energy):
    """Stride, groups, dilation: merged like others, but computed as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 3, stride=2, padding=1)
        self.second = nn.Conv2d(32, 32, 3, padding=2, dilation=2)
        self.third = nn.Conv2d(32, 32, 3, groups=2)

    def forward(self, y: Tensor, features: None) -> Tensor:
        hidden = F.softplus(self.second(F.softplus(self.first(y))))
        return F.softplus(self.third(hidden)).flatten(1).sum(1)


def deep(**options: Any) -> Energy:
    return Scaled(DeepPrior(16, 3, temperature=5.0, **options), 0.1, learned=True)


def blind() -> Energy:
    return deep(padding="reflect", blind=True)


IMAGE = (2, 1, 9, 10)


def traced(
    energy: Callable[[], Energy], shape: tuple[int, ...], through: str = "forward", dtype: torch.dtype = torch.float64
) -> tuple[GraphModule, list[Tensor]]:
    """The program of H v and its cross terms, as a strategy makes it, and inputs: traced once, copied for each use."""
    program, inputs = _traced(energy, shape, through, dtype)
    return copy.deepcopy(program), inputs


@functools.cache
def _traced(
    energy: Callable[[], Energy], shape: tuple[int, ...], through: str, dtype: torch.dtype
) -> tuple[GraphModule, list[Tensor]]:
    torch.manual_seed(0)
    module, point = energy().to(dtype), torch.randn(*shape, dtype=dtype)
    strategy = ForwardOverReverse() if through == "forward" else Checkpointed()
    caught: list[tuple[GraphModule, list[Tensor]]] = []
    Bound.of(
        Potential.of(module, None),
        point,
        strategy.product,
        lambda program, inputs: caught.append((program, inputs)) or program,  # type: ignore[func-returns-value]
    )
    program, (_, direction, *parameters) = caught[1]
    return program, [point, torch.randn_like(direction), *parameters]


def count(program: GraphModule, target: Any) -> int:
    return sum(node.target is target for node in program.graph.nodes)


def products_of(program: GraphModule) -> int:
    return sum(
        count(program, t) for t in (aten.convolution.default, aten.convolution_backward.default, aten.mm.default)
    )


def assert_same(expected: list[Tensor], found: list[Tensor], bound: float = 1e-12) -> None:
    for a, b in zip(expected, found, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert float((a - b).norm()) <= bound * float(a.norm())


# ── pairs ──


def test_primal_and_tangent_become_one_product() -> None:
    """Per layer: one forward product, one input gradient where two are needed, one weight gradient and no sum."""
    program, inputs = traced(deep, IMAGE)
    expected = program(*inputs)
    assert (count(program, aten.convolution.default), count(program, aten.convolution_backward.default)) == (6, 9)
    merged = paired(program)
    merged.graph.lint()
    assert (count(merged, aten.convolution.default), count(merged, aten.convolution_backward.default)) == (3, 6)
    assert_same(expected, merged(*inputs))


def test_operands_are_concatenated_once() -> None:
    """[ȧ; a] serves the forward product and the weight gradient, [δ; δ̇] the input and the weight gradient."""
    program, _ = traced(deep, IMAGE)
    assert count(paired(program), aten.cat.default) == 5  # y, two layers forward, one back, the first's cotangents


@pytest.mark.parametrize("through", ["forward", "double"])
@pytest.mark.parametrize(
    ("energy", "shape"),
    [
        (deep, IMAGE),
        (blind, IMAGE),
        (Branches, IMAGE),
        (Strided, IMAGE),
    ],
    ids=["deep", "blind", "branches", "strided"],
)
def test_merged_programs_agree(energy: Callable[[], Energy], shape: tuple[int, ...], through: str) -> None:
    program, inputs = traced(energy, shape, through)
    expected, before = program(*inputs), products_of(program)
    merged = paired(program)
    merged.graph.lint()
    assert products_of(merged) < before
    assert_same(expected, merged(*inputs))


def test_a_product_of_another_is_not_merged_with_it() -> None:
    weight = torch.randn(3, 3, 3, 3)

    def chain(x: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, weight, padding=1), weight, padding=1)

    x = torch.randn(2, 3, 5, 5)
    program = paired(make_fx(chain)(x))
    assert count(program, aten.convolution.default) == 2
    torch.testing.assert_close(program(x), chain(x))


def test_products_of_two_batches_and_biases() -> None:
    """Batches of two sizes; each part gets its own bias, a common one stays in the product."""
    weight, biases = torch.randn(4, 3, 3, 3), torch.randn(2, 4)

    def several(x: Tensor) -> list[Tensor]:
        first = F.conv2d(x, weight, biases[0])
        second = F.conv2d(x[:1] * 2, weight, biases[1])
        return [first, second, F.conv2d(x + 1, weight, biases[0]), F.conv2d(x, weight, biases[0], stride=2)]

    x = torch.randn(3, 3, 6, 6)
    program = paired(make_fx(several)(x))
    assert count(program, aten.convolution.default) == 3
    assert_same(several(x), program(x), 1e-6)


def test_halves_of_one_product_are_not_copied_to_be_joined() -> None:
    weight, other = torch.randn(3, 3, 3, 3), torch.randn(2, 3, 3, 3)

    def twice(x: Tensor, v: Tensor) -> list[Tensor]:
        return [F.conv2d(F.conv2d(t, weight), other) for t in (x, v)]

    x, v = torch.randn(2, 2, 3, 8, 8)
    program = paired(make_fx(twice)(x, v))
    assert (count(program, aten.convolution.default), count(program, aten.cat.default)) == (2, 1)
    assert_same(twice(x, v), program(x, v), 1e-6)


@pytest.mark.parametrize("special", ["writes", "draws"])
def test_programs_whose_order_matters_are_left_alone(special: str) -> None:
    weight = torch.randn(3, 3, 3, 3)

    def function(x: Tensor) -> Tensor:
        first = F.conv2d(x, weight)
        noise = torch.rand_like(first) if special == "draws" else first.clone().mul_(2)
        return first + noise + F.conv2d(x + 1, weight)

    program = paired(make_fx(function)(torch.randn(1, 3, 5, 5)))
    assert count(program, aten.convolution.default) == 2


# ── written out ──


def test_the_last_layer_is_written_out() -> None:
    program, inputs = traced(deep, IMAGE)
    expected = program(*inputs)
    simple = without_narrow_products(program)
    assert (count(simple, aten.convolution.default), count(simple, aten.convolution_backward.default)) == (4, 7)
    assert_same(expected, simple(*inputs))


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 5), (5, 1), (1, 1)])
@pytest.mark.parametrize("planes", [1, 2, 3])
def test_one_by_one_convolutions_by_value(inputs: int, outputs: int, planes: int) -> None:
    conv = (F.conv1d, F.conv2d, F.conv3d)[planes - 1]
    bias = torch.randn(outputs, dtype=torch.float64)

    def function(x: Tensor, w: Tensor) -> list[Tensor]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        z = conv(x, w, bias)
        return [z.detach(), *torch.autograd.grad(z.square().sum(), [x, w])]

    x, w = torch.randn(3, inputs, *[4] * planes).double(), torch.randn(outputs, inputs, *[1] * planes).double()
    program = without_narrow_products(make_fx(function)(x, w))
    assert products_of(program) == 0
    assert_same(function(x, w), program(x, w))


def test_other_convolutions_are_not_written_out() -> None:
    def function(x: Tensor) -> list[Tensor]:
        wide, tall = torch.ones(2, 2, 1, 1), torch.ones(1, 2, 3, 1)
        padded = F.conv2d(x, torch.ones(1, 2, 1, 1), padding=1)
        return [F.conv2d(x, wide), F.conv2d(x, tall), padded, F.conv2d(x, torch.ones(1, 2, 1, 1), stride=2)]

    assert count(without_narrow_products(make_fx(function)(torch.randn(1, 2, 4, 4))), aten.convolution.default) == 4


# ── another way ──


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize(
    ("size", "padding", "dilation", "is_turned"),
    [
        ((3, 3), (1, 1), (1, 1), True),
        ((7, 7), (3, 3), (1, 1), True),
        ((7, 5), (0, 0), (1, 1), True),
        ((3, 5), (2, 4), (1, 1), True),
        ((4, 2), (1, 0), (1, 1), True),
        ((3, 3), (2, 2), (2, 2), True),
        ((3, 3), (1, 3), (2, 3), True),
        ((1, 1), (0, 0), (1, 1), True),
        ((3, 3), (3, 1), (1, 1), False),
    ],
)
def test_every_way_computes_the_same(
    size: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int], is_turned: bool, layout: Any
) -> None:
    image, weight = torch.randn(2, 16, 11, 12), torch.randn(32, 16, *size)
    z = F.conv2d(image, weight, padding=padding, dilation=dilation)
    cotangent = torch.randn_like(z)
    geometry = ([1, 1], list(padding), list(dilation), False, [0, 0], 1, [True, True, False])
    gradients = aten.convolution_backward(cotangent, image, weight, None, *geometry)
    cases = {
        FORWARD: (image, weight, z),
        INPUT: (cotangent, weight, gradients[0]),
        WEIGHT: (cotangent, image, gradients[1]),
    }
    for kind, (first, second, expected) in cases.items():
        product = Convolution(kind, tuple(first.shape), tuple(second.shape), size, padding, dilation)
        found = implementations(product, layout, None, turned=True, kernels=True)
        assert ("turned" in found) is (is_turned and kind != WEIGHT)
        assert any(name.startswith("triton") for name in found) is (kind == WEIGHT and product.proved)
        for way in found.values():
            assert_same([expected], [way(first, second)], 1e-5)
        assert list(implementations(product, layout, None, turned=False, kernels=False)) == ["cudnn"]


def test_operands_are_rounded_when_asked() -> None:
    image, weight = torch.randn(2, 16, 8, 8), torch.randn(16, 16, 3, 3)
    product = Convolution(FORWARD, (2, 16, 8, 8), (16, 16, 3, 3), (3, 3), (1, 1), (1, 1))
    for name, way in implementations(product, torch.channels_last, torch.bfloat16, turned=True, kernels=False).items():
        found, exact = way(image, weight), F.conv2d(image, weight, padding=1)
        assert found.dtype is torch.float32
        assert 1e-4 < float((found - exact).norm() / exact.norm()) < 1e-2, name


def test_what_is_left_for_our_kernels_is_what_they_are_proved_for() -> None:
    wide = Convolution(WEIGHT, (2, 32, 8, 8), (2, 32, 8, 8), (7, 7), (3, 3), (1, 1))
    assert wide.proved
    for change in ({"dilation": (2, 2)}, {"kernel": (4, 4)}, {"second": (2, 24, 8, 8)}):
        product = Convolution(**{**vars(wide), **change})  # type: ignore[arg-type]
        assert list(implementations(product, torch.channels_last, None, turned=True, kernels=True)) == ["cudnn"]


# ── lowering ──

_VARIANTS = {
    "nothing": Passes(False, False, False, False, torch.channels_last),
    "pairs": Passes(pointwise=False, turned=False, kernels=False),
    "pointwise": Passes(pairs=False, turned=False, kernels=False),
    "turned": Passes(prefer="turned", layout=torch.contiguous_format),
    "kernels": Passes(prefer="triton"),
    "everything": Passes(),
}


@pytest.mark.parametrize("passes", _VARIANTS.values(), ids=list(_VARIANTS))
@pytest.mark.parametrize("energy", [deep, Strided, Branches], ids=["deep", "strided", "branches"])
def test_lowered_programs_agree(energy: Callable[[], Energy], passes: Passes) -> None:
    program, inputs = traced(energy, IMAGE, dtype=torch.float32)
    plain = program(*inputs)
    found = lowered(program, inputs, fuse=False, precision=None, passes=passes)(*inputs)
    assert_same(plain, found, 1e-4)


def test_every_pass_changes_the_program() -> None:
    def nodes(passes: Passes | None) -> list[str]:
        torch.manual_seed(0)
        program, inputs = traced(deep, IMAGE, dtype=torch.float32)
        lowered(program, inputs, fuse=False, precision=None, passes=passes)
        return [str(node.target) for node in program.graph.nodes]

    variants = {"none": nodes(None), **{name: nodes(passes) for name, passes in _VARIANTS.items()}}
    first = list(variants.values())[:6]
    assert all(a != b for i, a in enumerate(first) for b in first[:i])
    assert any("spen.weight_gradient" in name for name in variants["kernels"])
    assert any("spen.narrow_input_gradient" in name for name in variants["kernels"])


def test_on_a_cpu_nothing_is_rearranged_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    program, inputs = traced(deep, IMAGE, dtype=torch.float32)
    monkeypatch.setattr("torch._inductor.compile", lambda program, inputs: program)
    for fuse in (False, True):
        lowered(program, inputs, fuse=fuse, precision=None)
        assert count(program, aten.convolution.default) == 6


def test_fused_rearranged_programs_agree() -> None:
    program, inputs = traced(deep, IMAGE, dtype=torch.float32)
    plain = program(*inputs)
    found = lowered(program, inputs, fuse=True, precision=None, passes=Passes(prefer="triton"))(*inputs)
    assert_same(plain, found, 1e-4)


def test_precision_reaches_the_wide_products_alone() -> None:
    program, inputs = traced(deep, IMAGE, dtype=torch.float32)
    plain = program(*inputs)
    found = lowered(program, inputs, fuse=False, precision=torch.bfloat16, passes=Passes())(*inputs)
    error = max(float((a - b).norm() / a.norm()) for a, b in zip(plain, found, strict=True))
    assert 1e-5 < error < 3e-2
    assert count(program, aten._to_copy.default) >= 6
    assert convolutions.WIDE == 16
