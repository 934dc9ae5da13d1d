"""Beyond the paper: F(x) that reads the whole sentence for every predicate, and an energy with attention over arcs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from spen.energies import Energy
from spen.tasks.srl.arcs import ArcBatch
from spen.tasks.srl.energy import Network
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


class ArcAttention(Energy):
    """Σ_i MLP([m_i; y_i]; f_i) with m_i = Σ_{j≠i} attention_ij(f) V y_j over all arcs j of the sentence.

    The attention depends on the features alone, with a bias for arcs of the same predicate; the values depend on y. So
    the roles of an arc can depend on the roles of arcs of other predicates.
    """

    def __init__(self, roles: int, arc: int, *, heads: int = 4, size: int = 16, hidden: int = 100) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.query = nn.Linear(arc, heads * size)
        self.key = nn.Linear(arc, heads * size)
        self.value = nn.Linear(roles - 1, heads * size, bias=False)
        self.same = nn.Parameter(torch.linspace(0.0, 3.0, heads))
        self.network = Network(heads * size + roles - 1, arc, hidden=hidden)

    def forward(self, y: Tensor, features: Scored) -> Tensor:
        n, k = y.shape[1:3]
        roles, arcs, mask = y[..., 1:].flatten(1, 2), features.arc.flatten(1, 2), features.mask.flatten(1)
        attention = self.attention(arcs, mask, n, k)
        value = self.value(roles).unflatten(-1, (self.heads, self.size))
        messages = torch.einsum("bhij,bjhs->bihs", attention, value).flatten(2)
        return (self.network(torch.cat([messages, roles], -1), arcs) * mask).sum(1)

    def attention(self, arcs: Tensor, mask: Tensor, n: int, k: int) -> Tensor:  # (B, heads, N, N)
        """Attention weights: rows sum to 1, or to 0 for the only arc of a sentence."""
        query, key = (f(arcs).unflatten(-1, (self.heads, self.size)) for f in (self.query, self.key))
        logits = torch.einsum("bihs,bjhs->bhij", query, key) * self.size**-0.5
        owner = torch.arange(n * k, device=arcs.device) // k
        logits = logits + self.same[:, None, None] * (owner[:, None] == owner)
        eye = torch.eye(n * k, dtype=torch.bool, device=arcs.device)
        visible = mask[:, None, None, :] & ~eye
        # The only arc of a sentence attends to nothing.
        return logits.masked_fill(~visible, -1e4).softmax(-1) * visible
