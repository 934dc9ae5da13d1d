"""One graph of an energy for each state of everything that the energy reads.

``torch.compile``'s front end (Dynamo) traces the Python code of an energy and writes guards for whatever it reads:
attributes of nested objects, class attributes, globals, closures, hooks, shapes, types, autocast and grad mode. The
guards are evaluated before every descent. Where all of them hold, Dynamo returns the graph that was made for this state
and the tensors that the energy would read now: parameters, buffers and any other, which are inputs of the graph and
never part of it. Where one fails, a new graph is made. A look-up takes some 20 µs and launches no kernel.

Dynamo does not guard the methods of classes, metaclasses, the bases of a class, hooks on all modules, environment
variables and a few more: ``Unguarded`` compares these. What Dynamo cannot trace (files, clocks, values of tensors that
Python code depends on) is refused, and so is an energy that changes what it reads when it is evaluated.
"""

from __future__ import annotations

import builtins
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from spen.gradients.compiled.errors import INSTEAD, NotTraceable, reason
from spen.gradients.compiled.unguarded import Unguarded

MANY_STATES = 16
"""Graphs of one function and shape after which its state is assumed to change at every call."""

# ── the shapes that a program is made for ──

Key = tuple[Any, ...]


def signature(tensor: Tensor) -> Key:
    """Shape, type, device, and whether a gradient is wanted."""
    return tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad


def key_of(leaves: list[Any], structure: Any) -> Key:
    """Features as ``flatten`` returns them: structure, signatures and strides of tensors, constants, torch's settings.

    The settings change the kernels of torch and no operation.
    """
    of_leaves = ((*signature(leaf), leaf.stride()) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    cudnn = torch.backends.cudnn
    return structure, *of_leaves, torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic


# ── graphs ──


class Entry:
    """A graph that Dynamo made, and the program that was built from it."""

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph
        self.built: Any = None


class Guarded:
    """``function`` as a graph, chosen by the state of everything that it reads.

    Calling it with the arguments of ``function`` computes nothing. It returns the entry for the present state and the
    tensors that are the inputs of its graph now, in the order of its placeholders. ``results`` is the maximum number of
    tensors that ``function`` returns.
    """

    def __init__(self, function: Callable[..., Any], name: str, results: int = 1) -> None:
        self.function, self.name, self.results = function, name, results
        self.entries: list[Entry] = []
        self._reset()

    def _reset(self) -> None:
        from torch._dynamo.eval_frame import set_eval_frame

        # Dynamo caches graphs by code object: a copy of the code has a cache of its own. With a copy of the globals,
        # the graphs are freed together with this object.
        code = self.function.__code__.replace(co_name=f"{self.function.__name__}_{id(self):x}")
        own = types.FunctionType(code, {**self.function.__globals__, "__builtins__": builtins}, code.co_name)
        self.entries.clear()
        self._unguarded = Unguarded()
        self._compiled = torch.compile(own, backend=self._capture, fullgraph=True, dynamic=False)
        self._own, self._set_mode = own, set_eval_frame

    def __call__(self, *arguments: Any) -> tuple[Entry, tuple[Tensor, ...]]:
        _refuse_modes(self.name)
        if self.entries and self._unguarded.changed():
            self._reset()
        if self.entries:
            _found.latest = None
            self._look_up(*arguments)
            if _found.latest is not None:
                return _found.take()
        if len(self.entries) >= MANY_STATES:
            raise NotTraceable(f"{self.name} reads something that is different at every call. {INSTEAD}")
        return self._trace(*arguments)

    def _look_up(self, *arguments: Any) -> None:
        """As ``torch._dynamo.run`` does: where no graph fits, the function itself runs."""
        before = self._set_mode(False)
        try:
            self._own(*arguments)
        finally:
            self._set_mode(before)

    def _trace(self, *arguments: Any) -> tuple[Entry, tuple[Tensor, ...]]:
        import torch._dynamo as dynamo

        _found.latest = None
        options: dict[str, Any] = {
            "skip_nnmodule_hook_guards": False,
            "automatic_dynamic_shapes": False,  # a number that has changed becomes no input: it is guarded by value
            "specialize_float": True,
            "skip_no_tensor_aliasing_guards_on_parameters": False,  # two parameters may become one
            "recompile_limit": MANY_STATES + 1,
            "record_runtime_overhead": False,
        }
        try:
            with dynamo.config.patch(**options):
                self._compiled(*arguments)
        except Exception as error:
            raise NotTraceable(f"{self.name} cannot be traced: {reason(error)}. {INSTEAD}") from error
        if _found.latest is None:
            raise NotTraceable(f"{self.name} cannot be traced: torch.compile is switched off. {INSTEAD}")
        entry, tensors = _found.take()
        self.entries.append(entry)
        self._unguarded.record(arguments)
        self._look_up(*arguments)
        if _found.latest is None or _found.take()[0] is not entry:
            raise NotTraceable(f"{self.name} changes something that it reads whenever it is evaluated. {INSTEAD}")
        return entry, tensors

    def _capture(self, graph: GraphModule, example: list[Any]) -> Callable[..., Any]:
        """The backend of Dynamo: the function that it calls records the inputs and computes nothing."""
        parts = (node.target for node in graph.graph.nodes if node.op == "call_function")
        own = (str(part) for part in parts if isinstance(part, torch._ops.HigherOrderOperator))
        if part := next((name for name in own if name != "autograd_function_apply"), None):
            raise NotTraceable(
                f"it holds a part that is traced as a function of its own ({part}): torch.utils.checkpoint, a hook, or "
                "control flow of torch"
            )
        (results,) = graph.graph.output_node().args
        if len(results) > self.results:  # type: ignore[arg-type]
            # Dynamo would assign the empty tensors that are returned below in its place.
            raise NotTraceable("it assigns a tensor that it computes to something that stays when the call is over")
        entry, nothing = Entry(graph), tuple(torch.empty(0) for _ in results)  # type: ignore[union-attr]

        def record(*tensors: Tensor) -> Any:
            _found.latest = entry, tensors
            return nothing

        return record


class _Found(threading.local):
    latest: tuple[Entry, tuple[Tensor, ...]] | None = None

    def take(self) -> tuple[Entry, tuple[Tensor, ...]]:
        latest, self.latest = self.latest, None
        assert latest is not None
        return latest


_found = _Found()


def _refuse_modes(name: str) -> None:
    """A mode that intercepts every function of torch would be traced into the program, and intercept that again."""
    if not torch._C._len_torch_function_stack():
        return
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext  # torch.set_default_device is a mode too

    if any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack()):
        raise NotTraceable(f"{name} cannot be traced under a TorchFunctionMode. {INSTEAD}")
