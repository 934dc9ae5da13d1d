"""The program of one energy for inputs of one shape: ∇E and the products of a strategy, in chunks of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from spen.descent.potential import Potential, identity
from spen.gradients.compiled.errors import INSTEAD, NotTraceable
from spen.gradients.compiled.guards import Guarded
from spen.gradients.compiled.keep import cache_results, only_cached
from spen.gradients.compiled.norms import written_out
from spen.gradients.compiled.simplify import speaks_to_host
from spen.gradients.compiled.trace import Lowering, evaluate, traced, written
from spen.gradients.second_order import Products, a_direction, apart, exact_product, unknown_tensor
from spen.gradients.snapshots import unhooked
from spen.tensors import tensors_of

ProductFunction = Callable[[Potential, Tensor, Tensor], Products]


@dataclass(frozen=True)
class Chunks:
    """Rows 0 … ``batch`` in as few chunks as ``most`` rows each allow, all of ``size`` rows.

    Where they do not come out even, the last chunk begins with rows of the one before: these count once.
    """

    batch: int
    most: int | None = None

    @property
    def number(self) -> int:
        return 1 if self.most is None else max(1, -(-self.batch // self.most))

    @property
    def size(self) -> int:
        return -(-self.batch // self.number)

    def __iter__(self) -> Iterator[tuple[slice, int]]:
        """(the rows of a chunk, how many of its first rows have been in the chunk before)."""
        begin = 0
        while begin < self.batch:
            first = min(begin, self.batch - self.size)
            yield slice(first, first + self.size), begin - first
            begin += self.size

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """One tensor of all rows from the results of the chunks."""
        if len(parts) == 1:
            return parts[0]
        return torch.cat([part[again:] for part, (_, again) in zip(parts, self, strict=True)])


def zeroed(direction: Tensor, again: int) -> Tensor:
    """A direction that is zero in the rows that an earlier chunk has counted."""
    if not again:
        return direction
    return torch.cat([torch.zeros_like(direction[:again]), direction[again:]])


class Program:
    """∇E and the products of one strategy, from the graph of one energy for inputs of one shape.

    Every tensor that the energy reads is an input. With ``keep``, expensive results of ∇E are cached for the products
    (``keep.py``). With ``rows``, the batch goes through in chunks of so many examples at most, and the graph is that of
    one chunk. Without ``product`` there is ∇E alone.
    """

    def __init__(
        self,
        graph: GraphModule,
        potential: Potential,
        point: Tensor,
        tensors: tuple[Tensor, ...],
        product: ProductFunction | None,
        lowering: Lowering,
        *,
        keep: bool = False,
        chunks: Chunks,
    ) -> None:
        graph = written_out(graph)
        place = {id(tensor): i for i, tensor in enumerate(tensors)}  # Dynamo returns the tensors themselves
        if id(point) not in place:
            raise ValueError("the energy does not depend on y: it has no gradient to descend")
        here, leaves = place[id(point)], tensors_of(potential.features)
        # (number among the tensors of the features or among the parameters, number among the inputs of the graph)
        self._features = [(n, place[id(t)]) for n, t in enumerate(leaves) if id(t) in place]
        self._learned = [(n, place[id(t)]) for n, t in enumerate(potential.learned) if id(t) in place]
        moving, learned = [i for _, i in self._features], [i for _, i in self._learned]
        for i, tensor in enumerate(tensors):
            if tensor.requires_grad and i not in (here, *moving, *learned):
                raise unknown_tensor(potential.energy, tensor)
        self._point = tuple(point.shape[1:]), point.dtype  # of each example
        self.chunks = chunks
        # The inputs of the lowered programs behind the point: features first, which have one row per example.
        self._order = [*moving, *(i for i in range(len(tensors)) if i != here and i not in moving)]
        self._moving = len(moving)
        wanted = [i for i in moving if tensors[i].requires_grad]
        self._per_example = 1 + len(wanted)  # results of the products with one row per example; the others are sums
        # For each of these results behind the first: its number among the potential's features and parameters.
        reached = [n for n, leaf in enumerate(leaves) if leaf.requires_grad]
        self._targets = [reached.index(n) for n, i in self._features if i in wanted]
        self._targets += [len(reached) + n for n, _ in self._learned]
        self._number = len(reached) + len(potential.learned)
        self._present: list[bool] = []
        name = f"the energy {type(potential.energy).__name__}"

        def bound(inputs: tuple[Tensor, ...]) -> Potential:
            own = dict(zip(self._order, inputs, strict=True))
            own = {i: t.detach().requires_grad_(i in wanted or i in learned) for i, t in own.items()}

            def energy(y: Tensor, features: Any) -> Tensor:
                return graph(*(y if i == here else own[i] for i in range(len(tensors))))[0]  # type: ignore[no-any-return]

            return Potential(energy, [own[i] for i in wanted], identity, tuple(own[i] for i in learned))  # type: ignore[arg-type,misc]

        def gradient(at: Tensor, *inputs: Tensor) -> list[Tensor]:
            return list(bound(inputs).gradient(at))

        def products(at: Tensor, direction: Tensor, *inputs: Tensor) -> list[Tensor]:
            at_point, rest = product(bound(inputs), at, direction)  # type: ignore[misc]
            self._present = [bar is not None for bar in (at_point, *rest)]
            return [bar.detach() for bar in (at_point, *rest) if bar is not None]

        example = [point.detach().contiguous(), *(tensors[i].detach() for i in self._order)]
        both = (example, [example[0], torch.ones_like(example[0]), *example[1:]])
        graphs = [traced(gradient, both[0], name)]
        if product is not None:
            graphs.append(traced(products, both[1], name))
        changed = written(graphs[0])
        self.constant = [i for n, i in enumerate(self._order, start=1) if n not in changed]
        """The tensors beside the point that the energy only reads, by their number among the inputs of its graph."""
        self.capturable = not any(speaks_to_host(graph) for graph in graphs)
        """Whether a CUDA graph may hold the programs: no operation in them synchronises or reads host memory."""
        self.kept = cache_results(graphs[0], graphs[1]) if keep else 0
        """The number of results of ∇E that are cached for the products; 0 too where none is expensive."""
        with torch.no_grad():
            # Before the programs are lowered, which may change them in place.
            self._kept = lowering(only_cached(graphs[0], self.kept), both[0]) if self.kept else None
            self._gradient = lowering(graphs[0], both[0])
            known = self._gradient(*both[0])[2:] if self.kept else []  # with the strides that they have
            self._product = lowering(graphs[1], [*both[1], *known]) if product is not None else None

    def fits(self, potential: Potential, tensors: tuple[Tensor, ...]) -> bool:
        """Whether the parameters of the potential are the same inputs as when the program was made."""
        learned = potential.learned
        return all(n < len(learned) and tensors[i] is learned[n] for n, i in self._learned)

    def gradient(self, tensors: tuple[Tensor, ...], potential: Potential, point: Tensor) -> tuple[Tensor, ...]:
        """(∇E, E) at a point, and the results to be cached for the product there."""
        if (tuple(point.shape[1:]), point.dtype) != self._point:
            raise RuntimeError(
                f"the domain returns examples of shape {tuple(point.shape[1:])} and {point.dtype}, but the program was "
                f"made for {self._point[0]} and {self._point[1]}: use one Compiled() for each domain"
            )
        inputs = [point.detach().contiguous(), *self._inputs(tensors, potential)]
        with torch.no_grad():
            parts = [self._gradient(*self._cut(inputs, rows, 1 + self._moving)) for rows, _ in self.chunks]
            joined = [self.chunks.joined([part[i] for part in parts]) for i in range(2)]
        return (*joined, *(result for part in parts for result in part[2:]))

    def product(
        self, tensors: tuple[Tensor, ...], potential: Potential, point: Tensor, direction: Tensor, *kept: Tensor
    ) -> Products:
        """H v and ∂⟨v, ∇E⟩ for the features and parameters of the potential. Nothing ``kept``: it is recomputed."""
        assert self._product is not None
        inputs = [point.detach().contiguous(), direction.contiguous(), *self._inputs(tensors, potential)]
        known, here = iter(kept), sum(self._present[: self._per_example])
        rows_of: list[list[Tensor]] = []
        sums: list[Tensor] = []
        with torch.no_grad():
            for rows, again in self.chunks:
                at, towards, *others = self._cut(inputs, rows, 2 + self._moving)
                cached = [next(known) for _ in range(self.kept)] if kept else []
                if self._kept is not None and not kept:
                    cached = self._kept(at, *others)
                found = self._product(at, zeroed(towards, again), *others, *cached)
                del cached
                rows_of.append(list(found[:here]))
                sums = torch._foreach_add(sums, list(found[here:])) if sums else list(found[here:])  # type: ignore[assignment]
            joined = iter([*(self.chunks.joined(parts) for parts in zip(*rows_of, strict=True)), *sums])
        return self._named(joined)

    def _named(self, results: Iterator[Tensor]) -> Products:
        """H v, and the other results in the order of the potential's features and parameters."""
        at_point, *present = (next(results) if there else None for there in self._present)
        rest: list[Tensor | None] = [None] * self._number
        for target, bar in zip(self._targets, present, strict=True):
            rest[target] = bar
        return at_point, rest

    def require_same(
        self,
        tensors: tuple[Tensor, ...],
        potential: Potential,
        point: Tensor,
        plain: tuple[Tensor, Tensor],
        name: str,
        *,
        lowered: bool,
    ) -> None:
        """Refuse a program whose ∇E differs from ``plain``, that of the energy at the same point.

        ``lowered``: products have been given a lower precision.
        """
        gradient, energies = (t.double() for t in plain)
        if not bool(gradient.isfinite().all()):
            return
        # The point and the features are those of one chunk.
        inputs = [point.detach().contiguous(), *self._inputs(tuple(t.detach() for t in tensors), potential)]
        with torch.no_grad():
            found = self._gradient(*inputs)[0].double()
        # Where large terms cancel, rounding is as large as they are.
        least = 100 * torch.finfo(point.dtype).eps * float(energies.abs().max()) * point[:1].numel() ** 0.5
        size = float(gradient.norm())
        if not float((found - gradient).norm()) <= _DIFFERENCE[point.dtype] * size + least:
            raise NotTraceable(f"{name} cannot be traced: its program has another gradient than itself. {INSTEAD}")
        if len(self.constant) < len(self._order):
            with torch.no_grad():
                again = self._gradient(*inputs)[0].double()
            if not float((found - again).norm()) <= 1e-4 * size + least:
                raise NotTraceable(f"{name} changes a tensor that it reads whenever it is evaluated. {INSTEAD}")
        if self._product is not None:
            self._require_same_product(inputs, potential, point, name, lowered=lowered)

    def _require_same_product(
        self, inputs: list[Tensor], potential: Potential, point: Tensor, name: str, *, lowered: bool
    ) -> None:
        """Refuse products that differ from double backprop."""
        assert self._product is not None
        direction = a_direction(point)
        at, *others = inputs
        with torch.no_grad():
            cached = self._kept(at, *others) if self._kept is not None else []
            found = self._named(iter(self._product(at, direction, *others, *cached)))
        with unhooked(potential.parameters()):
            expected = exact_product(potential.detached(), point, direction, search=True)
        if apart(found, expected, point, lowered=lowered):
            raise NotTraceable(
                f"{name} cannot be compiled: its program has another second derivative than double backprop. If it "
                f"reads y under torch.no_grad(), write x.detach() for what is constant. {INSTEAD}"
            )

    def _cut(self, inputs: list[Tensor], rows: slice, moving: int) -> list[Tensor]:
        """The inputs of a chunk: of the first ``moving`` its rows, of the others everything."""
        if self.chunks.number == 1:
            return inputs
        return [*(t[rows] for t in inputs[:moving]), *inputs[moving:]]

    def _inputs(self, tensors: tuple[Tensor, ...], potential: Potential) -> list[Tensor]:
        """The features of the potential, and the other tensors that the energy reads."""
        leaves = tensors_of(potential.features)
        features = [leaves[n].detach() for n, _ in self._features]
        return [*features, *(tensors[i] for i in self._order[self._moving :])]


