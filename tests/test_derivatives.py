"""Gradients and Hessian-vector products without a descent: by value, guarded, and plain where nothing is compiled."""

from __future__ import annotations

import copy
import functools
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spen.derivatives import Cross, Derivatives
from spen.gradients import NotTwiceDifferentiable
from spen.tensors import tensors_of

N, BATCH = 3, 5
CALLS = 4  # plainly, watched, compiled, compiled again


@dataclass
class Both:
    scale: Tensor
    shift: Tensor
    power: int = 2


class Net(nn.Module):
    """A small network that looks at features of every structure."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(N, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)
        self.config = SimpleNamespace(inner=SimpleNamespace(beta=1.0))
        self.double()

    def forward(self, y: Tensor, features: Any = None) -> Tensor:
        h = F.softplus(self.second(torch.tanh(self.first(y))))
        energy = self.config.inner.beta * self.last(h).squeeze(1)
        match features:
            case None:
                return energy
            case Tensor():
                return energy + (features * y**3).sum(1)
            case {"scale": scale, "shift": shift}:
                return energy + (scale * torch.sin(y + shift)).sum(1)
            case (scale, (shift,)):
                return energy + (scale * torch.sin(y + shift)).sum(1)
        return energy + (features.scale * torch.sin(y + features.shift) ** features.power).sum(1)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, N, dtype=torch.float64))

    def forward(self, y: Tensor) -> Tensor:
        return self.function(self.weight * y)


def made(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


FEATURES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "tensor": lambda: made(BATCH, N),
    "tuple": lambda: (made(BATCH, N), (made(BATCH, N),)),
    "dict": lambda: {"scale": made(BATCH, N), "shift": made(BATCH, N, grad=False)},
    "dataclass": lambda: Both(made(BATCH, N), made(BATCH, N)),
}


def plain(network: nn.Module, y: Tensor, features: Any) -> tuple[Tensor, Tensor]:
    at = y.view_as(y) if y.requires_grad else y.detach().requires_grad_()
    value = network(at) if features is None else network(at, features)
    return value, torch.autograd.grad(value.sum(), at, create_graph=True)[0]


def leaves(network: nn.Module, y: Tensor, features: Any) -> list[Tensor]:
    everything = [y, *tensors_of(features), *network.parameters()]
    return [t for t in everything if t.requires_grad]


def loss(value: Tensor, gradient: Tensor) -> Tensor:
    return (value**2).mean() + ((gradient - 1) ** 2).sum() / len(value)


def derived(scalar: Tensor, by: list[Tensor], **options: Any) -> list[Tensor]:
    found = torch.autograd.grad(scalar, by, allow_unused=True, **options)
    return [torch.zeros_like(t) if f is None else f for t, f in zip(by, found, strict=True)]


def agree(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-12) -> None:
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=tolerance, atol=tolerance)


def made_for(network: nn.Module, **options: Any) -> Derivatives:
    """Operation by operation: the C++ compiler takes ten seconds for each program."""
    return Derivatives(network, **{"compile": True, "fuse": False, **options})


def compiled(d: Derivatives) -> bool:
    return "compiled" in d.explain()


# ── by value ──


@pytest.mark.parametrize("kind", FEATURES)
def test_the_gradient_and_what_training_makes_of_it(kind: str) -> None:
    network, features, y = Net(), FEATURES[kind](), made(BATCH, N)
    d, by = made_for(network), leaves(network, y, features)
    expected = plain(network, y, features)
    wanted = derived(loss(*expected), by)
    for _ in range(CALLS):
        found = d.gradient(y, features)
        agree(list(found), list(expected))
        agree(derived(loss(*found), by), wanted)
    assert compiled(d), d.explain()


@pytest.mark.parametrize("kind", FEATURES)
def test_the_product_is_that_of_the_hessian_and_of_the_mixed_derivatives(kind: str) -> None:
    network, features, y, v = Net(), FEATURES[kind](), made(BATCH, N), made(BATCH, N, grad=False)
    d, by = made_for(network), leaves(network, y, features)
    expected = derived((plain(network, y, features)[1] * v).sum(), by)
    reached = [t for t in tensors_of(features) if t.requires_grad]
    for _ in range(CALLS):
        hv, cross = d.product(y, v, features)
        found = [t for t in tensors_of(cross.features) if t is not None]
        agree([hv, *found, *cross.parameters.values()], expected)
        assert list(cross.parameters) == [name for name, _ in network.named_parameters()]
        assert len(found) == len(reached)
        agree([d.curvature(y, v, features)[2]], expected[:1])
    assert compiled(d), d.explain()


def test_the_structure_of_the_mixed_derivatives_is_that_of_the_features() -> None:
    d, y = made_for(Net()), made(BATCH, N)
    for _ in range(CALLS):
        assert d.product(y, y, FEATURES["dict"]())[1].features["shift"] is None
        cross = d.product(y, y, FEATURES["dataclass"]())[1]
        assert isinstance(cross, Cross)
        assert isinstance(cross.features, Both)
        assert cross.features.scale.shape == (BATCH, N)
        assert d.product(y, y)[1].features is None


@pytest.mark.parametrize("kind", ["none", "dict"])
def test_curvature_and_product_can_be_differentiated(kind: str) -> None:
    network, features, y, v = Net(), FEATURES[kind](), made(BATCH, N), made(BATCH, N)
    d, by = made_for(network), [*leaves(network, y, features), v]
    gradient = plain(network, y, features)[1]
    (hv,) = torch.autograd.grad(gradient, y, v, create_graph=True)
    (weight,) = torch.autograd.grad(gradient, network.first.weight, v, create_graph=True)
    expected, both = derived((hv**2).sum(), by, retain_graph=True), derived((hv**2).sum() + (weight**3).sum(), by)
    for _ in range(CALLS):
        agree(derived((d.curvature(y, v, features)[2] ** 2).sum(), by), expected)
        product, cross = d.product(y, v, features)
        agree(derived((product**2).sum() + (cross.parameters["first.weight"] ** 3).sum(), by), both)


def test_third_derivatives_are_there() -> None:
    network, y = Net(), made(BATCH, N)
    d, by = made_for(network), [y, *network.parameters()]
    second = torch.autograd.grad(plain(network, y, None)[1][:, 0].sum(), y, create_graph=True)[0]
    expected = derived((second[:, 0] ** 2).sum(), by)
    for _ in range(CALLS):
        again = torch.autograd.grad(d.gradient(y)[1][:, 0].sum(), y, create_graph=True)[0]
        agree(derived((again[:, 0] ** 2).sum(), by), expected)


def test_gradcheck() -> None:
    network, y, v = Net(), made(2, N), made(2, N)
    features = made(2, N)
    d = made_for(network)
    for _ in range(CALLS):
        d.gradient(y, features), d.curvature(y, v, features)
    assert torch.autograd.gradcheck(d.gradient, (y, features))
    assert torch.autograd.gradcheck(d.curvature, (y, v, features))
    assert torch.autograd.gradgradcheck(d.gradient, (y, features))
    assert compiled(d)


def test_one_of_the_two_results_is_enough_for_a_backward_pass() -> None:
    network, y = Net(), made(BATCH, N)
    d, by = made_for(network), [y, *network.parameters()]
    value, gradient = plain(network, y, None)
    expected = [derived((r**2).sum(), by, retain_graph=True) for r in (value, gradient)]
    for _ in range(CALLS):
        for i in range(2):
            agree(derived((d.gradient(y)[i] ** 2).sum(), by), expected[i])
            agree(derived((d.curvature(y, y.detach())[i] ** 2).sum(), by), expected[i])


def test_features_made_from_y_and_from_the_parameters_count_once() -> None:
    network, y = Net(), made(BATCH, N)
    d, by = made_for(network), [y, *network.parameters()]

    def features() -> Tensor:
        return y**2 + network.first.weight.sum(0)

    expected = derived(loss(*plain(network, y, features())), by)
    for _ in range(CALLS):
        agree(derived(loss(*d.gradient(y, features())), by), expected)
    cut = features().detach().requires_grad_()
    mixed = derived((plain(network, y, cut)[1] * y.detach()).sum(), [cut, network.first.weight])
    for _ in range(CALLS):
        _, cross = d.product(y, y.detach(), features())
        agree([cross.features, cross.parameters["first.weight"]], mixed)


def test_y_may_be_a_feature_and_the_result_of_another_network() -> None:
    network, encoder, x = Net(), nn.Linear(N, N).double(), made(BATCH, N, grad=False)
    d, by = made_for(network), [*encoder.parameters(), *network.parameters()]
    y = encoder(x)
    expected = derived(loss(*plain(network, y, y)), by)
    for _ in range(CALLS):
        y = encoder(x)
        agree(derived(loss(*d.gradient(y, y)), by), expected)
    assert compiled(d)


def test_tied_weights_get_the_sum_and_one_name() -> None:
    shared = nn.Linear(8, 8)
    d = made_for(nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(8, 1)).double())
    y = made(BATCH, 8)
    expected = derived(loss(*plain(d.network, y, None)), [shared.weight])
    for _ in range(CALLS):
        agree(derived(loss(*d.gradient(y)), [shared.weight]), expected)
    assert list(d.product(y, y)[1].parameters) == ["0.weight", "0.bias", "4.weight", "4.bias"]


def test_what_requires_no_gradient_gets_none() -> None:
    network, y = Net(), made(BATCH, N, grad=False)
    network.first.requires_grad_(False)
    d = made_for(network)
    for _ in range(CALLS):
        loss(*d.gradient(y)).backward()
        assert network.first.weight.grad is None
        assert network.second.weight.grad is not None
        assert "first.weight" not in d.product(y, y)[1].parameters
    network.requires_grad_(False)
    for _ in range(CALLS):
        assert not any(t.requires_grad for t in d.gradient(y))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_graph_is_kept_where_none_is_wanted(mode: Callable[[], Any]) -> None:
    network, y, features = Net(), made(BATCH, N), made(BATCH, N)
    d = made_for(network)
    expected = plain(network, y, features)
    for _ in range(CALLS):
        with mode():
            found = d.gradient(y, features)
            hv, cross = d.product(y, y, features)
        assert not any(t.requires_grad for t in (*found, hv, *cross.parameters.values()))
        agree([f.clone() for f in found], list(expected))
    assert compiled(d)


@pytest.mark.parametrize("shape", [(), (2, 2), (BATCH, 1)])
def test_a_network_may_return_numbers_of_any_shape(shape: tuple[int, ...]) -> None:
    network = Function(lambda z: z.sin().sum().expand(shape) * torch.ones(shape, dtype=z.dtype))
    d, y = made_for(network), made(BATCH, N)
    value, gradient = plain(network, y, None)
    expected = derived(value.sum() + (gradient**2).sum(), [y, network.weight])
    for _ in range(CALLS):
        found = d.gradient(y)
        assert found[0].shape == shape
        agree(derived(found[0].sum() + (found[1] ** 2).sum(), [y, network.weight]), expected)


@pytest.mark.parametrize("function", [lambda z: z.sum(1), lambda z: (z**2).sum(1) / 2])
def test_simple_functions(function: Callable[[Tensor], Tensor]) -> None:
    """A Hessian of zeros, and one that hands v back."""
    network = Function(function)
    with torch.no_grad():
        network.weight.fill_(1)
    network.weight.requires_grad_(False)
    d, y, v = made_for(network), made(BATCH, N), made(BATCH, N)
    for _ in range(CALLS):
        *_, hv = d.curvature(y, v)
        torch.testing.assert_close(hv, v if function(v).abs().max() != v.sum(1).abs().max() else torch.zeros_like(v))
        before = v.detach().clone()
        hv.detach().zero_()
        torch.testing.assert_close(v.detach(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types_are_kept(dtype: torch.dtype) -> None:
    network, y = Net().to(dtype), torch.randn(BATCH, N, dtype=dtype)
    d = made_for(network)
    expected = [t.detach() for t in plain(network, y, None)]
    for _ in range(CALLS):
        found = d.gradient(y)
        assert {t.dtype for t in found} == {dtype}
        agree([t.detach() for t in found], expected, 1e-5 if dtype is torch.float32 else 1e-12)


def test_a_batch_without_examples() -> None:
    network = Net()
    d = made_for(network)
    for _ in range(CALLS):
        value, gradient = d.gradient(made(0, N))
        assert (value.shape, gradient.shape) == ((0,), (0, N))
        loss_ = value.sum() + gradient.sum()
        loss_.backward()
        assert d.curvature(made(0, N), torch.zeros(0, N, dtype=torch.float64))[2].shape == (0, N)


def test_memory_of_y_in_any_order() -> None:
    network = Net()
    d, y = made_for(network), made(N, BATCH)
    for _ in range(CALLS):
        agree(list(d.gradient(y.T)), list(plain(network, y.T, None)))


def test_a_graph_of_atoms() -> None:
    """Gathers and scatters: energies of molecules from positions of atoms."""

    class Molecules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(1, 8), nn.Softplus(), nn.Linear(8, 1)).double()

        def forward(self, y: Tensor, features: Any) -> Tensor:
            i, j, owner = features
            distance = (y[i] - y[j]).norm(dim=1, keepdim=True)
            return torch.zeros(2, dtype=y.dtype).index_add(0, owner, self.mlp(distance).squeeze(1))

    network, y = Molecules(), made(6, 3)
    features = (torch.tensor([0, 0, 1, 3, 4]), torch.tensor([1, 2, 2, 4, 5]), torch.tensor([0, 0, 0, 1, 1]))
    d, by = made_for(network), [y, *network.parameters()]
    expected = derived(loss(*plain(network, y, features)), by)
    for _ in range(CALLS):
        agree(derived(loss(*d.gradient(y, features)), by), expected)
    assert compiled(d), d.explain()


@pytest.mark.slow
def test_fused_programs() -> None:
    """What is cheap is made again in the backward pass, and not kept."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network, y = Net().to(device), made(BATCH, N).detach().to(device).requires_grad_()
    d, by = Derivatives(network, compile=True, patience=0), [y, *network.parameters()]
    expected = derived(loss(*plain(network, y, None)), by)
    for _ in range(3):
        agree(derived(loss(*d.gradient(y)), by), expected)
    assert compiled(d), d.explain()


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr("torch._inductor.compile", fails)
    network, y = Net(), made(BATCH, N)
    d = Derivatives(network, compile=True)
    for _ in range(CALLS):
        agree(list(d.gradient(y)), list(plain(network, y, None)))
    assert "the network Net cannot be compiled: no compiler here" in d.explain()


