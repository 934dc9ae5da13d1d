"""A function of tensors as two programs: its values, and what a backward pass makes of cotangents.

The function and its vector-Jacobian product are traced together, so nothing is computed twice: results of the first
program that the second needs are saved, as autograd would save them. Where a compiler fuses operations, cheap ones are
recomputed instead of being read from memory; torch's own partitioner chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from spen.gradients.compiled.errors import INSTEAD, NotTraceable, reason
from spen.gradients.compiled.fx_nodes import is_view, writes
from spen.gradients.compiled.simplify import ancestors, part_of, simplified
from spen.gradients.compiled.trace import Lowering, traced
from spen.gradients.second_order import vjp

Function = Callable[[list[Tensor]], list[Tensor]]
"""Differentiable: its results are on the graph of its arguments, those that are derivatives included."""


class Joint:
    """``function`` as a program for inputs like ``example``, and its backward pass from the results ``pulled``.

    ``wanted`` are the inputs that cotangents are sent to, ``inner`` those that the function itself differentiates by.
    The second program needs a cotangent of the last result that is ``pulled``. A backward pass from other results, and
    one that is differentiated in turn, runs the function again, operation by operation.
    """

    def __init__(
        self,
        function: Function,
        example: list[Tensor],
        lowering: Lowering,
        *,
        name: str,
        wanted: Sequence[int],
        inner: Sequence[int],
        pulled: Sequence[int] = (),
        fused: bool = False,
    ) -> None:
        self.function, self.wanted, self.pulled = function, list(wanted), list(pulled)
        self._by = {*wanted, *inner}
        self._present: list[bool] = []
        self._backward = None
        cut = [t.detach() for t in example]

        def values(*given: Tensor) -> list[Tensor]:
            return [_own(result, given) for result in function(self._fresh(given))]

        def both(*given: Tensor) -> list[Tensor]:
            at, bars = self._fresh(given[: len(cut)]), given[len(cut) :]
            results = function(at)
            found = vjp([results[i] for i in self.pulled], bars, [at[i] for i in self.wanted])
            self._present = [bar is not None for bar in found]
            return [_own(t, given) for t in (*results, *found) if t is not None]

        program = traced(values, cut, name)
        _refuse_side_effects(program, name)
        results: Any = program.graph.output_node().args[0]
        self.results = len(results)
        with torch.no_grad():
            lowering = _explained(lowering, name)
            if not self.pulled:
                self._values = lowering(program, cut)
                return
            like = [results[i].meta["val"] for i in self.pulled]
            self._bars = [(tuple(t.shape), t.dtype, t.device) for t in like]
            bars = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in self._bars]
            forward, backward = program, traced(both, [*cut, *bars], name)
            if any(writes(node) for node in backward.graph.nodes):  # its values do not follow from its operations
                _forget_results(backward, self.results)
            else:
                forward, backward = split(backward, len(cut), self.results, cheap_again=fused)
            self._values = lowering(forward, cut)
            kept = list(self._values(*cut))[self.results :]  # as they come, in the layout they have
            self._backward = lowering(backward, [*cut, *bars, *kept])

    def _fresh(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Aliases to differentiate by: no input is then reached through another."""
        return [alias(t) if i in self._by else t.detach() for i, t in enumerate(inputs)]

    def __call__(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """The results, on autograd's graph if gradients are enabled."""
        if torch.is_grad_enabled() and self.wanted:
            return _Run.apply(self, *inputs)  # type: ignore[no-untyped-call,no-any-return]
        return tuple(self.values(inputs)[: self.results])

    def values(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The results, then what is saved for the backward pass."""
        with torch.no_grad():
            return list(self._values(*(t.detach() for t in inputs)))

    def backward(
        self, inputs: Sequence[Tensor], kept: Sequence[Tensor], bars: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The cotangents of all inputs; None is zero."""
        others = any(bar is not None for i, bar in enumerate(bars) if i not in self.pulled)
        if self._backward is None or others or bars[self.pulled[-1]] is None or torch.is_grad_enabled():
            create = torch.is_grad_enabled()
            with torch.enable_grad():
                at = self._fresh(inputs)
                found = vjp(self.function(at), bars, [at[i] for i in self.wanted], create_graph=create)
        else:
            given = [
                torch.zeros(shape, dtype=dtype, device=device) if bars[i] is None else bars[i].detach().contiguous()  # type: ignore[union-attr]
                for i, (shape, dtype, device) in zip(self.pulled, self._bars, strict=True)
            ]
            results = iter(self._backward(*(t.detach() for t in inputs), *given, *kept))
            found = [next(results) if there else None for there in self._present]
        places: list[Tensor | None] = [None] * len(inputs)
        for i, bar in zip(self.wanted, found, strict=True):
            places[i] = bar
        return places


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joint: Joint, *inputs: Tensor) -> tuple[Tensor, ...]:
        results = joint.values(inputs)
        ctx.joint, ctx.count = joint, len(inputs)
        ctx.save_for_backward(*inputs, *results[joint.results :])
        ctx.set_materialize_grads(False)
        return tuple(results[: joint.results])

    @staticmethod
    def backward(ctx: Any, *bars: Tensor | None) -> Any:
        saved = ctx.saved_tensors
        return None, *ctx.joint.backward(saved[: ctx.count], saved[ctx.count :], bars)


def alias(tensor: Tensor) -> Tensor:
    """The same values, to be differentiated by: still on the graph of the tensor, where it is on one."""
    return tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()


def _explained(lowering: Lowering, name: str) -> Lowering:
    """A compiler that fails leaves the network as it was."""

    def lowered(program: GraphModule, inputs: list[Tensor]) -> Any:
        try:
            return lowering(program, inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise NotTraceable(f"{name} cannot be compiled: {reason(error)}. {INSTEAD}") from error

    return lowered


def _own(result: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Memory of its own for what would be an input again, or look into one."""
    result = result.detach()
    shared = {t.untyped_storage()._cdata for t in inputs}
    return result.clone() if result.untyped_storage()._cdata in shared else result


def _refuse_side_effects(program: GraphModule, name: str) -> None:
    """A backward pass computes things again: it must find what there was."""
    owner: dict[Node, Node] = {}
    for node in program.graph.nodes:
        owner[node] = owner.get(node.args[0], node) if is_view(node) and node.args else node  # type: ignore[arg-type]
        if writes(node) and any(owner[a].op == "placeholder" for a in node.all_input_nodes[:1]):
            raise NotTraceable(f"{name} writes into a tensor that it reads. {INSTEAD}")
        seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if seeded and "attention" not in str(node.target):  # which is marked for its dropout, switched off or not
            raise NotTraceable(f"{name} draws random numbers. {INSTEAD}")


# ── one program for the values, one for the cotangents ──


def split(joint: GraphModule, inputs: int, results: int, *, cheap_again: bool) -> tuple[GraphModule, GraphModule]:
    """The first ``results`` and what is kept, from inputs; the others, from inputs, bars and what was kept."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    outputs: Any = joint.graph.output_node().args[0]
    first, second = outputs[:results], outputs[results:]
    kept = _everything(second, ancestors(first))
    if cheap_again:
        kept = _cheapest(joint, inputs, results, kept)
    return part_of(joint, placeholders[:inputs], [*first, *kept]), part_of(joint, [*placeholders, *kept], second)


def _forget_results(joint: GraphModule, results: int) -> None:
    """Nothing is kept: the cotangents alone, from the inputs and the bars."""
    output = joint.graph.output_node()
    output.args = (output.args[0][results:],)  # type: ignore[index]
    simplified(joint)


def _everything(second: list[Node], early: set[Node]) -> list[Node]:
    """The values that both parts need; views and constants are recomputed."""
    found: set[Node] = set()
    seen: set[Node] = set()
    stack = list(second)
    while stack:
        node = stack.pop()
        if node in seen or node.op != "call_function":
            continue
        seen.add(node)
        if node in early and _has_memory(node):
            found.add(node)
        else:
            stack.extend(node.all_input_nodes)
    return sorted(found)


def _cheapest(joint: GraphModule, inputs: int, results: int, everything: list[Node]) -> list[Node]:
    """The values that torch.compile would save, from which fused kernels recompute the others."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    graph, copies = Graph(), dict[Node, Node]()
    for i, node in enumerate(joint.graph.find_nodes(op="placeholder")):
        copies[node] = graph.placeholder(f"primals_{i + 1}" if i < inputs else f"tangents_{i + 1 - inputs}")
        copies[node].meta = dict(node.meta)
    for node in joint.graph.nodes:
        if node.op not in ("placeholder", "output"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    output: Any = joint.graph.output_node().args[0]
    graph.output([copies[n] for n in output])
    names = {copy.name: node for node, copy in copies.items()}
    try:
        forward, _ = min_cut_rematerialization_partition(GraphModule(joint, graph), (), num_fwd_outputs=results)
    except Exception:  # not a public function: it may ask for more another day
        return everything
    kept: dict[Node, None] = {}
    outputs: Any = forward.graph.output_node().args[0]
    for saved in outputs[results:]:
        node = names.get(saved.name)
        while node is not None and node.op == "call_function" and is_view(node):
            node = node.args[0]  # type: ignore[assignment]
        if node is None:
            return everything
        if node.op == "call_function":
            kept[node] = None
    return sorted(kept)


def _has_memory(node: Node) -> bool:
    """Whether it is a tensor made from others, and no view of one."""
    return bool(node.all_input_nodes) and not is_view(node) and isinstance(node.meta.get("val"), Tensor)
