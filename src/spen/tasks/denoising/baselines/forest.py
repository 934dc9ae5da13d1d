"""ŷ = c + wᵀ(p − c) + b, with (w, b) from the leaf that the patch p around the pixel falls into.

Filter forests (Fanello et al., "Filter forests for learning data-dependent convolutional kernels", CVPR 2014): trees
that route a patch by simple tests, with a linear filter in each leaf. Here the filter acts on differences to the centre
c, so that its weights sum to one and absolute depth passes through. A leaf is a ridge regression whose penalty depends
on its data: a neighbour pays for its weight in proportion to how far it lies from the truth in this leaf,

    min_w Σ_n (y_n − c_n − wᵀ(p_n − c_n) − b)² + λ Σ_i γ_i w_i²,      γ_i = Σ_n (p_ni − y_n)²,

so that at an edge the far side is dropped and on a flat wall the whole patch is averaged. Nodes split where the sum of
the two children's objectives is smallest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy import linalg

from spen.tasks.denoising.baselines.probes import PROBES, probe_maps
from spen.tasks.denoising.data import Frame
from spen.tasks.denoising.holes import Image, Mask, fill_nearest, fill_smooth

BLOCK = 4096
"""Pixels that are filtered at once: few enough for their patches and filters to stay in a processor's cache."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class ForestConfig:
    """Chosen on development frames of RedKitchen and of the rooms; ``ridge`` is λ."""

    trees: int = 4
    depth: int = 8
    size: int = 11  # of the patch, pixels
    ridge: float = 0.3
    least: int = 400  # samples in a leaf
    tests: int = 24  # candidate splits a node
    judged: int = 4_000  # samples of a node that judge the candidates; the leaf's filter uses all
    samples: int = 200_000  # drawn for each tree

    def __post_init__(self) -> None:
        if self.size < 3 or self.size % 2 == 0:
            raise ValueError(f"a patch has a centre: its size must be odd and at least 3, not {self.size}")
        for name in ("trees", "depth", "least", "tests", "judged", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a forest must be at least 1, not {getattr(self, name)}")
        if not self.ridge > 0:
            raise ValueError(f"the ridge of a forest must be positive, not {self.ridge}")


class Tree(NamedTuple):
    """Nodes in order of creation, the root first; a leaf is its own child."""

    feature: Ints  # (nodes,)
    threshold: Floats  # (nodes,)
    left: Ints  # (nodes,) where feature ≤ threshold
    right: Ints  # (nodes,)
    filters: Floats  # (nodes, size²) over p − c, the bias b in the place of the centre; 0 in inner nodes

    def leaves(self, probes: Floats) -> Ints:  # (N, PROBES) -> (N,)
        """The leaf each row falls into."""
        node = np.zeros(len(probes), np.int32)
        rows = np.arange(len(probes))
        while True:
            low = probes[rows, self.feature[node]] <= self.threshold[node]
            child = np.where(low, self.left[node], self.right[node])
            if (child == node).all():
                return node
            node = child


class Moments(NamedTuple):
    """Sums over the samples of a leaf: Σ d dᵀ, Σ d·t, Σ t² and γ, with t = y − c and d = p − c (1 at the centre).

    The moments of one child are the parent's minus the other's.
    """

    gram: NDArray[np.float64]  # (D, D)
    cross: NDArray[np.float64]  # (D,)
    power: float
    gamma: NDArray[np.float64]  # (D,), 0 for the bias

    @classmethod
    def of(cls, patches: Floats, target: Floats) -> Moments:  # (N, D), (N,)
        gram = (patches.T @ patches).astype(np.float64)
        cross = (patches.T @ target).astype(np.float64)
        power = float(target.astype(np.float64) @ target)
        gamma = np.diag(gram) - 2 * cross + power
        gamma[len(gamma) // 2] = 0.0
        return cls(gram, cross, power, np.maximum(gamma, 0.0))

    def less(self, other: Moments) -> Moments:
        return Moments(*(np.asarray(a) - b for a, b in zip(self, other, strict=True)))  # type: ignore[arg-type]

    def solve(self, ridge: float) -> tuple[NDArray[np.float64], float]:
        """The filter, and the value of its objective."""
        system = self.gram + np.diag(ridge * np.maximum(self.gamma, 0.0))
        # A patch of one constant has no gram at all; the jitter is far below anything that matters elsewhere.
        system[np.diag_indices_from(system)] += 1e-9 * np.trace(system) / len(system) + 1e-12
        weights = linalg.solve(system, self.cross, assume_a="pos", check_finite=False)
        return weights, self.power - float(self.cross @ weights)


class FilterForest:
    """The mean of its trees' predictions. Make one with ``FilterForest.fit`` or ``FilterForest.load``."""

    def __init__(self, config: ForestConfig, trees: list[Tree]) -> None:
        self.config, self.trees = config, trees

    def denoise(self, noisy: Image, valid: Mask) -> Image:  # (H, W), (H, W) -> (H, W)
        filled = fill_nearest(noisy, valid)
        image, maps = filled.copy(), probe_maps(filled, valid)
        every_row, every_column = np.nonzero(valid)
        for first in range(0, len(every_row), BLOCK):
            rows, columns = every_row[first : first + BLOCK], every_column[first : first + BLOCK]
            probes = np.ascontiguousarray(maps[:, rows, columns].T)
            filters: Floats = sum(tree.filters[tree.leaves(probes)] for tree in self.trees)  # type: ignore[assignment]
            patches = _patches(filled, rows, columns, self.config.size)
            image[rows, columns] += np.einsum("nd,nd->n", patches, filters) / len(self.trees)
        return fill_smooth(image, valid)

    @classmethod
    def fit(cls, frames: Iterable[Frame], config: ForestConfig | None = None, seed: int = 0) -> FilterForest:
        """Grow the trees, each on its own sample of the scored pixels of ``frames`` (or of crops)."""
        config = config or ForestConfig()
        prepared = [_Prepared.of(frame) for frame in frames if frame.valid.any()]
        total = sum(len(p.rows) for p in prepared)
        if total < 2 * config.least:
            raise ValueError(f"the frames have {total} scored pixels, but a split needs {2 * config.least} at least")
        trees = []
        for stream in np.random.SeedSequence(seed).spawn(config.trees):
            rng = np.random.default_rng(stream)
            trees.append(_grow(*_sample(prepared, total, config, rng), config, rng))
        return cls(config, trees)

    def save(self, path: str | Path) -> None:
        """As safetensors: arrays, and the configuration as JSON in the header."""
        arrays = {f"{i}.{name}": part for i, tree in enumerate(self.trees) for name, part in tree._asdict().items()}
        save_file(arrays, path, metadata={"forest": json.dumps(asdict(self.config))})

    @classmethod
    def load(cls, path: str | Path) -> FilterForest:
        try:
            with safe_open(path, framework="np") as file:
                config = ForestConfig(**json.loads((file.metadata() or {})["forest"]))
                trees = [Tree(*(file.get_tensor(f"{i}.{name}") for name in Tree._fields)) for i in range(config.trees)]
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: there is no such file") from None
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: is not a filter forest ({error}); make one with FilterForest.save") from None
        return cls(config, trees)


class _Prepared(NamedTuple):
    """A frame ready to be sampled: filled, with its probes and the scored pixels."""

    filled: Image
    maps: Floats  # (PROBES, H, W)
    truth: Image
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]

    @classmethod
    def of(cls, frame: Frame) -> _Prepared:
        noisy, valid, truth, scored = (part[0].numpy() for part in frame[:4])
        filled = fill_nearest(noisy, valid)
        return cls(filled, probe_maps(filled, valid), truth, *np.nonzero(scored))


def _sample(
    prepared: list[_Prepared], total: int, config: ForestConfig, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:  # patches (N, size²), targets (N,), tests (N, PROBES)
    samples = []
    for p in prepared:
        count = min(len(p.rows), round(config.samples * len(p.rows) / total))
        chosen = rng.choice(len(p.rows), count, replace=False)
        rows, columns = p.rows[chosen], p.columns[chosen]
        target = p.truth[rows, columns] - p.filled[rows, columns]
        samples.append((_patches(p.filled, rows, columns, config.size), target, p.maps[:, rows, columns].T))
    patches, targets, tests = (np.concatenate(part) for part in zip(*samples, strict=True))
    return patches, targets, tests


def _patches(image: Image, rows: NDArray[np.intp], columns: NDArray[np.intp], size: int) -> Floats:  # (N, size²)
    """p − c, row by row, with 1 in the place of the centre for the bias."""
    padded = np.pad(image, size // 2, mode="symmetric")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size))
    patches = windows[rows, columns].reshape(len(rows), size * size)
    patches = patches - image[rows, columns][:, None]
    patches[:, size * size // 2] = 1.0
    return patches


def _grow(patches: Floats, target: Floats, tests: Floats, config: ForestConfig, rng: np.random.Generator) -> Tree:
    """Split the root, then its children, each where the candidates' objective is smallest."""
    links: list[list[float]] = []  # feature, threshold, left, right
    filters: list[Floats] = []

    def node(members: NDArray[np.intp], level: int) -> int:
        here = len(links)
        links.append([0, 0.0, here, here])
        filters.append(np.zeros(patches.shape[1], np.float32))
        split = _best_split(patches, target, tests, members, config, rng) if level < config.depth else None
        if split is None:
            weights, _ = Moments.of(patches[members], target[members]).solve(config.ridge)
            filters[here] = weights.astype(np.float32)
        else:
            feature, threshold = split
            low = tests[members, feature] <= threshold
            links[here] = [feature, threshold, node(members[low], level + 1), node(members[~low], level + 1)]
        return here

    node(np.arange(len(target)), 0)
    table = np.array(links, np.float64)
    feature, left, right = (table[:, i].astype(np.int32) for i in (0, 2, 3))
    return Tree(feature, table[:, 1].astype(np.float32), left, right, np.stack(filters))


def _best_split(
    patches: Floats,
    target: Floats,
    tests: Floats,
    members: NDArray[np.intp],
    config: ForestConfig,
    rng: np.random.Generator,
) -> tuple[int, float] | None:
    """The test whose children's ridge objectives have the smallest sum, or None where no test leaves both enough."""
    if len(members) < 2 * config.least:
        return None
    judges = members if len(members) <= config.judged else rng.choice(members, config.judged, replace=False)
    least = max(config.least * len(judges) / len(members), 1)
    p, t, f = patches[judges], target[judges], tests[judges]
    whole = Moments.of(p, t)
    best, chosen = whole.solve(config.ridge)[1], None
    for _ in range(config.tests):
        feature = int(rng.integers(PROBES))
        threshold = float(np.float32(np.quantile(f[:, feature], rng.uniform(0.02, 0.98))))
        low = f[:, feature] <= threshold
        count = int(low.sum())
        if not least <= count <= len(judges) - least:
            continue
        # Moments of the smaller child are summed, those of the larger one are the difference.
        few = low if 2 * count <= len(judges) else ~low
        part = Moments.of(p[few], t[few])
        value = part.solve(config.ridge)[1] + whole.less(part).solve(config.ridge)[1]
        if value < best:
            best, chosen = value, (feature, threshold)
    if chosen is not None:
        low = tests[members, chosen[0]] <= chosen[1]
        if not config.least <= int(low.sum()) <= len(members) - config.least:
            return None
    return chosen