# ── guards ──


def test_a_change_of_what_the_network_reads_is_seen() -> None:
    network, y = Net(), made(BATCH, N)
    d, by = made_for(network), [y, *network.parameters()]
    for beta in (1.0, 30.0, 1.0, -2.0):
        network.config.inner.beta = beta
        for _ in range(3):
            found = d.gradient(y)
            agree(list(found), list(plain(network, y, None)))
            agree(derived(loss(*found), by), derived(loss(*plain(network, y, None)), by))
    assert compiled(d)


FACTOR = 1.0


class Reading(Net):
    """Reads its state in many places."""

    shared = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.zeros(N, dtype=torch.float64))
        self.inside = lambda z, by=[1.0]: z * by[0]

    def forward(self, y: Tensor, features: Any = None) -> Tensor:
        factor = FACTOR * self.shared * (2.0 if self.training else 1.0)
        return factor * super().forward(self.inside(y) + self.offset, features)


MUTATIONS: dict[str, Callable[[Reading, pytest.MonkeyPatch], Any]] = {
    "nested attribute": lambda n, _: setattr(n.config.inner, "beta", 3.0),
    "class attribute": lambda n, patch: patch.setattr(Reading, "shared", 3.0),
    "global": lambda n, patch: patch.setitem(globals(), "FACTOR", 3.0),
    "default of a function": lambda n, _: n.inside.__defaults__[0].__setitem__(0, 3.0),  # type: ignore[index]
    "method": lambda n, patch: patch.setattr(Net, "forward", lambda self, y, features=None: (y**4).sum(1)),
    "buffer in place": lambda n, _: n.offset.add_(1.0),  # type: ignore[operator]
    "buffer": lambda n, _: setattr(n, "offset", torch.ones(N, dtype=torch.float64)),
    "mode": lambda n, _: n.eval(),
    "hook": lambda n, _: n.second.register_forward_hook(lambda module, given, result: 2 * result),
    "layer": lambda n, _: setattr(n, "second", nn.Identity()),
    "frozen": lambda n, _: n.first.requires_grad_(False),
    "tied": lambda n, _: setattr(n.second, "bias", n.first.bias),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_mutation_is_seen_at_the_next_call(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, y, v = Reading(), made(BATCH, N), made(BATCH, N, grad=False)
    d = made_for(network)
    for _ in range(CALLS):
        before = d.curvature(y, v)
    MUTATIONS[mutation](network, monkeypatch)
    if mutation not in ("frozen", "tied"):
        assert not torch.allclose(before[1], plain(network, y, None)[1])
    by = leaves(network, y, None)
    for _ in range(3):
        value, gradient = plain(network, y, None)
        (hv,) = torch.autograd.grad(gradient, y, v, create_graph=True)
        found = d.curvature(y, v)
        agree(list(found), [value, gradient, hv])
        agree(derived((found[2] ** 2).sum() + loss(*found[:2]), by), derived((hv**2).sum() + loss(value, gradient), by))


def test_a_state_that_changed_before_the_backward_pass_does_not_change_it() -> None:
    network, y = Net(), made(BATCH, N)
    d, by = made_for(network), [y, *network.parameters()]
    expected = derived(loss(*plain(network, y, None)), by)
    for _ in range(CALLS):
        found = loss(*d.gradient(y))
        network.config.inner.beta = 7.0
        agree(derived(found, by), expected)
        network.config.inner.beta = 1.0


def test_weights_that_were_replaced_or_trained_are_read_anew() -> None:
    network, y = Net(), made(BATCH, N)
    d = made_for(network)
    for i in range(2 * CALLS):
        agree(list(d.gradient(y)), list(plain(network, y, None)))
        with torch.no_grad():
            network.first.weight += 0.1
        if i == CALLS:
            network.second = nn.Linear(8, 8).double()


def test_a_weight_written_between_forward_and_backward_is_an_error() -> None:
    network, y = Net(), made(BATCH, N)
    d = made_for(network)
    for _ in range(CALLS):
        value, gradient = d.gradient(y)
        with torch.no_grad():
            network.second.weight += 0.1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss(value, gradient).backward()


def test_random_numbers_and_running_statistics_stay_as_they_are() -> None:
    for layer, why in ((nn.Dropout(0.5), "draws random numbers"), (nn.BatchNorm1d(8), "writes into a tensor")):
        network = nn.Sequential(nn.Linear(N, 8), layer, nn.Tanh(), nn.Linear(8, 1)).double()
        d, y, reference = made_for(network), made(BATCH, N), copy.deepcopy(network)
        for _ in range(CALLS):
            torch.manual_seed(1)
            found = [*d.gradient(y)]
            torch.manual_seed(1)
            agree(found, list(plain(reference, y, None)))
            agree(list(network.buffers()), list(reference.buffers()))
        assert why in d.explain()
        network.eval(), reference.eval()
        for _ in range(CALLS):
            agree(list(d.gradient(y)), list(plain(reference, y, None)))
        assert "1 program" in d.explain()


def test_a_network_that_counts_its_calls_stays_plain() -> None:
    class Counting(Net):
        calls = 0

        def forward(self, y: Tensor, features: Any = None) -> Tensor:
            self.calls += 1
            return super().forward(y, features) * self.calls

    network, y = Counting(), made(BATCH, N)
    d = made_for(network)
    for _ in range(CALLS):
        found, calls = d.gradient(y), network.calls
        network.calls = calls - 1
        agree(list(found), list(plain(network, y, None)))
    assert "changes something that it reads whenever it is evaluated" in d.explain()


def test_a_cache_that_dynamo_looks_behind_stays_plain() -> None:
    source = {"beta": 1.0}
    cached = functools.lru_cache(lambda: source["beta"])

    class Cached(Net):
        def forward(self, y: Tensor, features: Any = None) -> Tensor:
            return cached() * super().forward(y, features)

    network, y = Cached(), made(BATCH, N)
    d = made_for(network)
    for beta in (1.0, 2.0):  # the cache holds 1 for ever
        source["beta"] = beta
        for _ in range(CALLS):
            agree(list(d.gradient(y)), list(plain(network, y, None)))
    assert "its program has other derivatives than itself" in d.explain()


@pytest.mark.parametrize("kind", ["gradient", "curvature"])
def test_group_norms_behind_convolutions(kind: str) -> None:
    """In another memory format torch's own gradient of a group norm is wrong on a CPU: here it is written out."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Softplus(), nn.Conv2d(16, 16, 3), nn.GroupNorm(4, 16)
    )
    network.append(nn.Softplus())
    y, v = torch.randn(2, 1, 8, 9), torch.randn(2, 1, 8, 9)
    results = []
    for d in (Derivatives(network, compile=False), made_for(network)):
        for _ in range(CALLS):
            found = d.gradient(y) if kind == "gradient" else d.curvature(y, v)
            bars = torch.autograd.grad(found[-1].square().sum(), list(network.parameters()), allow_unused=True)
        results.append([*found, *(b for b in bars if b is not None)])
    for f, e in zip(*results, strict=True):
        assert float((f - e).norm()) <= 1e-4 * float(e.norm())


def test_a_once_differentiable_operation_is_refused_where_it_would_be_wrong() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor) -> Tensor:
            ctx.save_for_backward(z)
            return (z**2).sum(1)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, bar: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * bar[:, None]

    network, y = Function(Square.apply), made(BATCH, N)
    d = made_for(network)
    sentence = (
        "the network Function has no second derivative: Square can be differentiated only once. "
        "Its gradient alone is there under torch.no_grad()"
    )
    for _ in range(CALLS):
        with pytest.raises(NotTwiceDifferentiable, match=f"^{re.escape(sentence)}$"):
            d.gradient(y)
        with torch.no_grad(), pytest.raises(NotTwiceDifferentiable):
            d.curvature(y, y)
        with torch.no_grad():
            agree([d.gradient(y)[1]], [(2 * network.weight**2 * y).detach()])


# ── when it is plain ──


def test_shapes_that_do_not_come_back_and_shapes_too_many_stay_plain() -> None:
    network = Net()
    d = made_for(network, shapes=2)
    for _ in range(3):
        for batch in range(1, 6):
            y = made(batch, N)
            agree(list(d.gradient(y)), list(plain(network, y, None)))
    assert d.explain().count("compiled") == 2
    assert "y (5, 3), float64 on cpu: plain, met 3 times" in d.explain()
    d.forget()
    assert d.explain() == "nothing was computed yet"


def test_a_network_that_cannot_be_traced_says_why() -> None:
    network = Function(lambda z: z.sin().sum(1) * (1 if z.sum().item() > 0 else 2))
    d, y = made_for(network), made(BATCH, N)
    for _ in range(CALLS):
        agree(list(d.gradient(y)), list(plain(network, y, None)))
        y = -y.detach()
    assert "plain, the network Function cannot be traced" in d.explain()
    assert "Compiled" not in d.explain()


def test_compile_false_autocast_and_a_cpu_are_plain() -> None:
    network, y = Net().float(), torch.randn(BATCH, N)
    d, never = made_for(network), made_for(network, compile=False)
    for _ in range(CALLS):
        agree(list(Derivatives(network).gradient(y)), list(plain(network, y, None)), 1e-5)
        agree(list(never.gradient(y)), list(plain(network, y, None)), 1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            agree(list(d.gradient(y)), list(plain(network, y, None)), 1e-5)
    assert d.explain() == never.explain() == "nothing was computed yet"


def test_within_torch_func() -> None:
    d = made_for(Net())
    y = made(BATCH, N, grad=False)
    for _ in range(CALLS):
        d.gradient(y)
    expected = torch.func.jacrev(lambda z: d.gradient(z)[1].sum(0))(y)
    rows = [torch.autograd.grad(plain(d.network, y.requires_grad_(), None)[1][:, i].sum(), y)[0] for i in range(N)]
    agree([expected], [torch.stack(rows)])


# ── errors ──


def test_arguments_are_checked() -> None:
    y = made(BATCH, N)
    d = made_for(Net())
    with pytest.raises(
        TypeError, match="network must be an nn.Module .* not a lambda function; wrap the function in a"
    ):
        made_for(lambda y: y.sum(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Derivatives needs patience ≥ 0 and shapes ≥ 1, not -1 and 32"):
        made_for(Net(), patience=-1)
    with pytest.raises(TypeError, match="y must be a tensor of floating-point numbers, not torch.int64"):
        d.gradient(torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(
        ValueError, match=r"v is a direction in the space of y: shape \(5, 3\), torch.float64 on cpu, not"
    ):
        d.product(y, y[:2])
    with pytest.raises(ValueError, match="the network Function does not depend on y: it has no gradient"):
        made_for(Function(lambda z: torch.ones(BATCH))).gradient(y)
    with pytest.raises(
        TypeError, match="the network Function must return a tensor of floating-point numbers, not tuple"
    ):
        made_for(Function(lambda z: (z, z))).gradient(y)  # type: ignore[arg-type,return-value]
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        d.gradient(made(BATCH, N + 1))


def test_it_can_be_copied_saved_and_printed() -> None:
    d, y = made_for(Net()), made(BATCH, N)
    for _ in range(CALLS):
        d.gradient(y)
    for again in (copy.deepcopy(d), pickle.loads(pickle.dumps(d))):
        assert again.network is not d.network
        for _ in range(CALLS):
            agree(list(again.gradient(y)), list(d.gradient(y)))
    assert repr(d) == "Derivatives(Net, compile=True, fuse=False)"
    assert repr(Derivatives(Net(), compile=False)) == "Derivatives(Net, compile=False)"


def test_it_is_there_after_importing_spen_and_brings_no_compiler() -> None:
    code = "import spen, sys; spen.derivatives.Derivatives; "
    code += "print([m for m in ('torch._inductor', 'torch._dynamo') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# ── what it is for ──


def test_the_residual_of_burgers_equation() -> None:
    """u_t + u u_x − ν u_xx, and its gradient for training."""
    network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    d, xt = made_for(network), torch.rand(BATCH, 2, dtype=torch.float64)
    along_x = torch.tensor([1.0, 0.0], dtype=torch.float64).expand_as(xt).contiguous()

    def residual() -> Tensor:
        u, g, h = d.curvature(xt, along_x)
        return g[:, 1] + u.squeeze(1) * g[:, 0] - 0.01 * h[:, 0]

    at = xt.clone().requires_grad_()
    u, g = plain(network, at, None)
    second = torch.autograd.grad(g[:, 0].sum(), at, create_graph=True)[0][:, 0]
    expected = g[:, 1] + u.squeeze(1) * g[:, 0] - 0.01 * second
    by = list(network.parameters())
    wanted = derived((expected**2).mean(), by)
    for _ in range(CALLS):
        found = residual()
        agree([found], [expected])
        agree(derived((found**2).mean(), by), wanted)
    assert compiled(d)
