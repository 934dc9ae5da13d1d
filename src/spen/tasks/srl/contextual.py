"""Beyond the paper: F(x) that reads the whole sentence for every predicate, and an energy of pairs of arcs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from spen.energies import Energy
from spen.tasks.srl.arcs import ArcBatch
from spen.tasks.srl.local import Scored, WordTable

KINDS = 8


def kinship(heads: Tensor, predicates: Tensor) -> Tensor:  # (P, L), (P,) → (P, L)
    """How a token is related to the predicate in the tree.

    0 other, 1 the predicate, 2 child, 3 grandchild, 4 parent, 5 sibling, 6 grandparent, 7 the parent's sibling.
    """
    place = torch.arange(heads.shape[1], device=heads.device).expand_as(heads)
    above = heads.gather(1, heads.clamp(min=0)).masked_fill(heads < 0, -1)
    parent = heads.gather(1, predicates[:, None])
    grandparent = above.gather(1, predicates[:, None])
    kind = torch.zeros_like(heads)
    # Later assignments win, so the closest relation is last.
    for number, related in (
        (7, (heads == grandparent) & (grandparent >= 0)),
        (6, (place == grandparent) & (grandparent >= 0)),
        (5, (heads == parent) & (parent >= 0)),
        (3, above == predicates[:, None]),
        (4, place == parent),
        (2, heads == predicates[:, None]),
        (1, place == predicates[:, None]),
    ):
        kind = torch.where(related, number, kind)
    return kind


class SentenceEncoder(nn.Module):
    """A BiLSTM over words, tags, relations, head words and kinship to the predicate, run once for every predicate.

    An arc reads the states at the predicate and at the head, first and last word of the argument.
    """

    def __init__(
        self,
        words: WordTable,
        tags: int,
        deprels: int,
        *,
        width: int = 200,
        layers: int = 2,
        dropout: float = 0.4,
        word_dropout: float = 0.05,
    ) -> None:
        super().__init__()
        size = 64
        self.tags, self.deprels = nn.Embedding(tags, size), nn.Embedding(deprels, size)
        self.kinds = nn.Embedding(KINDS, size)
        self.project = nn.Linear(2 * words.dimensions + 3 * size, 2 * width)
        self.recurrent = nn.LSTM(
            2 * width, width, layers, batch_first=True, bidirectional=True, dropout=dropout if layers > 1 else 0.0
        )
        self.dropout, self.word_dropout = nn.Dropout(dropout), word_dropout

    @property
    def width(self) -> int:
        """Numbers per arc."""
        return 4 * 2 * self.recurrent.hidden_size

    def forward(self, x: ArcBatch, words: WordTable) -> Tensor:  # (B, n, K, width)
        shape = x.mask.shape
        # Computed once: the number of predicates is on the device, and reading it synchronises.
        real = x.predicate_mask.flatten().nonzero().squeeze(1)  # (P,) of B · n
        place = x.predicates.flatten()[real]
        states = self._encode(x, words, real // shape[1], place)  # (P, L, 2 · width)
        spans, heads, mask = (t.flatten(0, 1)[real] for t in (x.spans, x.argument_heads, x.mask))
        ends = (spans[..., 1] - 1).clamp(min=0)
        index = torch.stack([place[:, None].expand_as(heads), heads, spans[..., 0], ends], -1)  # (P, K, 4)
        read = states.gather(1, index.flatten(1)[..., None].expand(-1, -1, states.shape[-1]))
        arcs = read.unflatten(1, index.shape[1:]).flatten(2) * mask[..., None]
        out = arcs.new_zeros(shape[0] * shape[1], *arcs.shape[1:])
        return out.index_copy(0, real, arcs).unflatten(0, shape[:2])

    def _encode(self, x: ArcBatch, words: WordTable, row: Tensor, place: Tensor) -> Tensor:
        numbers = x.words
        if self.training and self.word_dropout:
            unknown = torch.rand(numbers.shape, device=numbers.device) < self.word_dropout
            numbers = torch.where(unknown & x.token_mask, 1, numbers)
        vectors = words(numbers)
        above = vectors.gather(1, x.heads.clamp(min=0)[..., None].expand_as(vectors)) * (x.heads >= 0)[..., None]
        tokens = torch.cat([vectors, above, self.tags(x.tags), self.deprels(x.deprels)], -1)[row]
        tokens = torch.cat([tokens, self.kinds(kinship(x.heads[row], place))], -1)
        entered = self.dropout(torch.tanh(self.project(self.dropout(tokens))))
        lengths = x.token_mask.sum(1)[row].cpu()
        packed = pack_padded_sequence(entered, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True, total_length=tokens.shape[1])
        return self.dropout(states)


RELATIONS = 3


class ArcPairs(Energy):
    """−½ Σ_{i≠j} Σ_h a_h(i, j) ⟨U_h y_i, V_h y_j⟩ over all arcs of the sentence, by the roles without the empty one.

    a_h(i, j) = ⟨q_h(f_i), k_h(f_j)⟩ / √size + b_h has either sign and is no softmax. Every head serves one relation of
    i and j: the same predicate; the same span at different predicates; all other arcs of different predicates, as a
    mean over the other predicates. E is linear in every y_i: with τ = 1, a rate of 1 and no other term but the local
    one, a step of the descent is a mean-field update.
    """

    def __init__(self, roles: int, arc: int, *, heads: int = 4, size: int = 16) -> None:
        super().__init__()
        self.heads, self.size = RELATIONS * heads, size
        self.query = nn.Linear(arc, self.heads * size)
        self.key = nn.Linear(arc, self.heads * size)
        self.plain = nn.Parameter(torch.randn(self.heads))  # b
        self.left = nn.Linear(roles - 1, self.heads * size, bias=False)  # U
        self.right = nn.Linear(roles - 1, self.heads * size, bias=False)  # V

    def forward(self, y: Tensor, features: Scored) -> Tensor:
        roles = y[..., 1:].flatten(1, 2)
        left, right = self.by_head(self.left(roles)), self.by_head(self.right(roles))
        return -0.5 * (left * (self.weights(features) @ right)).flatten(1).sum(1)

    def by_head(self, values: Tensor) -> Tensor:  # (B, N, heads · size) → (B, heads, N, size)
        """The numbers of every head."""
        return values.unflatten(-1, (self.heads, self.size)).transpose(1, 2)

    def weights(self, features: Scored, place: Tensor | None = None) -> Tensor:  # (B, heads, N, N)
        """a_h(i, j), 0 where the relation of h does not hold; of the arcs at ``place`` (B, M) alone, if given."""
        k = features.mask.shape[2]
        arcs, mask, spans = features.arc.flatten(1, 2), features.mask.flatten(1), features.spans.flatten(1, 2)
        owner = torch.arange(mask.shape[1], device=mask.device).expand_as(mask) // k
        if place is not None:
            arcs, spans = take(arcs, place), take(spans, place)
            mask, owner = mask.gather(1, place), owner.gather(1, place)
        query, key = self.by_head(self.query(arcs)), self.by_head(self.key(arcs))
        weights = query @ key.transpose(-1, -2) * self.size**-0.5 + self.plain[:, None, None]
        others = (features.predicate_mask.sum(1) - 1).clamp(min=1).to(weights.dtype)
        holds = _relations(mask, spans, owner, 1 / others)
        return (weights.unflatten(1, (RELATIONS, -1)) * holds[:, :, None]).flatten(1, 2)


def take(values: Tensor, place: Tensor) -> Tensor:  # (B, N, D), (B, M) → (B, M, D)
    """The rows at these places."""
    return values.gather(1, place[..., None].expand(-1, -1, values.shape[-1]))


def _relations(mask: Tensor, spans: Tensor, owner: Tensor, share: Tensor) -> Tensor:  # (B, RELATIONS, N, N)
    """1 where two different valid arcs have a relation, and ``share`` (B,) for the last relation; 0 elsewhere."""
    different = ~torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    both = mask[:, :, None] & mask[:, None, :] & different
    same = owner[:, :, None] == owner[:, None]
    twins = (spans[:, :, None] == spans[:, None]).all(-1) & ~same
    other = (both & ~same & ~twins) * share[:, None, None]
    return torch.stack([(both & same).to(share.dtype), (both & twins).to(share.dtype), other], 1)
