"""Every derivative that is written out here against autograd's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from spen.export.decompositions import decompositions

KERNEL = torch.linspace(-1, 1, 4 * 2 * 3 * 3, dtype=torch.double).sin().view(4, 2, 3, 3)

LAYERS: dict[str, Callable[[Tensor], Tensor]] = {
    "convolution": lambda x: F.conv2d(x, KERNEL, padding=1),
    "strided": lambda x: F.conv2d(x, KERNEL, stride=2, padding=1),
    "strided, with a rest": lambda x: F.conv2d(x, KERNEL, stride=(3, 2), dilation=(1, 2)),
    "grouped": lambda x: F.conv2d(x, KERNEL[:, :1], groups=2, padding=1),
    "more padding than kernel": lambda x: F.conv2d(x, KERNEL, padding=4),
    "transposed": lambda x: F.conv_transpose2d(x, KERNEL.transpose(0, 1), stride=2, padding=1, output_padding=1),
    "one-dimensional": lambda x: F.conv1d(x.flatten(2), KERNEL[..., 0], stride=2),
    "reflected": lambda x: F.pad(x, (3, 2, 1, 0), mode="reflect"),
    "reflected, overlapping": lambda x: F.pad(x, (7, 6, 6, 5), mode="reflect"),
    "replicated": lambda x: F.pad(x, (3, 2, 1, 0), mode="replicate"),
    "averaged": lambda x: F.avg_pool2d(x, 2),
    "averaged, with padding": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1),
    "averaged, divided by 5": lambda x: F.avg_pool2d(x, 2, divisor_override=5),
    "sliced": lambda x: x[:, :, 2:-1, -3:] * x[:, :, -5:5:1, :3].sum(),
    "selected": lambda x: x[:, :, 3] * x[:, :, -1] + x[..., :1, -2],
    "smooth": lambda x: F.silu(F.gelu(F.softplus(F.elu(x), beta=25.0))),
    "bounded": lambda x: F.leaky_relu(torch.tanh(x) - 0.5) + torch.sigmoid(x) + F.relu(x),
    "normalised": lambda x: F.layer_norm(x, (8,)) + F.group_norm(x, 2),
    "probabilities": lambda x: torch.softmax(x, -1) + torch.log_softmax(x, 1),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_the_derivative_is_that_of_autograd(layer: str) -> None:
    x = torch.randn(2, 2, 7, 8, dtype=torch.double)

    def gradient(point: Tensor) -> Tensor:
        leaf = point.detach().requires_grad_()
        return torch.autograd.grad(LAYERS[layer](leaf).sin().sum(), leaf)[0]

    graph = make_fx(gradient, decomposition_table=decompositions())(x)
    left = {str(node.target) for node in graph.graph.nodes if "backward" in str(node.target)}
    assert left == set(), "every derivative is written with operations that are none"
    other = torch.randn_like(x)
    torch.testing.assert_close(graph(other), gradient(other), rtol=0, atol=1e-8)  # softplus has a threshold in torch


def test_what_cannot_be_written_is_left_to_torch() -> None:
    x = torch.randn(1, 2, 7, 7, dtype=torch.double)

    def gradient(point: Tensor) -> Tensor:
        leaf = point.detach().requires_grad_()
        y = F.avg_pool2d(leaf, 2, ceil_mode=True).sin().sum() + leaf[..., ::2].sin().sum()
        return torch.autograd.grad(y, leaf)[0]

    graph = make_fx(gradient, decomposition_table=decompositions())(x)
    left = {str(node.target) for node in graph.graph.nodes if "backward" in str(node.target)}
    assert left == {"aten.avg_pool2d_backward.default", "aten.slice_backward.default"}
    torch.testing.assert_close(graph(x), gradient(x))


def test_the_energy_itself_falls_away() -> None:
    """dE/dy starts from ones of E's shape; written as a fill, they do not need E."""

    def gradient(point: Tensor) -> Tensor:
        leaf = point.detach().requires_grad_()
        return torch.autograd.grad(leaf.square().log().sum(), leaf)[0]

    graph = make_fx(gradient, decomposition_table=decompositions())(torch.rand(3))
    graph.graph.eliminate_dead_code()
    assert "aten.log.default" not in {str(node.target) for node in graph.graph.nodes}
