"""Networks as estimators of scikit-learn: ``fit``, ``predict``, ``predict_proba``, a standard deviation on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from torch import Tensor, nn

from varprop.calibration.calibrate import ADAPTIVE, fit
from varprop.calibration.procedure import Procedure
from varprop.posterior import Posterior
from varprop.prediction.links import Gaussian, Link, Softmax

BATCH = 128


def perceptron(features: int, outputs: int) -> nn.Module:
    """One hidden layer of 64."""
    return nn.Sequential(nn.Linear(features, 64), nn.GELU(), nn.Linear(64, outputs))


class _Network(BaseEstimator):
    """``network`` is a function of the numbers of features and outputs that makes one, or a trained ``nn.Module``.

    What is made is trained with AdamW on a part of the data and calibrated on the rest, a fraction ``held_out``; a
    trained network is only calibrated. ``posterior`` reads one from the trained network; isotropic without it.
    ``procedure`` is that of ``vp.calibrate``.
    ``predictor_`` is the calibrated predictor, which ``vp.Selective``, ``vp.Conformal`` and ``vp.evaluate`` take.
    """

    def __init__(
        self,
        network: Callable[[int, int], nn.Module] | nn.Module = perceptron,
        *,
        epochs: int = 100,
        lr: float = 0.01,
        held_out: float = 0.3,
        posterior: Callable[[nn.Module], Posterior] | None = None,
        procedure: Procedure | None = None,
        random_state: Any = None,
    ) -> None:
        self.network, self.epochs, self.lr, self.held_out = network, epochs, lr, held_out
        self.posterior, self.procedure, self.random_state = posterior, procedure, random_state

    def _fit(self, X: Any, y: Any, outputs: int, link: Link, loss: Callable[..., Tensor], strata: Any) -> Self:
        inputs, target = self._tensor(X), torch.tensor(y)
        target = target.to(inputs.dtype).unsqueeze(1) if target.is_floating_point() else target
        model = self.network
        if not isinstance(model, nn.Module):
            seed = int(check_random_state(self.random_state).randint(2**31))
            rows = np.arange(len(inputs))
            train, rest = train_test_split(rows, test_size=self.held_out, random_state=seed, stratify=strata)
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                model = self.network(inputs.shape[1], outputs).to(inputs.dtype)
                self._train(model, inputs[train], target[train], loss)
            inputs, target = inputs[rest], target[rest]
        found = None if self.posterior is None else self.posterior(model.eval())
        self.predictor_ = fit(
            model.eval(), [(inputs, target)], found, link, procedure=self.procedure or ADAPTIVE, progress=False
        )
        return self

    def _train(self, model: nn.Module, inputs: Tensor, target: Tensor, loss: Callable[..., Tensor]) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(inputs)).split(BATCH):
                optimizer.zero_grad()
                loss(model(inputs[rows]), target[rows]).backward()
                optimizer.step()

    def _tensor(self, X: Any) -> Tensor:
        """As the network takes it: one that is made here takes float64."""
        model = self.network
        own = next((p.dtype for p in model.parameters()), None) if isinstance(model, nn.Module) else None
        return torch.tensor(X, dtype=own or torch.float64)

    def _predict(self, X: Any) -> Any:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return self.predictor_.predict(self._tensor(X), progress=False)


class NetworkClassifier(ClassifierMixin, _Network):
    """A classifier with calibrated probabilities."""

    def fit(self, X: Any, y: Any) -> Self:
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("the data have one class only: a classifier needs two")
        return self._fit(X, labels, len(self.classes_), Softmax(), nn.functional.cross_entropy, labels)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, in the order of ``classes_``."""
        probs = self._predict(X).probs.double().numpy()
        return np.asarray(probs / probs.sum(1, keepdims=True))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        probs = self.predict_proba(X)
        return np.asarray(self.classes_[probs.argmax(1)])


class NetworkRegressor(RegressorMixin, _Network):
    """A regression with the standard deviation of each prediction, noise included."""

    def fit(self, X: Any, y: Any) -> Self:
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        return self._fit(X, y.astype(np.float64), 1, Gaussian(), nn.functional.mse_loss, None)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean; with ``return_std`` the standard deviation too, as of scikit-learn's Gaussian processes."""
        found = self._predict(X)
        mean, std = (x.flatten().double().numpy() for x in (found.mean, found.std))
        return (mean, std) if return_std else mean
