"""Gradients and Hessian-vector products without a descent: by value, guarded, and plain where nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spen.derivatives import Cross, Derivatives
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
    network = nn.Sequential(nn.Linear(N, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).to(device, torch.float64)
    y = made(BATCH, N).detach().to(device).requires_grad_()
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
