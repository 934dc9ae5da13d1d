"""The estimators keep scikit-learn's conventions, by scikit-learn's own checks and by use."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_multilabel_classification, make_regression
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

import spen
from spen.energies import Energy
from spen.objectives import EndToEnd, binary_log_loss
from spen.sklearn import SPENClassifier, SPENRegressor

SMALL: dict[str, Any] = {
    "hidden": (20,), "energy": (6,), "steps": 2, "learning_rate": 0.03, "batch_size": 64, "pretrain_iter": 2,
    "random_state": 0,
}  # fmt: skip


# No check is expected to fail.
@parametrize_with_checks([SPENClassifier(**SMALL, max_iter=5), SPENRegressor(**SMALL, max_iter=12)])
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def labels() -> tuple[np.ndarray, np.ndarray]:
    return make_multilabel_classification(200, 12, n_classes=5, allow_unlabeled=False, random_state=0)


@pytest.fixture(scope="module")
def fitted(labels: tuple[np.ndarray, np.ndarray]) -> SPENClassifier:
    return SPENClassifier(**SMALL, max_iter=15).fit(*labels)


def test_label_sets(labels: tuple[np.ndarray, np.ndarray], fitted: SPENClassifier) -> None:
    X, Y = labels
    proba, chosen = fitted.predict_proba(X), fitted.predict(X)
    assert proba.shape == chosen.shape == Y.shape
    assert proba.min() >= 0
    assert proba.max() <= 1
    assert np.array_equal(chosen, (proba > 0.5).astype(int))
    assert (chosen == Y).mean() > 0.8
    assert fitted.score(X, Y) == pytest.approx((chosen == Y).all(1).mean())
    assert fitted.classes_.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("values", [(-1, 1), (1, 2), (0, 2)])
def test_labels_other_than_0_and_1_are_refused(labels: tuple[np.ndarray, np.ndarray], values: tuple[int, int]) -> None:
    X, Y = labels
    table = np.where(Y, values[1], values[0])
    told = f"holds 0 and 1, or booleans, and y holds {values[0]}, {values[1]}: write 1 where a label is present"
    for y in (table, scipy.sparse.csr_matrix(table)) if values[0] == 0 else (table,):
        with pytest.raises(ValueError, match=told):
            SPENClassifier(**SMALL).fit(X, y)
        with pytest.raises(ValueError, match=told):
            SPENClassifier(**SMALL).partial_fit(X, y)


def test_booleans_are_0_and_1(labels: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = labels
    plain, booleans = (SPENClassifier(**SMALL, max_iter=2).fit(X, y).predict_proba(X) for y in (Y, Y.astype(bool)))
    assert np.array_equal(plain, booleans)


def test_classes_by_name() -> None:
    X, y = make_blobs(150, centers=3, random_state=0)
    names = np.array(["ant", "bee", "cow"])[y]
    model = SPENClassifier(**SMALL, max_iter=10).fit(X, names)
    assert model.score(X, names) > 0.85
    assert np.allclose(model.predict_proba(X).sum(1), 1)
    assert set(model.predict(X)) <= {"ant", "bee", "cow"}


def test_several_outputs() -> None:
    X, Y = make_regression(200, 6, n_targets=3, noise=1.0, random_state=0)
    model = SPENRegressor(**SMALL, max_iter=30).fit(X, Y)
    assert model.predict(X).shape == Y.shape
    assert model.score(X, Y) > 0.9
    assert SPENRegressor(**SMALL, max_iter=2).fit(X, Y[:, 0]).predict(X).shape == (200,)


def test_the_descent_can_be_seen(labels: tuple[np.ndarray, np.ndarray], fitted: SPENClassifier) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    assert isinstance(fitted.model_, spen.SPEN)
    assert fitted.n_iter_ == len(fitted.loss_curve_)
    three = SPENClassifier(**SMALL, max_iter=3).fit(*labels)
    assert (three.n_iter_, len(three.loss_curve_)) == (3, 3)
    assert fitted.loss_curve_[-1] < fitted.loss_curve_[0]
    with torch.no_grad():
        expected = fitted.model_(torch.as_tensor(labels[0])).energies.mean(1).numpy()
    assert np.allclose(fitted.energy_history_, expected)
    assert np.allclose(fitted.plot_energy().lines[0].get_ydata(), fitted.energy_history_)
    axes = fitted.plot_energy(labels[0][:7])
    assert not np.allclose(axes.lines[0].get_ydata(), fitted.energy_history_)
    assert fitted.plot_energy(ax=axes) is axes


def test_sparse_and_pandas_inputs_give_the_same_answers(labels: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = labels
    dense = SPENClassifier(**SMALL, max_iter=2).fit(X, Y).predict_proba(X)
    sparse = SPENClassifier(**SMALL, max_iter=2).fit(scipy.sparse.csr_matrix(X), scipy.sparse.csr_matrix(Y))
    assert np.allclose(sparse.predict_proba(scipy.sparse.coo_matrix(X)), dense, atol=1e-6)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"word {i}" for i in range(X.shape[1])])
    framed = SPENClassifier(**SMALL, max_iter=2).fit(frame, pandas.DataFrame(Y))
    assert np.allclose(framed.predict_proba(frame), dense)
    assert framed.feature_names_in_[0] == "word 0"


def test_random_state_repeats_and_leaves_torch_alone(labels: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = labels
    torch.manual_seed(7)
    before = torch.get_rng_state()
    a = SPENClassifier(**SMALL, max_iter=2, dropout=0.3).fit(X, Y).predict_proba(X)
    assert torch.equal(torch.get_rng_state(), before)
    b = SPENClassifier(**SMALL, max_iter=2, dropout=0.3).fit(X, Y).predict_proba(X)
    c = SPENClassifier(**{**SMALL, "random_state": 1}, max_iter=2, dropout=0.3).fit(X, Y).predict_proba(X)
    assert np.array_equal(a, b)
    assert not np.allclose(a, c)


def test_warm_start_goes_on_and_a_cold_one_begins_anew(labels: tuple[np.ndarray, np.ndarray]) -> None:
    warm = SPENClassifier(**SMALL, max_iter=3, warm_start=True).fit(*labels)
    first = warm.loss_curve_[-1]
    warm.fit(*labels)
    assert warm.n_iter_ == 6
    assert warm.loss_curve_[-1] < first
    cold = SPENClassifier(**SMALL, max_iter=3).fit(*labels).fit(*labels)
    assert cold.n_iter_ == 3


def test_a_warm_start_takes_new_rates(labels: tuple[np.ndarray, np.ndarray]) -> None:
    def moved(**changes: float) -> float:
        model = SPENClassifier(**SMALL, max_iter=1, warm_start=True).fit(*labels)
        before = [p.detach().clone() for p in model.model_.parameters()]
        model.set_params(**changes).fit(*labels)
        pairs = zip(before, model.model_.parameters(), strict=True)
        return max(float((a - b.detach()).abs().max()) for a, b in pairs)

    assert moved(learning_rate=1e-12) < 1e-9 < 1e-4 < moved()
    assert moved(weight_decay=100.0) != moved()


def test_partial_fit_takes_a_new_rate(labels: tuple[np.ndarray, np.ndarray]) -> None:
    model = SPENClassifier(**SMALL).partial_fit(*labels)
    before = model.predict_proba(labels[0])
    assert np.allclose(model.set_params(learning_rate=1e-12).partial_fit(*labels).predict_proba(labels[0]), before)


def test_partial_fit(labels: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = labels
    model = SPENClassifier(**SMALL)
    for _ in range(8):
        model.partial_fit(X, Y)
    assert model.n_iter_ == 8
    assert model.loss_curve_[-1] < 0.8 * model.loss_curve_[0]
    blobs, y = make_blobs(90, centers=3, random_state=0)
    classes = SPENClassifier(**SMALL)
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        classes.partial_fit(blobs, y)
    classes.partial_fit(blobs[y < 2], y[y < 2], classes=[0, 1, 2]).partial_fit(blobs, y)
    assert classes.predict_proba(blobs).shape == (90, 3)
    with pytest.raises(ValueError, match="classes not in `self.classes_`"):
        classes.partial_fit(blobs, y + 5)
    with pytest.raises(ValueError, match="not the same as on last call"):
        classes.partial_fit(blobs, y, classes=[0, 1])
    with pytest.raises(ValueError, match="does not support early_stopping"):
        SPENRegressor(early_stopping=True).partial_fit(X, X[:, 0])
    assert SPENRegressor(**SMALL).partial_fit(X, X[:, 0]).partial_fit(X, X[:, 0]).n_iter_ == 2


def test_early_stopping_and_the_tuned_threshold(labels: tuple[np.ndarray, np.ndarray]) -> None:
    options = {**SMALL, "early_stopping": True, "validation_fraction": 0.25, "loss": "f1"}
    model = SPENClassifier(**options, threshold="tuned", max_iter=40, n_iter_no_change=3).fit(*labels)
    assert model.n_iter_ < 40
    assert len(model.validation_scores_) == model.n_iter_
    assert 0 < model.threshold_ < 1
    fixed = SPENClassifier(**options, threshold=0.9, max_iter=2).fit(*labels)
    assert fixed.threshold_ == 0.9
    with pytest.raises(ValueError, match="needs held-out examples: set early_stopping=True"):
        SPENClassifier(**SMALL, threshold="tuned", max_iter=1).fit(*labels)
    regressor = SPENRegressor(**SMALL, early_stopping=True, max_iter=3).fit(labels[0], labels[0][:, :2])
    assert len(regressor.validation_scores_) == 3


def test_pickling_cloning_searching_and_pipelines(
    labels: tuple[np.ndarray, np.ndarray], fitted: SPENClassifier
) -> None:
    X, Y = labels
    # Scikit-learn's convention, on bytes made a line ago; the library itself never reads a pickle.
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert clone(fitted).get_params()["hidden"] == (20,)
    search = GridSearchCV(SPENClassifier(**SMALL, max_iter=2), {"steps": [1, 3], "entropy": [0.5, 1.0]}, cv=2)
    assert set(search.fit(X, Y).best_params_) == {"steps", "entropy"}
    pipe = make_pipeline(StandardScaler(), SPENClassifier(**SMALL, max_iter=3))
    assert len(cross_val_score(pipe, X, Y, cv=2)) == 2


class Pairs(Energy):
    """−yᵀ W y: labels that go together."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.01 * torch.randn(outputs, outputs))

    def forward(self, y: Tensor, features: Any) -> Tensor:
        return -((y @ self.weight) * y).sum(1)


