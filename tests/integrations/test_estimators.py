"""Networks where an estimator of scikit-learn is expected."""

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from varprop.integrations.estimators import NetworkClassifier, NetworkRegressor


class AsItIs:
    """A calibration that changes nothing: what is checked here is how an estimator behaves."""

    def fit(self, net, held_out, request):
        return net

    def __repr__(self):
        return "AsItIs()"  # test ids are the same in every process


X, LABELS = make_blobs(120, centers=3, random_state=0)
NAMES = np.array(["ant", "bee", "cow"])[LABELS]
Y = X[:, 0] + 0.3 * np.random.default_rng(0).normal(size=120)


@pytest.mark.second
def test_a_classifier():
    quick = NetworkClassifier(epochs=40, procedure=AsItIs(), random_state=0)
    found = make_pipeline(StandardScaler(), quick).fit(X, NAMES)
    probs = found.predict_proba(X)
    assert list(found.classes_) == ["ant", "bee", "cow"]
    assert np.array_equal(found.predict(X), found.classes_[probs.argmax(1)])
    assert found.score(X, NAMES) > 0.85
    again = make_pipeline(StandardScaler(), clone(quick)).fit(X, NAMES)
    assert np.array_equal(again.predict_proba(X), probs)


@pytest.mark.second
def test_it_is_calibrated_on_what_it_was_not_trained_on():
    found = NetworkClassifier(random_state=0, held_out=0.4).fit(X, NAMES)
    assert found.predictor_.net.calibration.examples == 48
    assert cross_val_score(NetworkClassifier(procedure=AsItIs(), random_state=0), X, NAMES, cv=3).min() > 0.7


@pytest.mark.second
def test_a_regression():
    found = NetworkRegressor(random_state=0).fit(X[:90], Y[:90])
    mean, std = found.predict(X[90:], return_std=True)
    assert np.array_equal(found.predict(X[90:]), mean)
    assert found.score(X[90:], Y[90:]) > 0.9
    assert np.mean(np.abs(mean - Y[90:]) < 2 * std) > 0.8
    assert std.min() >= found.predictor_.link.noise_std > 0


def test_a_trained_network_is_calibrated_only():
    torch.manual_seed(0)
    model = nn.Linear(2, 3).eval()
    before = model.weight.clone()
    found = NetworkClassifier(model, procedure=AsItIs()).fit(X.astype(np.float32), NAMES)
    assert torch.equal(model.weight, before)
    assert torch.equal(found.predictor_.net.mean["weight"], before)
    assert np.allclose(found.predict_proba(X[:5]), found.predictor_(torch.tensor(X[:5]).float()).probs, atol=1e-6)


LEFT_OUT = {"check_estimators_pickle": "a propagated network is saved with save_pretrained: nothing is unpickled"}


@pytest.mark.slow  # 100 checks
@pytest.mark.filterwarnings("ignore")  # the checks' own
@parametrize_with_checks(
    [kind(epochs=60, procedure=AsItIs(), random_state=0) for kind in (NetworkClassifier, NetworkRegressor)],
    expected_failed_checks=lambda estimator: LEFT_OUT,
)
def test_conforms(estimator, check):
    check(estimator)
