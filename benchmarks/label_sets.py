"""The estimator with default arguments against two of scikit-learn, on small multi-label tables, by cross-validation.

    python -m benchmarks.label_sets                              # the four tables below
    python -m benchmarks.label_sets emotions scene mine.arff     # tables that `spen train labels --data` reads

Example-averaged F1 in percent, mean ± deviation over seeds of the mean over folds, and the seconds of one fit. The
scikit-learn models get standardised inputs, as SPENClassifier makes them itself, except on tables of words.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold
from sklearn.multioutput import ClassifierChain
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from spen.sklearn import SPENClassifier
from spen.tasks.multilabel.data import read_parts
from spen.tasks.multilabel.tables import Schema

Xy = tuple[np.ndarray, np.ndarray]
PROPERTIES = ((0, 2, 4, 6, 8), (2, 3, 5, 7), (0, 1, 4, 9), (5, 6, 7, 8, 9), (0, 6, 8, 9), (0, 3, 6, 9), (1, 2, 4, 8))


def digits() -> Xy:
    """1,797 digits, 64 pixels; even, prime, square, above four, with a hole, divisible by three, power of two."""
    x, digit = load_digits(return_X_y=True)
    return x, np.stack([np.isin(digit, members) for members in PROPERTIES], 1).astype(int)


def cells() -> Xy:
    """569 samples of breast tissue, 20 measurements; malignant, and ten worst values above their medians."""
    x, benign = load_breast_cancer(return_X_y=True)
    worst = x[:, 20:]
    return x[:, :20], np.column_stack([1 - benign, worst > np.median(worst, 0)]).astype(int)


def words(name: str, rows: int = 1000, labels: int = 20) -> Xy:
    """The first rows of a table of words with the labels that are most frequent in them, none without a label."""
    x, y = read(name, rows)
    y = y[:, np.argsort(-y.sum(0), kind="stable")[:labels]]
    some = y.any(1)
    return x[some][:, x[some].sum(0) >= 5], y[some]


def read(name: str, rows: int | None = None) -> Xy:
    """A table that has a name, or a file."""
    table = read_parts(name)[0]
    found = Schema.of(table).label_sets(table)
    return found.x[:rows].numpy().astype(float), found.y[:rows].numpy().astype(int)


TABLES: dict[str, Callable[[], Xy]] = {
    "cells": cells,
    "digits": digits,
    "bibtex": lambda: words("bibtex"),
    "delicious": lambda: words("delicious"),
}


def models(scaled: bool, seed: int) -> dict[str, Any]:
    """Every model with its default arguments."""
    inputs = StandardScaler() if scaled else FunctionTransformer()
    return {
        "SPENClassifier()": SPENClassifier(random_state=seed, device="cpu"),
        "MLPClassifier()": make_pipeline(inputs, MLPClassifier(random_state=seed)),
        "ClassifierChain(LogisticRegression())": make_pipeline(inputs, ClassifierChain(LogisticRegression())),
    }


def measure(x: np.ndarray, y: np.ndarray, scaled: bool, seeds: int, folds: int) -> dict[str, tuple[list[float], float]]:
    """Model → (the mean F1 over folds for each seed, the seconds of one fit)."""
    scores: dict[str, list[list[float]]] = {}
    seconds: dict[str, list[float]] = {}
    for seed in range(seeds):
        for train, test in KFold(folds, shuffle=True, random_state=seed).split(x):
            for name, model in models(scaled, seed).items():
                began = time.process_time()
                model.fit(x[train], y[train])
                seconds.setdefault(name, []).append(time.process_time() - began)
                f1 = f1_score(y[test], model.predict(x[test]), average="samples", zero_division=0)
                scores.setdefault(name, [[] for _ in range(seeds)])[seed].append(100 * float(f1))
    return {n: ([float(np.mean(s)) for s in found], float(np.mean(seconds[n]))) for n, found in scores.items()}


def main(arguments: list[str] | None = None) -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=list(TABLES), help=f"{', '.join(TABLES)}, a name or a file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("| table | rows | inputs | labels | model | example F1 | s per fit |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.tables:
        x, y = TABLES[name]() if name in TABLES else read(name)
        found = measure(x, y, name not in ("bibtex", "delicious"), options.seeds, options.folds)
        for model, (f1, seconds) in found.items():
            sizes = f"{len(x):,} | {x.shape[1]} | {y.shape[1]}"
            print(
                f"| {name} | {sizes} | `{model}` | {np.mean(f1):.1f} ± {np.std(f1):.1f} | {seconds:.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