def pairs(outputs: int, width: int) -> Pairs:
    return Pairs(outputs)


@pytest.mark.parametrize("energy", [pairs, Pairs(5)], ids=["factory", "module"])
def test_a_custom_energy(labels: tuple[np.ndarray, np.ndarray], energy: Any) -> None:
    model = SPENClassifier(**{**SMALL, "energy": energy}, max_iter=3).fit(*labels)
    found = [m for m in model.model_.modules() if isinstance(m, Pairs)]
    assert len(found) == 1
    assert found[0] is not energy
    pickle.dumps(model)


@pytest.mark.parametrize("objective", ["feedforward", "structured_hinge", "deep_value", EndToEnd(binary_log_loss)])
def test_other_objectives(labels: tuple[np.ndarray, np.ndarray], objective: Any) -> None:
    X, Y = labels
    model = SPENClassifier(**SMALL, objective=objective, max_iter=5).fit(X, Y)
    assert (model.predict(X) == Y).mean() > 0.7


def test_every_number_turns_something(labels: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = labels

    def answer(**changes: Any) -> np.ndarray:
        return SPENClassifier(**{**SMALL, "max_iter": 2, **changes}).fit(X[:80], Y[:80]).predict_proba(X)

    plain = answer()
    changes: list[dict[str, Any]] = [
        {"hidden": (21,)}, {"energy": (7,)}, {"objective": "feedforward"}, {"loss": "log"}, {"steps": 3}, {"rate": 0.6},
        {"entropy": 0.5}, {"dropout": 0.4}, {"learning_rate": 0.02}, {"weight_decay": 0.1}, {"batch_size": 20},
        {"max_iter": 3}, {"pretrain_iter": 1}, {"early_stopping": True},
    ]  # fmt: skip
    for change in changes:
        assert not np.allclose(answer(**change), plain, atol=1e-6), change
    assert np.array_equal(answer(loss="f1"), plain), "auto is f1 for label sets"
    loud = SPENClassifier(**SMALL, max_iter=30, tol=1e9, n_iter_no_change=2, verbose=1).fit(X, Y)
    assert loud.n_iter_ == 3


def test_misuse_ends_in_scikit_learns_errors(labels: tuple[np.ndarray, np.ndarray], fitted: SPENClassifier) -> None:
    X, Y = labels
    with pytest.raises(NotFittedError):
        SPENClassifier().predict(X)
    with pytest.raises(NotFittedError):
        SPENRegressor().plot_energy()
    with pytest.raises(ValueError, match="NaN"):
        SPENClassifier().fit(np.where(X > 1, np.nan, X), Y)
    with pytest.raises(ValueError, match="X has 3 features, but SPENClassifier is expecting 12 features"):
        fitted.predict(X[:, :3])
    with pytest.raises(ValueError, match="at least 2 classes"):
        SPENClassifier().fit(X, np.ones(len(X)))
    with pytest.raises(ValueError, match="Unknown label type"):
        SPENClassifier().fit(X, X[:, 0] + 0.5)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        SPENClassifier().fit(X, Y[:5])
    with pytest.raises(TypeError, match="sample_weight"):
        SPENClassifier().fit(X, Y, sample_weight=np.ones(len(X)))  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="'steps' parameter of SPENClassifier must be"):
        SPENClassifier(steps=0).fit(X, Y)
    with pytest.raises(ValueError, match='loss must be "log" for this kind'):
        SPENClassifier(loss="f1").fit(X, Y[:, 0])
    with pytest.raises(ValueError, match="objective must be"):
        SPENRegressor(objective="deep_value").fit(X, X[:, 0])
    warm = SPENClassifier(**SMALL, max_iter=1, warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match="y has 3 labels, but the estimator was fitted on 5"):
        warm.fit(X, Y[:, :3])
    with pytest.raises(ValueError, match="of the kind the estimator was fitted on"):
        warm.fit(X, Y[:, 0])
    numbers = SPENRegressor(**SMALL, max_iter=1, warm_start=True).fit(X, X[:, :2])
    with pytest.raises(ValueError, match="y has 3 outputs, but the estimator was fitted on 2"):
        numbers.fit(X, X[:, :3])


