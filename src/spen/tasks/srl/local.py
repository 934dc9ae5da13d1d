"""F(x) of the appendix: discrete features → 300 → 250 → roles, one arc at a time.

P(r_i | x, p, a) ∝ exp g(r_i, x, p, a). The scores g are the local energy and the start of the descent; the hidden
layer is the arc's features f_r; the averaged word vectors of predicate and argument are f_p and f_a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from spen.tasks.srl.arcs import ArcBatch
from spen.tasks.srl.features import PATH, WORD_SLOTS

if TYPE_CHECKING:
    from spen.tasks.srl.contextual import SentenceEncoder

EMPTY_LOGIT = 30.0
"""The logit of the empty label on invalid arcs: softmax puts all but 1e-12 there. A pruned role has
its negative."""


class Scored(NamedTuple):
    """F(x): scores and features of every arc, and which arcs there are."""

    scores: Tensor  # (B, n, K, A), 0 on invalid arcs
    arc: Tensor  # (B, n, K, H): f_r
    predicate: Tensor  # (B, n, D): f_p
    argument: Tensor  # (B, n, K, D): f_a
    mask: Tensor  # (B, n, K) bool
    predicate_mask: Tensor  # (B, n) bool
    conflicts: Tensor  # (B, n, K, K) bool
    spans: Tensor  # (B, n, K, 2) start and end of the argument, half-open


class WordTable(nn.Module):
    """Word embeddings that start from pretrained vectors; row 0 is padding and stays 0."""

    def __init__(self, start: Tensor) -> None:  # (words, D)
        super().__init__()
        self.table = nn.Embedding.from_pretrained(start.clone(), freeze=False, padding_idx=0)

    @property
    def dimensions(self) -> int:
        return self.table.embedding_dim

    def forward(self, words: Tensor) -> Tensor:
        return self.table(words)


class ArcScorer(nn.Module):
    """e = Σ features + W [words];  f_r = tanh(W_1 tanh(dropout(e)));  g = W_2 f_r  (appendix, 300 → 250 → roles).

    The sum of embeddings is the linear map of the paper: every value of a discrete feature has a column of its own;
    every word slot has a matrix of its own on the shared word vectors. ``encoder`` adds its own description of each
    arc to e. ``feature_dropout`` leaves out discrete features and words of an arc in training, so that the network does
    not depend on single rare values. ``role_paths`` has a row for each path of the feature table, from the row
    ``first_path`` on: the roles that an argument of this path may have.
    """

    role_paths: Tensor | None

    def __init__(
        self,
        features: int,
        roles: int,
        words: WordTable,
        *,
        width: int = 300,
        hidden: int = 250,
        dropout: float = 0.5,
        feature_dropout: float = 0.0,
        encoder: SentenceEncoder | None = None,
        role_paths: Tensor | None = None,  # (paths, roles) bool
        first_path: int = 0,
    ) -> None:
        super().__init__()
        self.register_buffer("role_paths", role_paths)
        self.first_path = first_path
        self.words = words
        self.encoder = encoder
        self.context = None if encoder is None else nn.Linear(encoder.width, width)
        self.features = nn.EmbeddingBag(features, width, mode="sum", padding_idx=0)
        nn.init.normal_(self.features.weight, std=0.05)
        with torch.no_grad():
            self.features.weight[0] = 0
        self.slots = nn.Linear(len(WORD_SLOTS) * words.dimensions, width)
        nn.init.normal_(self.slots.weight, std=0.3 * (len(WORD_SLOTS) * words.dimensions) ** -0.5)
        self.dropout, self.feature_dropout = nn.Dropout(dropout), feature_dropout
        self.hidden = nn.Linear(width, hidden)
        self.roles = nn.Linear(hidden, roles)

    def forward(self, x: ArcBatch) -> Scored:
        embedded = self._summed(self._drop_indices(x.features))
        embedded = embedded + self.slots(self.words(self._drop_indices(x.arc_words)).flatten(3))
        if self.encoder is not None and self.context is not None:
            embedded = embedded + self.context(self.encoder(x, self.words))
        arc = torch.tanh(self.hidden(torch.tanh(self.dropout(embedded))))
        token, valid = self.words(x.words), x.mask[..., None]
        places = x.predicates[..., None].expand(-1, -1, token.shape[-1])
        return Scored(
            scores=self._pruned(self.roles(arc), x.features) * valid,
            arc=arc * valid,
            predicate=token.gather(1, places) * x.predicate_mask[..., None],
            argument=span_means(token, x.spans) * valid,
            mask=x.mask,
            predicate_mask=x.predicate_mask,
            conflicts=x.conflicts,
            spans=x.spans,
        )

    def _pruned(self, scores: Tensor, features: Tensor) -> Tensor:  # (B, n, K, A), (B, n, K, SLOTS)
        if self.role_paths is None:
            return scores
        path = (features[..., PATH].long() - self.first_path).clamp(min=0)  # padding has no path
        return torch.where(self.role_paths[path], scores, -EMPTY_LOGIT)

    def _summed(self, index: Tensor) -> Tensor:  # (B, n, K, SLOTS) → (B, n, K, width)
        if torch.compiler.is_exporting():  # ONNX has no EmbeddingBag; row 0 is 0, so a plain sum is the same
            return nn.functional.embedding(index, self.features.weight).sum(3)
        return self.features(index.flatten(0, 2)).unflatten(0, index.shape[:3])

    def _drop_indices(self, index: Tensor) -> Tensor:
        if not (self.training and self.feature_dropout):
            return index
        return index * (torch.rand(index.shape, device=index.device) >= self.feature_dropout)


def span_means(
    token: Tensor,  # (B, L, D)
    spans: Tensor,  # (B, n, K, 2) half-open
) -> Tensor:  # (B, n, K, D)
    """The mean vector of the tokens of every span; 0 for an empty span. Prefix sums: no loop over lengths."""
    sums = torch.cat([token.new_zeros(token.shape[0], 1, token.shape[2]), token.cumsum(1)], dim=1)

    def at(edge: Tensor) -> Tensor:
        index = edge.flatten(1)[..., None].expand(-1, -1, token.shape[2])
        return sums.gather(1, index).unflatten(1, edge.shape[1:])

    size = (spans[..., 1] - spans[..., 0]).clamp(min=1)[..., None]
    return (at(spans[..., 1]) - at(spans[..., 0])) / size


class ArcInit(nn.Module):
    """l_0 = g: the descent starts at the local answer, and invalid arcs at the empty label."""

    def forward(self, features: Scored) -> Tensor:  # (B, n, K, A)
        empty = torch.zeros_like(features.scores)
        empty[..., 0] = EMPTY_LOGIT
        return torch.where(features.mask[..., None], features.scores, empty)
