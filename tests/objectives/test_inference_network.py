"""Inference networks: each player's gradient against the definition, and the game on a problem with a known end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import spen
from spen.domains import Box
from spen.energies import Energy
from spen.gradients import Exact
from spen.objectives import InferenceNetwork, binary_log_loss
from spen.rules import GradientDescent


class Net(Energy):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 1))

    def forward(self, y: Tensor, features: Tensor) -> Tensor:
        return self.net(torch.cat([y, features], 1)).squeeze(1)


def model() -> spen.SPEN:
    torch.manual_seed(0)
    minimizer = spen.Minimizer(Box("logits"), GradientDescent(3, 0.5), Exact())
    return spen.SPEN(energy=Net(), init=nn.Linear(3, 3), minimizer=minimizer).double()


def hamming(y: Tensor, target: Tensor) -> Tensor:
    return (y + target - 2 * y * target).sum(1)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(7, 3, dtype=torch.float64), torch.randint(2, (7, 3)).double()


def test_the_players_pull_in_opposite_directions() -> None:
    """Autograd of the whole min-max function, taken twice and with opposite signs, is the definition."""
    net = model()
    x, target = batch()
    answer = torch.sigmoid(net.init(x))
    margin = hamming(answer, target) - net.energy(answer, x) + net.energy(target, x)
    value = margin.clamp_min(0).mean()
    energy, network = list(net.energy.parameters()), list(net.init.parameters())
    descend = torch.autograd.grad(value, energy, retain_graph=True)
    ascend = torch.autograd.grad(margin.mean(), network)
    loss = InferenceNetwork(hamming)(net, x, target)
    found = torch.autograd.grad(loss, [*energy, *network])
    for a, b in zip(found, [*descend, *[-g for g in ascend]], strict=True):
        assert torch.allclose(a, b, atol=1e-10)


def test_the_anchor_adds_its_gradient_to_the_network() -> None:
    net = model()
    x, target = batch()
    plain = InferenceNetwork(hamming)(net, x, target)
    anchored = InferenceNetwork(hamming, anchor=0.3, anchor_loss=binary_log_loss)(net, x, target)
    log = binary_log_loss(torch.sigmoid(net.init(x)), target).mean()
    assert torch.allclose(anchored, plain + 0.3 * log)
    default = InferenceNetwork(hamming, anchor=0.3)(net, x, target)
    assert torch.allclose(default, plain + 0.3 * hamming(torch.sigmoid(net.init(x)), target).mean())


def test_one_player_alone() -> None:
    net = model()
    x, target = batch()
    energy = torch.autograd.grad(
        InferenceNetwork(hamming, player="energy")(net, x, target), net.init.weight, allow_unused=True
    )
    assert energy == (None,)
    loss = InferenceNetwork(hamming, player="network")(net, x, target)
    (found,) = torch.autograd.grad(loss, net.init.weight)  # type: ignore[arg-type]
    (expected,) = torch.autograd.grad(net.energy(torch.sigmoid(net.init(x)), x).mean(), net.init.weight)  # type: ignore[arg-type]
    assert torch.allclose(found, expected)


def test_tuning_the_network_finds_the_minimum_of_a_finished_energy() -> None:
    class Parabola(Energy):
        def forward(self, y: Tensor, features: Tensor) -> Tensor:
            return (y - torch.sigmoid(2 * features)).square().sum(1)

    torch.manual_seed(0)
    minimizer = spen.Minimizer(Box("logits"), GradientDescent(3, 0.5), Exact())
    net = spen.SPEN(energy=Parabola(), init=nn.Linear(3, 3), minimizer=minimizer)
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    objective = InferenceNetwork(hamming, player="network")
    x = torch.randn(64, 3)
    for _ in range(200):
        optimizer.zero_grad()
        objective(net, x, torch.zeros_like(x)).backward()
        optimizer.step()
    assert torch.allclose(net.init.weight, 2 * torch.eye(3), atol=0.1)  # type: ignore[arg-type]
    assert torch.allclose(objective.predict(net, x), torch.sigmoid(2 * x), atol=0.05)


def test_truth_and_misuse() -> None:
    net = model()
    x, target = batch()
    mapped = InferenceNetwork(lambda y, t: hamming(y, t.double()), truth=lambda t: t.double())
    assert torch.equal(mapped(net, x, target.long()), InferenceNetwork(hamming)(net, x, target))
    with pytest.raises(ValueError, match="anchor's weight"):
        InferenceNetwork(hamming, anchor=-1)
    with pytest.raises(ValueError, match='player must be "both"'):
        InferenceNetwork(hamming, player="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Δ per example"):
        InferenceNetwork(lambda y, t: hamming(y, t).mean())(net, x, target)