_DIFFERENCE = {torch.float64: 1e-6, torch.float32: 0.1, torch.bfloat16: 0.5, torch.float16: 0.5}
"""The relative difference that is allowed between ∇E and that of a program, which may round to TF32 or bfloat16."""


@dataclass(frozen=True)
class Bound:
    """A program with the tensors that the energy reads in one descent."""

    program: Program
    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        # Aliases stay with the memory that was read, whatever is assigned to ``.data`` later.
        object.__setattr__(self, "tensors", tuple(t.detach() for t in self.tensors))
        object.__setattr__(self, "_versions", self._now())

    def _now(self) -> list[int]:
        constant = [self.tensors[i] for i in self.program.constant]
        return [0 if t.is_inference() else t._version for t in constant]

    def require_unchanged(self) -> None:
        """The backward pass reads them again. Autograd looks after parameters and features; buffers are not its own."""
        for i, then, now in zip(self.program.constant, self._versions, self._now(), strict=True):  # type: ignore[attr-defined]
            if then != now:
                raise RuntimeError(
                    f"a tensor of shape {tuple(self.tensors[i].shape)} that the energy reads has been modified by an "
                    "inplace operation between the descent and its backward pass"
                )

    @classmethod
    def of(
        cls,
        potential: Potential,
        point: Tensor,
        product: ProductFunction | None,
        lowering: Lowering,
        *,
        keep: bool = False,
        chunks: Chunks | None = None,
    ) -> Bound:
        """A new program for the present state of an energy."""
        cut, leaf = potential.detached(), point.detach().requires_grad_()
        guarded = Guarded(evaluate, f"the energy {type(potential.energy).__name__}")
        with torch.enable_grad():
            entry, tensors = guarded(cut.energy, cut.view, leaf, cut.features)
        chunks = Chunks(point.shape[0]) if chunks is None else chunks
        return cls(Program(entry.graph, cut, leaf, tensors, product, lowering, keep=keep, chunks=chunks), tensors)

    def gradient(self, potential: Potential, point: Tensor) -> tuple[Tensor, ...]:
        """Takes the place of ``Potential.gradient``."""
        return self.program.gradient(self.tensors, potential, point)

    def product(self, potential: Potential, point: Tensor, direction: Tensor, *kept: Tensor) -> Products:
        """Takes the place of a strategy's own product."""
        return self.program.product(self.tensors, potential, point, direction, *kept)

    def addresses(self) -> tuple[int, ...]:
        """Where the tensors are that a CUDA graph would read: all but the point and the features."""
        return tuple(self.tensors[i].data_ptr() for i in self.program._order[self.program._moving :])