def test_device(labels: tuple[np.ndarray, np.ndarray]) -> None:
    model = SPENClassifier(**SMALL, max_iter=1).fit(*labels)
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert next(model.model_.parameters()).device.type == expected
    with pytest.raises(ValueError, match="device='nowhere' cannot be used here: Expected one of"):
        SPENClassifier(**SMALL, device="nowhere").fit(*labels)
    with pytest.raises(ValueError, match="device='cuda:99' cannot be used here"):
        SPENClassifier(**SMALL, device="cuda:99").fit(*labels)


@pytest.mark.slow
def test_prediction_costs_at_most_twenty_of_an_mlps() -> None:
    """At the size of Bibtex: 1,836 inputs, 159 labels, 2,515 rows."""
    import time

    random = np.random.default_rng(0)
    X = (random.random((2515, 1836)) < 0.04).astype(np.float32)
    Y = (random.random((2515, 159)) < 0.02).astype(int)
    mlp = MLPClassifier((400,), max_iter=1, batch_size=500).fit(X[:500], Y[:500])
    model = SPENClassifier((400,), (64,), max_iter=1, pretrain_iter=0, random_state=0).fit(X[:500], Y[:500])

    def seconds(predict: Any) -> float:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            predict(X)
            times.append(time.perf_counter() - began)
        return min(times)

    assert seconds(model.predict) <= 20 * seconds(mlp.predict)


@pytest.mark.parametrize("kind", ["float32", "float64", "sparse"])
def test_moments_of_inputs_are_exact(kind: str) -> None:
    X = np.random.default_rng(0).normal(size=(500, 3))
    X[:, 1] += 1e4
    X[:, 2] = 0.1
    y = (X[:, 0] > 0).astype(int)
    given = {"float32": X.astype(np.float32), "float64": X, "sparse": scipy.sparse.csr_matrix(X.astype(np.float32))}[
        kind
    ]
    model = SPENClassifier(**SMALL, max_iter=1).fit(given, y)
    (standardize,) = (m for m in model.model_.modules() if type(m).__name__ == "Standardize")
    np.testing.assert_allclose(standardize.deviation.numpy(), [X[:, 0].std(), X[:, 1].std(), 1.0], rtol=1e-3)
    np.testing.assert_allclose(standardize.mean.numpy(), X.mean(0), rtol=1e-5)
