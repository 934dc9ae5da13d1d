"""What torch.compile makes of both derivatives, in a descent written for it: stored iterates, replayed backwards.

Per step y = squash(z), g = ∇E(y), h ← decay · h + g, z ← z − rate · h. The way back needs H v and ∂_θ⟨v, ∇E⟩ for one v,
by reverse mode over ∇E (``vjp`` of ``grad``) or by forward mode (``jvp`` of ``grad``). On a GPU the whole step, losses
and F included, is one CUDA graph; where F or the loss waits for the device, the descent and its way back are two.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp
from torch.utils import _pytree as pytree

from benchmarks.measure import Step
from benchmarks.problems import Problem
from benchmarks.systems import Unavailable, system

BACKEND = "inductor"
# Dynamo cannot trace ``jvp`` over ``grad`` of these, and a trace that fails breaks some that come after it.
UNTRACED = (nn.GroupNorm, nn.LayerNorm)
Function = Callable[..., list[Tensor]]


class Generic:
    """A training step of one problem. ``step`` is a function of nothing but the memory that weights and inputs have."""

    def __init__(self, problem: Problem, *, forward: bool) -> None:
        self.problem = problem
        # Parameters of its own in the same memory: autograd ties the others to the streams they were used on.
        self.model = copy.deepcopy(problem.model)
        for mine, theirs in zip(self.model.parameters(), problem.model.parameters(), strict=True):
            mine.data = theirs.data
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.learned = {n: p for n, p in self.model.energy.named_parameters() if p.requires_grad}
        features = self.model.features(problem.x)
        leaves, self.spec = pytree.tree_flatten(features)
        self.wanted = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves]
        self.fixed = [None if wanted else leaf for leaf, wanted in zip(leaves, self.wanted, strict=True)]
        torch._dynamo.reset()  # the limit of recompilations counts all problems together
        options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "backend": BACKEND}
        self.gradient = torch.compile(self._gradient, **options)
        self.product = torch.compile(self._forward_product if forward else self._reverse_product, **options)
        self.descend: Function = self._descend
        self.pull_back: Function = self._pull_back

    # ── the derivatives, as torch.compile sees them ──

    def _energy(self, y: Tensor, moving: list[Tensor], learned: dict[str, Tensor], fixed: list[Any]) -> Tensor:
        given = iter(moving)
        leaves = [next(given) if wanted else f for f, wanted in zip(fixed, self.wanted, strict=True)]
        features = pytree.tree_unflatten(leaves, self.spec)
        return functional_call(self.model.energy, learned, (y, features)).sum()

    def _gradient(self, y: Tensor, moving: list[Tensor], learned: dict[str, Tensor], fixed: list[Any]) -> Tensor:
        return grad(self._energy)(y, moving, learned, fixed)

    def _reverse_product(
        self, y: Tensor, v: Tensor, moving: list[Tensor], learned: dict[str, Tensor], fixed: list[Any]
    ) -> Any:
        return vjp(lambda y, m, w: grad(self._energy)(y, m, w, fixed), y, moving, learned)[1](v)

    def _forward_product(
        self, y: Tensor, v: Tensor, moving: list[Tensor], learned: dict[str, Tensor], fixed: list[Any]
    ) -> Any:
        return jvp(lambda y: grad(self._energy, argnums=(0, 1, 2))(y, moving, learned, fixed), (y,), (v,))[1]

    # ── the descent and its way back: functions of tensors ──

    def _descend(self, z: Tensor, rates: Tensor, *leaves: Tensor) -> list[Tensor]:
        """z_0 … z_T, then h_1 … h_T."""
        moving, fixed, learned = self._cut(leaves)
        z = z.clone()  # Init may return a feature, and then one tensor would be two inputs
        h, points, sums = torch.zeros_like(z), [z], []
        for t in range(self.problem.steps):
            h = self.problem.decay * h + self.gradient(self.problem.squash(z).clone(), moving, learned, fixed)
            z = z - rates[t] * h
            points.append(z)
            sums.append(h)
        return [*points, *sums]

    def _pull_back(self, rates: Tensor, *tensors: Tensor) -> list[Tensor]:
        """Cotangents of z_0, the rates, features and the energy's parameters."""
        steps = self.problem.steps
        points, sums = tensors[: steps + 1], tensors[steps + 1 : 2 * steps + 1]
        from_losses, leaves = tensors[2 * steps + 1 : 3 * steps + 1], tensors[3 * steps + 1 :]
        moving, fixed, learned = self._cut(leaves)
        z_bar, h_bar = torch.zeros_like(points[0]), torch.zeros_like(points[0])
        y_bar, rate_bars = from_losses[-1], []
        totals: list[Tensor] | None = None
        for t in reversed(range(steps)):
            z_bar = z_bar + self._through_squash(points[t + 1], y_bar)
            rate_bars.append(-(z_bar * sums[t]).sum())
            h_bar = h_bar - rates[t] * z_bar
            y = self.problem.squash(points[t]).clone()
            y_bar, moving_bars, learned_bars = self.product(y, h_bar.clone(), moving, learned, fixed)
            found = [*moving_bars, *learned_bars.values()]
            totals = found if totals is None else torch._foreach_add(totals, found)  # type: ignore[assignment]
            h_bar = self.problem.decay * h_bar
            y_bar = y_bar + from_losses[t - 1] if t else y_bar
        z_bar = z_bar + self._through_squash(points[0], y_bar)
        return [z_bar, torch.stack(rate_bars[::-1]), *(totals or [])]

    def _through_squash(self, z: Tensor, bar: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            return torch.autograd.grad(self.problem.squash(leaf), leaf, bar)[0]

    def _cut(self, leaves: Sequence[Tensor]) -> tuple[list[Tensor], list[Any], dict[str, Tensor]]:
        return [leaf.detach() for leaf in leaves], self.fixed, {n: p.detach() for n, p in self.learned.items()}

    # ── the step ──

    def step(self) -> list[Tensor]:
        problem, steps = self.problem, self.problem.steps
        with torch.enable_grad():
            features = self.model.features(problem.x)
            leaves = pytree.tree_leaves(features)
            moving = [leaf for leaf, wanted in zip(leaves, self.wanted, strict=True) if wanted]
            start: Tensor = self.model.init(features)
            rates: Tensor = self.model.minimizer.rule.rates()  # type: ignore[operator]
        with torch.no_grad():
            path = self.descend(start.detach(), rates.detach(), *(m.detach() for m in moving))
        with torch.enable_grad():
            outputs = [problem.squash(z).detach().requires_grad_() for z in path[1 : steps + 1]]
            losses = [problem.loss(y, problem.target).mean() / (steps - t) / steps for t, y in enumerate(outputs)]
            cotangents = torch.autograd.grad(torch.stack(losses).sum(), outputs)
        with torch.no_grad():
            start_bar, rate_bars, *others = self.pull_back(
                rates.detach(), *path, *cotangents, *(m.detach() for m in moving)
            )
        pairs = [(start, start_bar), (rates, rate_bars), *zip(moving, others[: len(moving)], strict=True)]
        roots = [(out, bar) for out, bar in pairs if out.requires_grad]
        found = torch.autograd.grad(
            [out for out, _ in roots], self.parameters, [bar for _, bar in roots], allow_unused=True
        )
        own = dict(zip(map(id, self.learned.values()), others[len(moving) :], strict=True))
        bars = [[b for b in (g, own.get(id(p))) if b is not None] for g, p in zip(found, self.parameters, strict=True)]
        return [sum(b[1:], b[0]) if b else torch.zeros_like(p) for b, p in zip(bars, self.parameters, strict=True)]


def built(problem: Problem, *, forward: bool) -> Step:
    """The step, compiled and on a GPU captured."""
    norms = {type(part).__name__ for part in problem.model.energy.modules() if isinstance(part, UNTRACED)}
    if forward and norms:
        raise Unavailable(f"Dynamo cannot trace jvp over grad of {', '.join(sorted(norms))}")
    made = Generic(problem, forward=forward)
    try:
        made.step()
    except Exception as error:  # Dynamo and inductor fail in many ways
        raise Unavailable(f"torch.compile: {_reason(error)}") from None
    if problem.device.type != "cuda":
        return made.step
    stream = torch.cuda.Stream(problem.device)
    if _waits(made.step, stream):
        made.descend, made.pull_back = _Captured(made.descend, stream), _Captured(made.pull_back, stream)
        return made.step
    captured = _Captured(made.step, stream)
    return lambda: captured()


class _Captured:
    """A function of tensors as a CUDA graph, captured at the first call. Its results are overwritten by the next."""

    def __init__(self, function: Function, stream: torch.cuda.Stream) -> None:
        self.function, self.stream = function, stream
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        if self.graph is None:
            self._capture(inputs)
        if inputs:
            torch._foreach_copy_(self.inputs, list(inputs))
        assert self.graph is not None
        self.graph.replay()
        return self.results

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = [t.detach().clone() for t in inputs]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):  # kernels are chosen before the capture, which a search would break
                self.function(*self.inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.results = self.function(*self.inputs)
        except RuntimeError as error:
            raise Unavailable(f"the step cannot be captured: {_reason(error)}") from error
        self.graph = graph


def _waits(step: Step, stream: torch.cuda.Stream) -> bool:
    """Whether a step that has run before makes the host wait for the device."""
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            step()
            torch.cuda.set_sync_debug_mode("error")
            step()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
    return False


def _reason(error: BaseException) -> str:
    """What happened, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


@system("torch.compile, reverse over reverse")
def reverse_over_reverse(problem: Problem) -> Step:
    return built(problem, forward=False)


@system("torch.compile, forward over reverse")
def forward_over_reverse(problem: Problem) -> Step:
    return built(problem, forward=True)
