"""SPENs in the conventions of scikit-learn.

    from spen.sklearn import SPENClassifier
    model = SPENClassifier(random_state=0).fit(X, Y)
    model.predict(X_new); model.plot_energy()

F is an MLP on standardised inputs, Init its scores, the energy local terms plus a network on all outputs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d
from torch import Tensor, nn

from spen.protocols import Objective
from spen.sklearn.base import SPENEstimator, set_parameters
from spen.sklearn.models import EnergyFactory, Kind
from spen.tasks.multilabel.metrics import scores, tune_threshold

__all__ = ["SPENClassifier", "SPENRegressor"]


class SPENClassifier(ClassifierMixin, SPENEstimator):
    """One of several classes (over the simplex), or a set of labels (over the box), by energy minimisation.

    ``hidden`` are the widths of F, ``energy`` the widths of the global network, or a function (outputs, width of F)
    that makes one, or a module E^g(y, features) with features.hidden and features.scores. ``objective`` is a name
    or any ``spen.objectives`` value; ``loss`` is "log", or "f1" for label sets: "auto" is "f1" for these, "log" for
    classes. ``steps``, ``rate`` and ``entropy`` are the descent's; rates are learned from there. Inputs are
    standardised inside. ``max_iter`` epochs follow ``pretrain_iter`` of F alone.
    ``early_stopping`` holds out ``validation_fraction`` and keeps the best epoch; without it training ends when the
    loss has not fallen by ``tol`` for ``n_iter_no_change`` epochs. ``threshold`` cuts label probabilities: a number,
    or "tuned" on the held-out part (needs early_stopping). Sample weights are refused: ``fit`` does not take them.

    After ``fit``: ``classes_``, ``model_`` (a ``spen.SPEN``), ``n_iter_``, ``loss_curve_``, ``validation_scores_``,
    ``threshold_``, and ``energy_history_``, the mean energy at y_0 … y_T of up to 256 training rows.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SPENEstimator._parameter_constraints,
        "entropy": [Interval(Real, 0, None, closed="neither")],
        "threshold": [Interval(Real, 0, 1, closed="neither"), StrOptions({"tuned"})],
    }

    def __init__(
        self,
        hidden: Sequence[int] = (100,),
        energy: nn.Module | EnergyFactory | Sequence[int] = (32,),
        *,
        objective: str | Objective = "end_to_end",
        loss: str = "auto",
        steps: int = 5,
        rate: float = 0.3,
        entropy: float = 1.0,
        dropout: float = 0.5,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.0,
        batch_size: int = 32,
        max_iter: int = 30,
        pretrain_iter: int = 5,
        threshold: float | str = 0.5,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "auto",
        verbose: bool | int = False,
    ) -> None:
        set_parameters(self, locals())

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> SPENClassifier:
        """One epoch over these examples. The first call needs ``classes``, unless y is a table of labels."""
        first = not hasattr(self, "model_")
        if first and classes is None and not _is_label_table(y):
            raise ValueError("classes must be passed on the first call to partial_fit")
        known = None if classes is None else np.unique(np.asarray(classes))
        if not first and known is not None and not np.array_equal(known, self.classes_):
            raise ValueError(f"`classes={classes!r}` is not the same as on last call to partial_fit: {self.classes_!r}")
        self._given_classes = known if first and not _is_label_table(y) else None
        self._partial_fit(X, y, first=first)
        self._after_fit(None)
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """The relaxed output: (N, classes) rows that sum to one, or (N, labels) probabilities of each label."""
        return self._outputs(self._checked(X)).numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Classes (N,), or a table (N, labels) of zeros and ones."""
        output = self.predict_proba(X)
        if self._labels:
            return (output > self.threshold_).astype(int)
        return self.classes_[output.argmax(1)]

    def _encode(self, y: Any, *, first: bool) -> NDArray[Any]:
        check_classification_targets(y)
        labels = _is_label_table(y)
        if first:
            self._labels = labels
        elif labels != self._labels:
            raise ValueError("y must be of the kind the estimator was fitted on: classes, or a table of labels")
        if labels:
            table = np.asarray(y.toarray() if scipy.sparse.issparse(y) else y)
            if not np.isin(table, (0, 1)).all():
                raise ValueError(
                    "a table of labels holds 0 and 1, or booleans, and y holds "
                    f"{', '.join(map(str, np.unique(table).tolist()))}: write 1 where a label is present"
                )
            if first:
                self.classes_ = np.arange(table.shape[1])
            elif table.shape[1] != len(self.classes_):
                raise ValueError(f"y has {table.shape[1]} labels, but the estimator was fitted on {len(self.classes_)}")
            return table
        if type_of_target(y) == "multiclass-multioutput":
            raise ValueError("Unknown label type: several outputs of several classes each are not supported")
        y = column_or_1d(y, warn=True)
        found = np.unique(y)
        if first:
            given = getattr(self, "_given_classes", None)
            self.classes_ = found if given is None else given
            self._given_classes = None
        unseen = np.setdiff1d(found, self.classes_)
        if len(unseen):
            raise ValueError(f"`y` has classes not in `self.classes_`: {list(unseen)} not in {list(self.classes_)}")
        if len(self.classes_) < 2:
            raise ValueError(
                f"This classifier needs samples of at least 2 classes in the data, but the data contains only one "
                f"class: {self.classes_[0]!r}"
            )
        return np.eye(len(self.classes_))[np.searchsorted(self.classes_, y)]

    def _kind(self) -> Kind:
        return "labels" if self._labels else "classes"

    def _validation_score(self, output: Tensor, target: Tensor) -> float:
        if not self._labels:
            return float((output.argmax(1) == target.argmax(1)).double().mean())
        cut = tune_threshold(output, target) if self.threshold == "tuned" else float(self.threshold)
        return scores(output, target, cut).example / 100

    def _after_fit(self, held: tuple[Tensor, Tensor] | None) -> None:
        if self.threshold != "tuned":
            self.threshold_ = float(self.threshold)
        else:
            self.threshold_ = tune_threshold(*held) if self._labels and held is not None else 0.5

    def _check_options(self) -> None:
        if self.threshold == "tuned" and not self.early_stopping:
            raise ValueError('threshold="tuned" needs held-out examples: set early_stopping=True')

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class SPENRegressor(RegressorMixin, SPENEstimator):
    """One or several real outputs, with an energy that ties them together: E = ½‖y − s(x)‖² + E^g(y; F(x)).

    Inputs and targets are standardised inside. The parameters are those of ``SPENClassifier``; the loss is squared.

    After ``fit``: ``model_`` (a ``spen.SPEN``), ``n_iter_``, ``loss_curve_``, ``validation_scores_`` (R²), and
    ``energy_history_``, the mean energy at y_0 … y_T of up to 256 training rows.
    """

    _numeric: ClassVar[bool] = True

    def __init__(
        self,
        hidden: Sequence[int] = (100,),
        energy: nn.Module | EnergyFactory | Sequence[int] = (32,),
        *,
        objective: str | Objective = "end_to_end",
        steps: int = 5,
        rate: float = 0.3,
        dropout: float = 0.0,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.0,
        batch_size: int = 64,
        max_iter: int = 60,
        pretrain_iter: int = 5,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "auto",
        verbose: bool | int = False,
    ) -> None:
        set_parameters(self, locals())

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> SPENRegressor:
        """One epoch over these examples. The first call's targets set the scale."""
        self._partial_fit(X, y, first=not hasattr(self, "model_"))
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """(N,) or (N, outputs), of the shape of the y given to ``fit``."""
        output = self._outputs(self._checked(X)).numpy() * self._scale + self._mean
        return output[:, 0] if self._flat else output

    def _encode(self, y: Any, *, first: bool) -> NDArray[Any]:
        y = np.asarray(y, dtype=float)
        table = y.reshape(len(y), -1)
        if first:
            self._flat = y.ndim == 1
            self._mean, deviation = table.mean(0), table.std(0)
            self._scale = np.where(deviation > 0, deviation, 1.0)
        elif table.shape[1] != len(self._mean):
            raise ValueError(f"y has {table.shape[1]} outputs, but the estimator was fitted on {len(self._mean)}")
        return (table - self._mean) / self._scale

    def _kind(self) -> Kind:
        return "numbers"

    def _validation_score(self, output: Tensor, target: Tensor) -> float:
        # R² in standardised units, averaged over outputs.
        unexplained = (output - target).square().sum(0)
        total = (target - target.mean(0)).square().sum(0).clamp_min(1e-12)
        return float((1 - unexplained / total).mean())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _is_label_table(y: Any) -> bool:
    return type_of_target(y) == "multilabel-indicator"
