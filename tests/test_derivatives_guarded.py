"""Derivatives without a descent: guarded, plain where nothing is compiled, errors, and what they are for."""

from __future__ import annotations

import copy
import functools
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spen.derivatives import Derivatives
from spen.gradients import NotTwiceDifferentiable
from tests.test_derivatives import (
    BATCH,
    CALLS,
    Function,
    N,
    Net,
    agree,
    compiled,
    derived,
    leaves,
    loss,
    made,
    made_for,
    plain,
)

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


MUTATIONS: dict[str, Callable[[Reading, pytest.MonkeyPatch], Any]] = {  # each is made on top of those before
    "nested attribute": lambda n, _: setattr(n.config.inner, "beta", 1.5),
    "class attribute": lambda n, patch: patch.setattr(Reading, "shared", 1.5),
    "global": lambda n, patch: patch.setitem(globals(), "FACTOR", 1.5),
    "default of a function": lambda n, _: n.inside.__defaults__[0].__setitem__(0, 1.5),  # type: ignore[index]
    "buffer in place": lambda n, _: n.offset.add_(1.0),  # type: ignore[operator]
    "buffer": lambda n, _: setattr(n, "offset", torch.full((N,), 2.0, dtype=torch.float64)),
    "mode": lambda n, _: n.eval(),
    "hook": lambda n, _: n.second.register_forward_hook(lambda module, given, result: 2 * result),
    "frozen": lambda n, _: n.first.requires_grad_(False),
    "tied": lambda n, _: setattr(n.second, "bias", n.first.bias),
    "layer": lambda n, _: setattr(n, "second", nn.Identity()),
    "method": lambda n, patch: patch.setattr(Net, "forward", lambda self, y, features=None: (y**4).sum(1)),
}


def test_every_mutation_is_seen_at_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    network, y, v = Reading(), made(BATCH, N), made(BATCH, N, grad=False)
    d = made_for(network)
    for _ in range(CALLS):
        before = d.curvature(y, v)
    for name, mutation in MUTATIONS.items():
        mutation(network, monkeypatch)
        if name not in ("frozen", "tied"):
            assert not torch.allclose(before[1], plain(network, y, None)[1]), name
        by = leaves(network, y, None)
        for _ in range(3):
            value, gradient = plain(network, y, None)
            (hv,) = torch.autograd.grad(gradient, y, v, create_graph=True)
            before = d.curvature(y, v)
            agree(list(before), [value, gradient, hv], 1e-11)
            right = derived((hv**2).sum() + loss(value, gradient), by)
            agree(derived((before[2] ** 2).sum() + loss(*before[:2]), by), right, 1e-11)
        assert compiled(d), name


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
    assert d.explain() == "nothing was computed yet"
    assert never.explain() == "no program is made with compile=False"
    default = Derivatives(network)
    assert default.explain() == "no program was made: only inputs on a GPU get one, or give compile=True"


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
