"""The base class of the scikit-learn estimators: fit, partial_fit and the energy of the descent."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from spen.model import SPEN
from spen.objectives import Feedforward
from spen.protocols import Objective
from spen.sklearn.models import Kind, build, loss_for, mean_energies, objective_for, predict, run_epoch

_FLOATS = (np.float64, np.float32)


class SPENEstimator(BaseEstimator):
    """Parameters, fit and plots that the two estimators share."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden": [list, tuple],
        "energy": [list, tuple, nn.Module, callable],
        "objective": [StrOptions({"end_to_end", "feedforward", "structured_hinge", "deep_value"}), Objective],
        "loss": [str],
        "steps": [Interval(Integral, 1, None, closed="left")],
        "rate": [Interval(Real, 0, None, closed="neither")],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "pretrain_iter": [Interval(Integral, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "device": [str],
        "verbose": ["verbose"],
    }

    loss = "auto"

    if TYPE_CHECKING:  # the constructors of the estimators set their arguments as attributes

        def __getattr__(self, name: str) -> Any: ...

    _numeric: ClassVar[bool] = False

    @abstractmethod
    def _encode(self, y: Any, *, first: bool) -> NDArray[Any]:
        """Targets (N, outputs) as points of the domain; if ``first``, also sets what ``predict`` needs."""

    @abstractmethod
    def _kind(self) -> Kind:
        """The kind of the encoded targets."""

    @abstractmethod
    def _validation_score(self, output: Tensor, target: Tensor) -> float:
        """A score of held-out examples; higher is better."""

    def _after_fit(self, held: tuple[Tensor, Tensor] | None) -> None:
        """Set what is chosen on held-out examples."""

    def _check_options(self) -> None:
        """Refuse options that contradict each other."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Any:
        """Learn from inputs X (N, D), dense or sparse, and targets y (N,) or (N, outputs)."""
        X, target = self._prepare(X, y, first=not (self.warm_start and hasattr(self, "model_")))
        held = None
        if self.early_stopping:
            X, held_X, target, held_target = self._held_out(X, target)
            held = (held_X, torch.as_tensor(held_target))
        self._train(X, target, held)
        return self

    def _partial_fit(self, X: ArrayLike, y: ArrayLike, *, first: bool) -> None:
        if self.early_stopping:
            raise ValueError("partial_fit has no data to hold out: it does not support early_stopping=True")
        X, target = self._prepare(X, y, first=first)
        with self._seeded():
            loss = run_epoch(self.model_, self._objective(), self._optimizer, X, self._tensor(target), self.batch_size)
        self._finish(X, [loss])

    def _prepare(self, X: Any, y: Any, *, first: bool) -> tuple[Any, NDArray[Any]]:
        """Check parameters and data; if ``first``, make a new model and optimiser. Rates are those of now."""
        self._validate_params()
        self._check_options()
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse="csr",
            multi_output=True,
            y_numeric=self._numeric,
            dtype=_FLOATS,
            reset=first,
        )
        target = self._encode(y, first=first).astype(X.dtype)
        if first:
            self._begin(X, target.shape[1])
        for group in self._optimizer.param_groups:
            group.update(lr=self.learning_rate, weight_decay=self.weight_decay)
        return X, target

    def _begin(self, X: Any, outputs: int) -> None:
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self._split_seed = self._seed  # a warm start must hold out the same examples again
        with self._seeded():
            self.model_: SPEN = build(
                self._kind(),
                X,
                outputs,
                hidden=tuple(self.hidden),
                dropout=self.dropout,
                energy=copy.deepcopy(self.energy) if isinstance(self.energy, nn.Module) else self.energy,
                entropy=getattr(self, "entropy", 1.0),
                steps=self.steps,
                rate=self.rate,
                dtype=torch.float32 if X.dtype == np.float32 else torch.float64,
            ).to(self._device())
        self._optimizer = torch.optim.Adam(self.model_.parameters())
        self.n_iter_ = 0
        self.loss_curve_: list[float] = []

    def _held_out(self, X: Any, target: NDArray[Any]) -> tuple[Any, Any, NDArray[Any], NDArray[Any]]:
        strata = target.argmax(1) if self._kind() == "classes" else None
        if strata is not None and np.bincount(strata).min() < 2:
            strata = None
        return train_test_split(
            X, target, test_size=self.validation_fraction, random_state=self._split_seed, stratify=strata
        )

    def _train(self, X: Any, target: NDArray[Any], held: tuple[Any, Tensor] | None) -> None:
        objective, truth = self._objective(), self._tensor(target)
        # Soft F1 is flat where every y is near 0, so F is pretrained on another loss.
        plain = loss_for(self._kind(), "auto" if self._numeric else "log")
        best, best_state, waited = -np.inf, None, 0
        curve: list[float] = []
        self.validation_scores_: list[float] = []
        with self._seeded():
            if not self.loss_curve_ and self.objective != "feedforward":
                for _ in range(self.pretrain_iter):
                    run_epoch(self.model_, Feedforward(plain), self._optimizer, X, truth, self.batch_size)
            for epoch in range(self.max_iter):
                curve.append(run_epoch(self.model_, objective, self._optimizer, X, truth, self.batch_size))
                score = -curve[-1]
                if held is not None:
                    score = self._validation_score(self._outputs(held[0]), held[1])
                    self.validation_scores_.append(score)
                if self.verbose:
                    print(f"epoch {epoch + 1}: loss {curve[-1]:.6g}" + (f", held out {score:.4f}" if held else ""))
                waited = 0 if score > best + self.tol else waited + 1
                if score > best:
                    best = score
                    best_state = copy.deepcopy(self.model_.state_dict()) if held is not None else None
                if waited >= self.n_iter_no_change:
                    break
        if best_state is not None:
            self.model_.load_state_dict(best_state)
        self._after_fit(None if held is None else (self._outputs(held[0]), held[1]))
        self._finish(X, curve)

    def _finish(self, X: Any, curve: list[float]) -> None:
        self.n_iter_ += len(curve)
        self.loss_curve_ += curve
        self.energy_history_ = mean_energies(self.model_, X[:256])

    def _outputs(self, X: Any) -> Tensor:
        return predict(self.model_, self._objective(), X)

    def _checked(self, X: ArrayLike) -> Any:
        check_is_fitted(self, "model_")
        return validate_data(self, X, accept_sparse="csr", dtype=_FLOATS, reset=False)

    def _objective(self) -> Objective:
        loss = loss_for(self._kind(), self.loss, len(getattr(self, "classes_", (0,))))
        return objective_for(self._kind(), self.objective, loss)

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        parameter = next(self.model_.parameters())
        return torch.as_tensor(values).to(parameter.device, parameter.dtype)

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"device={self.device!r} cannot be used here: {str(error).splitlines()[0]}") from None
        return device

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Use this estimator's stream of torch's random numbers, and restore the caller's afterwards."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            try:
                yield
            finally:
                self._seed = int(torch.randint(2**31 - 1, ()))  # so that the next call draws other numbers

    def plot_energy(self, X: ArrayLike | None = None, *, ax: Any = None) -> Any:
        """Draw the mean energy at y_0 … y_T, of the training rows or of X; returns the axes."""
        check_is_fitted(self, "model_")
        values = self.energy_history_ if X is None else mean_energies(self.model_, self._checked(X))
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots()
        ax.plot(range(len(values)), values, marker="o")
        ax.set_xlabel("step t")
        ax.set_ylabel("mean energy E(y_t)")
        return ax

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def set_parameters(estimator: BaseEstimator, arguments: dict[str, Any]) -> None:
    """Set the arguments of ``__init__`` as attributes, as scikit-learn requires."""
    vars(estimator).update({name: value for name, value in arguments.items() if name != "self"})
