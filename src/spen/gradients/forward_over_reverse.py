"""Pearlmutter's product: d/dε ∇E(y + εv) at ε = 0, by forward mode over reverse mode."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.autograd import forward_ad

from spen.descent.potential import Potential
from spen.gradients.replay import Replayed
from spen.gradients.second_order import NotTwiceDifferentiable, Products


class ForwardOverReverse(Replayed):
    """H v and ∂_θ⟨v, ∇E⟩ are the tangents of (∇_y E, ∇_θ E) when y moves along v: exact, with no second graph.

    On a GPU energies with group norms are refused: torch's tangent of these is wrong there. ``Compiled`` writes them
    out.
    """

    forward = True

    def product(self, potential: Potential, point: Tensor, direction: Tensor) -> Products:
        targets: list[Tensor] = [*potential.feature_tensors(), *potential.parameters()]
        leaf = point.detach().requires_grad_()
        # A descent runs inside of an autograd Function, where torch switches forward mode off.
        enabled = forward_ad._set_fwd_grad_enabled(True)
        with torch.enable_grad(), enabled, forward_ad.dual_level(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            dual = forward_ad.make_dual(leaf, direction.to(leaf.dtype))
            try:
                energies = potential(dual)
                # The dual tensor is on the graph between the leaf and the energy: its gradient carries the tangent.
                gradients = torch.autograd.grad(energies.sum(), [dual, *targets], allow_unused=True, create_graph=True)
            except (NotImplementedError, RuntimeError) as error:
                if "forward AD" not in str(error) and "forward mode" not in str(error):
                    raise
                reason = str(error).partition(" Please file")[0].strip().rstrip(".")
                raise NotTwiceDifferentiable(
                    f"the energy cannot be differentiated forward: {reason}. Use gradient=Checkpointed() or "
                    "gradient=Compiled(Checkpointed()), which differentiate backward twice"
                ) from error
            tangents = [None if g is None else forward_ad.unpack_dual(g).tangent for g in gradients]
        at_point, *rest = (None if t is None else t.detach() for t in tangents)
        return at_point, rest
