"""The order in which a program's operations run, chosen so that little memory is held at any one time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.fx import GraphModule, Node

WIDTH = 8  # partial orders that are followed up at once
MANY = 1000  # operations from which on a search would take seconds


class Partial(NamedTuple):
    """Some operations, in an order: the most bytes they hold at once, and those they hold in the end."""

    peak: int
    held: int
    order: tuple[int, ...]
    done: int  # a bit for each operation


def release_early(program: GraphModule) -> None:
    """Reorder the operations where that lowers the peak. Programs that write into tensors keep their order."""
    graph = program.graph
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    if len(nodes) > MANY or any(writes(n) for n in nodes):
        return
    memory = Memory.of(nodes)
    best = _searched(memory)
    if best.peak >= memory.peak(range(len(nodes))):
        return
    last = next(n for n in reversed(graph.nodes) if n.op == "placeholder")
    for i in best.order:
        last.append(nodes[i])
        last = nodes[i]


@dataclass(frozen=True)
class Memory:
    """Operations by number: the bytes of each one's result, and which others stand before, use or share it."""

    sizes: list[int]  # 0 for a view, whose memory is another's
    reads: list[int]  # bits: operations that must have run
    owners: list[list[int]]  # the results that an operation looks at, through views or not
    users: list[int]  # bits: operations after which a result is not needed any more; all of them if it is returned

    @classmethod
    def of(cls, nodes: list[Node]) -> Memory:
        number = {node: i for i, node in enumerate(nodes)}
        owner: dict[Node, int] = {}
        users = [0] * len(nodes)
        for node, i in number.items():
            source = node.args[0] if is_view(node) else None
            if not isinstance(source, Node):
                owner[node] = i
            elif source in owner:  # else it is a view of an input
                owner[node] = owner[source]
            if node in owner:
                for user in node.users:
                    users[owner[node]] |= 1 << number.get(user, len(nodes))  # the output never runs
        sizes = [_bytes(node) if owner.get(node) == i else 0 for node, i in number.items()]
        reads = [sum(1 << number[r] for r in node.all_input_nodes if r in number) for node in nodes]
        owners = [
            sorted({owner[r] for r in node.all_input_nodes if r in owner} - {owner.get(node, -1)}) for node in nodes
        ]
        return cls(sizes, reads, owners, users)

    def after(self, partial: Partial, i: int) -> Partial:
        """One more operation."""
        done = partial.done | 1 << i
        held = partial.held + self.sizes[i]
        freed = sum(self.sizes[o] for o in self.owners[i] if not self.users[o] & ~done)
        return Partial(max(partial.peak, held), held - freed, (*partial.order, i), done)

    def peak(self, order: range | tuple[int, ...]) -> int:
        """The most bytes held at once, inputs of the program not counted."""
        partial = Partial(0, 0, (), 0)
        for i in order:
            partial = self.after(partial, i)
        return partial.peak


def _searched(memory: Memory) -> Partial:
    """Grow orders by one operation at a time, and go on with those that held the least so far."""
    following: list[list[int]] = [[] for _ in memory.sizes]
    for i, reads in enumerate(memory.reads):
        for j in _bits(reads):
            following[j].append(i)
    beam = [(Partial(0, 0, (), 0), frozenset(i for i, reads in enumerate(memory.reads) if not reads))]
    for _ in memory.sizes:
        found: dict[int, tuple[Partial, frozenset[int]]] = {}
        for partial, ready in beam:
            for i in ready:
                longer = memory.after(partial, i)
                if longer.done not in found or longer[:2] < found[longer.done][0][:2]:
                    enabled = (j for j in following[i] if not memory.reads[j] & ~longer.done)
                    found[longer.done] = longer, ready - {i} | frozenset(enabled)
        beam = sorted(found.values(), key=lambda both: both[0][:3])[:WIDTH]
    return beam[0][0]


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def is_view(node: Node) -> bool:
    """Whether the result looks at the memory of an operand."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def writes(node: Node) -> bool:
    """Whether the operation changes an operand."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
