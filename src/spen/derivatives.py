"""The gradient and the Hessian-vector product of a scalar network as functions, compiled: without a descent.

For force matching, differential equations and loops of your own. What ``torch.autograd.grad(…, create_graph=True)``
gives, from programs that are traced once, derivatives included, and guarded like those of ``spen.gradients.Compiled``:
a change of anything that the network reads leads to another program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from spen.arguments import require
from spen.gradients.compiled.errors import NotTraceable
from spen.gradients.compiled.guards import Guarded, Key, key_of, signature
from spen.gradients.compiled.states import Built, Call, Slot, watched, without_advice
from spen.gradients.second_order import Graph, NotTwiceDifferentiable
from spen.tensors import flatten, strangers, tensors_of, tree_map

if TYPE_CHECKING:  # the compiler takes seconds to import: only a program needs it
    from spen.gradients.compiled.joint import Joint

__all__ = ["Cross", "Derivatives"]

MANY_SHAPES = 4096
"""Shapes that are remembered: from there on new ones are not counted."""

GRADIENT, CURVATURE, PRODUCT = "gradient", "curvature", "product"
_PULLED = {GRADIENT: (0, 1), CURVATURE: (0, 1, 2), PRODUCT: ()}  # the results whose backward pass is a program


@dataclass(frozen=True)
class Cross:
    """∂⟨v, ∇E⟩ for everything beside y that requires a gradient: the mixed second derivative, along v.

    ``features`` has the structure of the features, with None in the place of a tensor that requires no gradient.
    ``parameters`` has a tensor for each parameter of the network that requires one, by the name that
    ``network.named_parameters()`` gives it (a tied weight has one name); zeros where it has no influence.
    """

    features: Any
    parameters: dict[str, Tensor]


class Derivatives:
    """∇E and H v of a network E, for y and the network's own parameters and features.

    ``network`` is a module that is called as ``network(y, features)``, or as ``network(y)`` where there are none. It
    returns one number for each example, or a tensor of any other shape; E is the sum of its numbers. Features are
    tensors and numbers in tuples, lists, dicts and dataclasses, as everywhere in ``spen``.

    All results can be differentiated any number of times, with respect to y, v, the features, the parameters and any
    other tensor that the network reads. The first backward pass of ``gradient`` and of ``curvature`` is a program too;
    further ones, and that of ``product``, run operation by operation. Under ``torch.no_grad()`` no graph is kept.

    ``compile`` is None: on a GPU. True: on a CPU too, which takes a C++ compiler and ten seconds for each shape; False:
    never. Programs are fused by torch.compile's backend, and their kernels launched one by one; with ``fuse=False``
    they run operation by operation, which needs no compiler and is about as fast as autograd.

    A shape is compiled when it comes back: its first ``patience`` calls run plainly, and so does the next one, which is
    watched. After ``shapes`` shapes new ones stay plain. Calls run plainly too under autocast, within
    ``torch.compile`` and ``torch.func``, for a batch without examples, and for networks that cannot be traced, draw
    random numbers, or change their own state. The values are the same; ``explain()`` says why.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        compile: bool | None = None,
        fuse: bool = True,
        patience: int = 1,
        shapes: int = 32,
    ) -> None:
        require(network, nn.Module, "network", "an nn.Module (y, features) -> numbers", "wrap the function in a module")
        if patience < 0 or shapes < 1:
            raise ValueError(f"Derivatives needs patience ≥ 0 and shapes ≥ 1, not {patience} and {shapes}")
        self.network, self.compile, self.fuse = network, compile, fuse
        self.patience, self.shapes = patience, shapes
        self._slots: dict[Key, Slot] = {}

    def gradient(self, y: Tensor, features: Any = None) -> tuple[Tensor, Tensor]:
        """(the numbers of the network, ∇E): for energies, (E, minus the forces)."""
        value, gradient = self._run(GRADIENT, y, None, features)
        return value, gradient

    def curvature(self, y: Tensor, v: Tensor, features: Any = None) -> tuple[Tensor, Tensor, Tensor]:
        """(the numbers of the network, ∇E, H v), from one program: H v is the change of ∇E along v.

        With v = 1 in one coordinate, H v holds the second derivatives by that coordinate and each other: u_xx, u_xt.
        """
        value, gradient, hv = self._run(CURVATURE, y, v, features)
        return value, gradient, hv

    def product(self, y: Tensor, v: Tensor, features: Any = None) -> tuple[Tensor, Cross]:
        """(H v, ∂⟨v, ∇E⟩ for features and parameters): what implicit differentiation and solvers need.

        Where H v alone is wanted, ``curvature`` does less.
        """
        hv, *rest = self._run(PRODUCT, y, v, features)
        leaves, spec = flatten(features)
        found = iter(rest)
        wanted = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves]
        crossed = pytree.tree_unflatten([next(found) if w else None for w in wanted], spec)
        return hv, Cross(crossed, dict(zip(self._learned(), found, strict=True)))

    def explain(self) -> str:
        """For every shape that was met: whether it is compiled, and if not, why."""
        if lines := [f"{_shape(key)}: {slot.state()}" for key, slot in self._slots.items()]:
            return "\n".join(lines)
        if self.compile is None:
            return "no program was made: only inputs on a GPU get one, or give compile=True"
        return "nothing was computed yet" if self.compile else "no program is made with compile=False"

    def forget(self) -> None:
        """Free all programs."""
        self._slots.clear()

    # ── how it is computed ──

    def _run(self, kind: str, y: Tensor, v: Tensor | None, features: Any) -> tuple[Tensor, ...]:
        self._check(y, v)
        if torch.is_inference_mode_enabled():  # whose tensors cannot enter autograd
            with torch.inference_mode(False), torch.no_grad():
                return self._run(kind, _copy(y), None if v is None else _copy(v), tree_map(_copy, features))
        call = self._looked_up(y, features)
        if call is None:
            return self._plain(kind, y, v, features)
        if call.entry.built is None:
            with watched(call, self._name, y.device) as built:
                return self._plain(kind, y, v, features, built)
        inputs = call.inputs if v is None else [*call.inputs, v]
        ready = self._joint(kind, call, inputs, features)
        if ready is None:
            return self._plain(kind, y, v, features)
        joint, crossed = ready
        results = iter(joint(inputs))
        if kind != PRODUCT:
            return tuple(results)
        return next(results), *(torch.zeros_like(t) if i is None else next(results) for t, i in crossed)

    def _check(self, y: Tensor, v: Tensor | None) -> None:
        for name, tensor in (("y", y), ("v", v)):
            if tensor is not None and not (isinstance(tensor, Tensor) and tensor.is_floating_point()):
                given = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                raise TypeError(f"{name} must be a tensor of floating-point numbers, not {given}")
        if v is not None and (v.shape, v.dtype, v.device) != (y.shape, y.dtype, y.device):
            raise ValueError(
                f"v is a direction in the space of y: shape {tuple(y.shape)}, {y.dtype} on {y.device}, "
                f"not {tuple(v.shape)}, {v.dtype} on {v.device}"
            )

    def _learned(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def _call(self, y: Tensor, features: Any, parameters: dict[str, Tensor] | None = None) -> Tensor:
        given = (y,) if features is None else (y, features)
        if parameters is None:
            value = self.network(*given)
        else:
            value = torch.func.functional_call(self.network, parameters, given)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"the {self._name} must return a tensor of floating-point numbers, not {kind}")
        if not value.requires_grad:
            raise ValueError(f"the {self._name} does not depend on y: it has no gradient")
        return value

    @property
    def _name(self) -> str:
        return f"network {type(self.network).__name__}"

    def _plain(
        self, kind: str, y: Tensor, v: Tensor | None, features: Any, built: Built | None = None
    ) -> tuple[Tensor, ...]:
        """By autograd, without a program. ``built`` gets the operations that can be differentiated only once."""
        graph, second = torch.is_grad_enabled(), kind != GRADIENT
        inputs = [y, *tensors_of(features), *([] if v is None else [v])]
        parameters: dict[str, Tensor] | None = None
        with torch.enable_grad():
            at = _alias(y, graph)
            if kind == PRODUCT:  # by the features themselves, and not through them by what they were made from
                features = tree_map(lambda t: _alias(t, graph) if t.requires_grad else t, features)
                if graph and any(t.grad_fn is not None for t in inputs):
                    parameters = {name: p.view_as(p) for name, p in self._learned().items()}
            value = self._call(at, features, parameters)
            if graph or second or built is not None:
                seen = Graph.of(value, (at, *tensors_of(features)))
                graph = graph and (any(t.requires_grad for t in inputs) or any(t is not at for t in seen.leaves))
                if built is not None:
                    built.once = seen.once_differentiable
                if seen.once_differentiable and (graph or second):
                    raise self._only_once(seen.once_differentiable)
            (gradient,) = torch.autograd.grad(value.sum(), at, create_graph=graph or second, allow_unused=True)
            if gradient is None:
                raise ValueError(f"the {self._name} does not depend on y: it has no gradient")
            if v is None:
                return value if graph else value.detach(), gradient
            if kind == CURVATURE:
                (hv,) = _along(gradient, [at], v, create_graph=graph)
                return (value, gradient, hv) if graph else (value.detach(), gradient.detach(), hv)
            learned = self._learned() if parameters is None else parameters
            targets = [*(t for t in tensors_of(features) if t.requires_grad), *learned.values()]
            return tuple(_along(gradient, [at, *targets], v, create_graph=graph))

    def _only_once(self, operations: list[str]) -> NotTwiceDifferentiable:
        return NotTwiceDifferentiable(
            f"the {self._name} has no second derivative: {' or '.join(operations)} can be differentiated only once. "
            "Its gradient alone is there under torch.no_grad()"
        )

    # ── programs ──

    def _looked_up(self, y: Tensor, features: Any) -> Call | None:
        """The graph for the present state of everything that the network reads, and its inputs; None: no program."""
        wanted = y.is_cuda if self.compile is None else self.compile
        if not wanted or not y.numel() or _within_something_else(y) or strangers(features):
            return None
        leaves = tensors_of(features)
        if any(type(t) not in (Tensor, nn.Parameter) for t in (y, *leaves)):
            return None
        key = (signature(y), y.stride(), *key_of(*flatten(features)))
        slot = self._slots.get(key)
        if slot is None:
            slot = Slot()
            if len(self._slots) < MANY_SHAPES:
                self._slots[key] = slot
        if slot.plain is not None:
            return None
        if slot.guarded is None:
            slot.met += 1
            if slot.met <= self.patience or sum(s.guarded is not None for s in self._slots.values()) >= self.shapes:
                return None
        try:
            return self._guarded(slot, y, leaves, features)
        except NotTraceable as error:
            slot.give_up(error)
            return None

    def _guarded(self, slot: Slot, y: Tensor, leaves: list[Tensor], features: Any) -> Call:
        if slot.guarded is None:
            slot.guarded = Guarded(evaluate, f"the {self._name}")
        leaf, cut = y.detach().requires_grad_(), tree_map(_leaf, features)
        arguments = (self.network, leaf, *([] if features is None else [cut]))
        with torch.enable_grad():
            entry, tensors = slot.guarded(*arguments)
            if entry.built is None and slot.guarded(*arguments)[0] is not entry:
                raise NotTraceable(f"the {self._name} changes its own state when it is called")
        if any(type(t) not in (Tensor, nn.Parameter) for t in tensors):
            raise NotTraceable(f"the {self._name} reads tensors of a class of their own")
        given = {id(own): t for own, t in zip((leaf, *tensors_of(cut)), (y, *leaves), strict=True)}
        places = {id(t): i for i, t in enumerate(tensors)}
        found = [places.get(id(t)) for t in tensors_of(cut)]
        return Call(slot, entry, [given.get(id(t), t) for t in tensors], places[id(leaf)], found)

    def _joint(
        self, kind: str, call: Call, inputs: list[Tensor], features: Any
    ) -> tuple[Joint, list[tuple[Tensor, int | None]]] | None:
        """The program, and for ``product`` the index of each target among the inputs."""
        built: Built = call.entry.built
        if built.plain is not None:
            return None
        reached = tuple(i for i, t in enumerate(inputs) if t.requires_grad)
        graph = torch.is_grad_enabled() and bool(reached)
        if built.once and (graph or kind != GRADIENT):
            raise self._only_once(built.once)
        crossed: list[tuple[Tensor, int | None]] = []
        if kind == PRODUCT:
            pairs = zip(tensors_of(features), call.features, strict=True)
            crossed = [(t, i) for t, i in pairs if t.requires_grad]
            places = {id(t): i for i, t in enumerate(inputs)}
            crossed += [(p, places.get(id(p))) for p in self._learned().values()]
        by = tuple(i for _, i in crossed if i is not None)
        key = (kind, graph, reached, by)
        if key not in built.programs:
            try:
                joint = self._made(kind, call, inputs, reached, by, graph)
                self._require_same(kind, call, inputs, features, joint)
                built.programs[key] = joint
            except NotTraceable as error:
                built.plain = without_advice(error)
                call.slot.why = built.plain
                return None
        return built.programs[key], crossed

    def _require_same(self, kind: str, call: Call, inputs: list[Tensor], features: Any, joint: Joint) -> None:
        """Refuse a program whose results differ from those of autograd."""
        y, v = inputs[call.point], None if kind == GRADIENT else inputs[-1]
        with torch.no_grad():
            pairs = list(zip(joint(inputs), self._plain(kind, y, v, features), strict=False))
        for found, right in pairs[:1] if kind == PRODUCT else pairs:
            allowed = 1e-6 if right.dtype is torch.float64 else 0.05
            finite = bool(right.isfinite().all())  # NaN and infinity are the network's own
            if finite and not float((found - right).norm()) <= allowed * float(right.norm()) + 1e-6:
                raise NotTraceable(f"the {self._name} cannot be traced: its program has other derivatives than itself")

    def _made(
        self, kind: str, call: Call, inputs: list[Tensor], reached: tuple[int, ...], by: tuple[int, ...], graph: bool
    ) -> Joint:
        from spen.gradients.compiled.joint import Joint
        from spen.gradients.compiled.lower import lowered
        from spen.gradients.compiled.norms import written_out

        return Joint(
            _function(kind, written_out(call.entry.graph), call.point, by),
            inputs,
            partial(lowered, fuse=self.fuse, precision=None),
            name=f"the {self._name}",
            wanted=reached,
            inner=(call.point, *by),
            pulled=_PULLED[kind] if graph else (),
            fused=self.fuse,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_slots": {}}  # programs belong to the network they were made for

    def __repr__(self) -> str:
        given = [f"{n}={getattr(self, n)}" for n, d in (("compile", None), ("fuse", True)) if getattr(self, n) is not d]
        return f"Derivatives({', '.join([type(self.network).__name__, *given])})"


def _shape(key: Key) -> str:
    (shape, dtype, device, _), *_ = key
    return f"y {shape}, {str(dtype).removeprefix('torch.')} on {device}"


# ── the functions that are traced ──


def evaluate(network: Any, *given: Any) -> Tensor:
    """The function that Dynamo traces."""
    return network(*given)


def _function(kind: str, graph: Any, point: int, by: tuple[int, ...]) -> Callable[[list[Tensor]], list[Tensor]]:
    """The graph of a network with its derivatives, as a function of all its inputs, and of v as the last."""

    def gradient(at: list[Tensor]) -> list[Tensor]:
        with torch.enable_grad():
            value = graph(*at)[0]
            return [value, *torch.autograd.grad(value.sum(), at[point], create_graph=True)]

    def product(at: list[Tensor]) -> list[Tensor]:
        *inputs, v = at
        first = gradient(inputs)
        second = _along(first[1], [inputs[point], *(inputs[i] for i in by)], v, create_graph=True)
        return [*first, *second] if kind == CURVATURE else second

    return gradient if kind == GRADIENT else product


def _along(gradient: Tensor, by: list[Tensor], v: Tensor, *, create_graph: bool) -> list[Tensor]:
    """∂⟨v, ∇E⟩ for each tensor; a function that is linear has no second derivative."""
    found: tuple[Tensor | None, ...] = (None,) * len(by)
    if gradient.requires_grad:
        found = torch.autograd.grad(gradient, by, v, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(t) if f is None else f for t, f in zip(by, found, strict=True)]


def _alias(tensor: Tensor, graph: bool) -> Tensor:
    return tensor.view_as(tensor) if tensor.requires_grad and graph else tensor.detach().requires_grad_()


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone().requires_grad_(tensor.requires_grad)


def _within_something_else(y: Tensor) -> bool:
    """Whether another transformation follows what is computed, or changes it."""
    return (
        torch.compiler.is_compiling()
        or torch.is_autocast_enabled(y.device.type)
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )
