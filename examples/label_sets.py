"""Label sets with scikit-learn: an energy learns which labels go together.

    python examples/label_sets.py                   # half a minute on two cores; writes label_sets.png

A digit, seen through noise, has nine labels: even, prime, square, … Ten of the 512 label sets exist, one for each
digit; neither model is told. A network that judges each label alone invents sets that no digit has.
"""

import os

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from spen.sklearn import SPENClassifier

EPOCHS = int(os.environ.get("SPEN_EXAMPLE_UPDATES", "400")) // 10
DIGITS = {
    "even": (0, 2, 4, 6, 8),
    "prime": (2, 3, 5, 7),
    "square": (0, 1, 4, 9),
    "big": (5, 6, 7, 8, 9),
    "holed": (0, 6, 8, 9),
    "threefold": (0, 3, 6, 9),
    "Fibonacci": (0, 1, 2, 3, 5, 8),
    "triangular": (0, 1, 3, 6),
    "power of 2": (1, 2, 4, 8),
}
NAMES = np.array(list(DIGITS))
SETS = np.array([[d in members for members in DIGITS.values()] for d in range(10)]).astype(int)  # (10, 9)


def exists(labels: np.ndarray) -> np.ndarray:  # (N, 9) -> (N,) bool
    return (labels[:, None] == SETS).all(-1).any(-1)


def main() -> None:
    images, digits = load_digits(return_X_y=True)
    noisy = images / 16 + np.random.default_rng(0).normal(0, 0.4, images.shape)
    x, x_new, y, y_new = train_test_split(noisy, SETS[digits], test_size=0.4, random_state=0)
    models = {
        "each label alone": MLPClassifier((100, 100), alpha=1.0, max_iter=200, random_state=0),
        "an energy": SPENClassifier(
            (100,), (100, 100), loss="log", steps=10, dropout=0.0, batch_size=64, max_iter=EPOCHS, random_state=0
        ),
    }
    answers = {}
    for name, model in models.items():
        answers[name] = found = np.asarray(model.fit(x, y).predict(x_new))
        f1 = f1_score(y_new, found, average="samples", zero_division=0)
        right = (found == y_new).all(1).mean()
        print(f"{name:16s} F1 {f1:.3f}, {right:.1%} of sets right, {exists(found).mean():.1%} of sets exist")

    alone, energy = answers.values()
    shown = np.flatnonzero(~exists(alone) & (energy == y_new).all(1))[:6]
    figure, axes = plt.subplots(2, 6, figsize=(13, 5), layout="constrained", sharey="row")
    for above, below, i in zip(*axes, shown, strict=True):
        above.imshow(x_new[i].reshape(8, 8), cmap="gray_r", interpolation="bicubic")
        above.set(xticks=[], yticks=[], title=f"a {SETS.tolist().index(y_new[i].tolist())}")
        for column, labels in enumerate((alone[i], energy[i])):
            colours = np.where(labels == y_new[i], "tab:green", "tab:red")
            below.scatter([column] * 9, range(9), c=np.where(labels, colours, "white"), edgecolors=colours, s=90)
        below.set(xlim=(-0.6, 1.6), ylim=(8.6, -0.6), xticks=[0, 1], yticks=range(9))
        below.set(xticklabels=["alone", "energy"], yticklabels=NAMES)
    figure.savefig("label_sets.png", dpi=100)


if __name__ == "__main__":
    main()
