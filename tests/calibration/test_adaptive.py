"""The default calibration: it ends where the data say, whatever the start, and never far from a temperature alone."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import varprop as vp
from tests.models import posterior_of
from varprop.calibration import adaptive
from varprop.calibration.adaptive import Candidate, choose
from varprop.calibration.folds import split_folds
from varprop.calibration.procedure import HeldOut
from varprop.calibration.shrinkage import COMMON_STD, Pass, Prior, ScaleObjective, corrected, fit, refine
from varprop.calibration.widths import PosteriorWidth
from varprop.errors import CalibrationError
from varprop.graph.fold import refold

G = torch.Generator().manual_seed(0)
X = torch.randn(1500, 4, generator=G)


def calibrate(net, batches, **options):
    return vp.calibrate(net, batches, **({"progress": False} | options))


@functools.cache
def captured(kind="classes"):
    """A network with a residual of randomness: labels follow a network near to it, and noise."""
    torch.manual_seed(0)
    ends = 3 if kind == "classes" else 1
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, ends)).eval()
    with torch.no_grad():
        model[-1].weight *= 5
    net = vp.propagate(model, posterior_of(model, 0.01))
    net.capture(X)
    return net


def small(kind="classes"):
    return copy.deepcopy(captured(kind))


def labels(temperature=2.0):
    logits = small()(X).mean / temperature
    return torch.multinomial(logits.softmax(-1), 1, generator=torch.Generator().manual_seed(1)).squeeze(-1)


def nll(net, x, y):
    return float(vp.links.Softmax().loss(net(x), y).mean())


@pytest.mark.second
def test_any_start_ends_in_the_same_place():
    x, y = X[:200], labels()[:200]
    found = []
    for factor in (1e-4, 1e4):
        net = small()
        for _, var in net.var:
            var *= factor
        refold(net)
        found.append(calibrate(net, [(x, y)]))
    assert nll(found[0], x, y) == pytest.approx(nll(found[1], x, y), abs=1e-4)
    assert found[0].calibration.chosen == found[1].calibration.chosen


@pytest.mark.parametrize("temperature", [pytest.param(0.4, marks=pytest.mark.second), 2.0])
def test_over_and_underconfident_networks_are_no_worse_than_with_a_temperature(temperature):
    """Labels are drawn from the network at that temperature, so a temperature is all there is to find."""
    y, net = labels(temperature), small()
    fitted = calibrate(net, [(X[:300], y[:300])])
    alone = vp.TemperatureScaled(vp.MeanNetwork(net._model[0])).fit([(X[:300], y[:300])])
    best = nn.functional.cross_entropy(small()(X[500:]).mean / alone.temperature, y[500:])
    assert nll(fitted, X[500:], y[500:]) < float(best) + 0.01
    assert nll(fitted, X[500:], y[500:]) < nll(net, X[500:], y[500:])


def test_where_variance_does_not_help_it_is_left_out():
    plain = Candidate("plain", np.full(100, 1.0))
    temperature = Candidate("temperature", np.linspace(0.8, 1.0, 100))
    width = Candidate("width", temperature.losses + 0.01)
    assert choose([plain, temperature, width]) is temperature
    better = Candidate("scales", temperature.losses - 0.2)
    assert choose([plain, temperature, width, better]) is better
    nearly = Candidate("width", better.losses + 0.019)  # 1.9 nats behind, over a hundred examples
    assert choose([plain, temperature, nearly, better]) is nearly
    assert choose([Candidate("plain", temperature.losses - 0.1), temperature, width]).name == "plain"


def test_a_gain_of_less_than_two_nats_in_all_is_left():
    """The fewer the examples, the larger it may be for each."""
    for count in (10, 1000):
        losses = np.linspace(0.8, 1.0, count)
        plain, temperature = Candidate("plain", losses + 1), Candidate("temperature", losses)
        little, enough = (Candidate("width", losses - nats / count) for nats in (1.9, 2.1))
        assert choose([plain, temperature, little]) is temperature
        assert choose([plain, temperature, enough]) is enough


def test_examples_that_happen_to_be_right_do_not_call_for_any_confidence():
    """Without a prior the best temperature is the lowest that is tried, 0.01."""
    net, x = small(), X[:30]
    assert calibrate(net, [(x, net(x).mean.argmax(-1))]).temperature > 0.05


def test_scales_are_as_free_as_there_are_examples_for_them():
    y = labels()
    names = {count: set(calibrate(small(), [(X[:count], y[:count])]).calibration.nll) for count in (20, 60)}
    assert len(small().scales) == 3
    assert not any(name.startswith("scales") for name in names[20])
    assert "scales ±1" in names[60]
    assert "scales ±3" not in names[60]


def test_freer_scales_are_tried_until_they_lose():
    found = calibrate(small(), [(X, labels())]).calibration.nll
    tried = [found[name] for name in found if name.startswith("scales")]
    assert 1 <= len(tried) < 3  # temperature alone made these labels
    losses = len(X) * (np.array(tried) - np.minimum.accumulate([found["width"], *tried])[:-1])
    assert all(losses[:-1] <= adaptive.WORTH)
    assert losses[-1] > adaptive.WORTH


def test_no_pass_is_made_twice(monkeypatch):
    seen, evaluate = [], ScaleObjective.evaluate

    def noted(self, pieces, *thetas, gradients=True):
        seen.append((gradients, *map(tuple, thetas)))
        return evaluate(self, pieces, *thetas, gradients=gradients)

    monkeypatch.setattr(ScaleObjective, "evaluate", noted)
    calibrate(small(), [(X, labels())])
    assert len(seen) == len(set(seen)) > 3


def test_no_variance_is_the_plain_network():
    net = small()
    PosteriorWidth(net).set(0.0)
    mean, var = net(X[:5])
    assert torch.allclose(mean, net._model[0](X[:5]), atol=1e-6)
    assert float(var.abs().max()) == 0


def test_the_width_is_that_of_the_weights():
    """Setting the width changes what was folded from the weights, as a new network would have it."""
    net, model = small(), small()._model[0]
    wide = PosteriorWidth(net)
    wide.set(0.3)
    means = dict([*net.mean])
    relative = sum(float(v.sum()) for _, v in net.var) / sum(float(means[p].square().sum()) for p, _ in net.var)
    assert math.sqrt(relative) == pytest.approx(0.3, rel=1e-5)
    again = vp.propagate(model, vp.Posterior.from_tensors(means, dict([*net.var])))
    for a, b in zip(net(X[:9]), again(X[:9]), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


def test_newton_finds_the_minimum_of_a_penalised_loss():
    """Least squares: the fit and the fits without a fold are known."""
    rng = np.random.default_rng(0)
    features, noise = rng.normal(size=(400, 3)), rng.normal(size=400)
    targets = features @ [0.5, -0.3, 0.2] + noise
    folds = np.arange(40) % 5

    looks = []

    def evaluate(theta, gradients=True):
        looks.append(theta)
        residuals = features @ theta - targets
        gradients = (residuals[:, None] * features).reshape(40, 10, 3).sum(1)
        return Pass(0.5 * residuals**2, gradients)

    prior = Prior(1.0, 0.0, 1.0)
    precision, centre = prior.precision(3), prior.centre(3)

    def exact(chosen):
        a = features[chosen].T @ features[chosen] + precision
        return np.linalg.solve(a, features[chosen].T @ targets[chosen] + precision @ centre)

    assert not fit(evaluate, np.full(3, 9.0), prior, folds, steps=1).converged
    looks.clear()
    found = fit(evaluate, np.zeros(3), prior, folds, steps=20)
    assert found.converged
    assert fit(evaluate, np.zeros(3), prior, folds, steps=len(looks) - 1).converged  # the last step may be the one
    assert found.theta == pytest.approx(exact(np.ones(400, bool)), abs=0.05)
    for fold, theta in enumerate(found.without):
        assert theta == pytest.approx(exact(np.repeat(folds, 10) != fold), abs=0.06)


def test_a_curvature_is_corrected_by_changes_of_the_slope():
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(4, 4))
    true = factor @ factor.T + np.eye(4)
    steps = rng.normal(size=(30, 4))
    found = corrected(np.diag(np.diag(true)), [(step, true @ step) for step in steps])
    assert found @ steps[-1] == pytest.approx(true @ steps[-1])
    assert np.abs(found - true).max() < 0.01 * np.abs(true).max()
    bent = corrected(true, [(step, -step) for step in steps])  # a loss that bends downwards there
    assert np.linalg.eigvalsh(bent).min() > 0


def test_steps_learn_from_a_wrong_curvature():
    """Given one that is 30 times too large in one direction, Newton's steps alone would creep."""
    true = np.diag([3000.0, 100.0])
    looks = []

    def evaluate(theta, gradients=True):
        looks.append(theta)
        off = theta - [1.0, -1.0]
        return Pass(np.array([0.5 * off @ true @ off]), (true @ off)[None])

    wrong = np.diag([3000.0, 3000.0])
    found = refine(evaluate, np.zeros(2), Prior(math.inf, 0.0, 1e3), wrong, 30)
    assert found == pytest.approx([1.0, -1.0], abs=0.05)
    assert len(looks) < 10


def test_a_prior_of_small_spread_keeps_scales_together():
    precision = Prior(0.1, 0.0, 1.0).precision(4)
    together, apart = np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.0, -1.0, 0.0, 0.0])
    assert together @ precision @ together == pytest.approx(1 / COMMON_STD**2)
    assert apart @ precision @ apart == pytest.approx(2 / 0.1**2)


def test_folds():
    x, y = torch.arange(1000.0)[:, None], torch.arange(1000)
    folds = split_folds(HeldOut(DataLoader(TensorDataset(x, y), batch_size=70)), 5, 2000, 256)
    seen = torch.cat([piece.batch.target for piece in folds.pieces])
    assert sorted(seen.tolist()) == list(range(1000))
    assert all(torch.equal(piece.batch.args[0][:, 0], piece.batch.target.float()) for piece in folds.pieces)
    assert np.array_equal(folds.of_examples, seen.numpy() % 5)  # turns, also in a sorted set
    thin = split_folds(HeldOut([(x[:300], y[:300]), (x[300:], y[300:])]), 5, 100, 256)
    kept = torch.cat([piece.batch.target for piece in thin.pieces])
    assert sorted(kept.tolist()) == list(range(0, 1000, thin.stride))
    assert 100 <= len(kept) <= 200
    assert thin.examples == 1000


@pytest.mark.second
def test_more_data_than_choices_are_made_on():
    """Scales found on some of the examples are then fitted to all of them."""
    y = labels()
    fitted = calibrate(small(), [(X, y)], procedure=vp.Adaptive(most=200))
    whole = calibrate(small(), [(X, y)])
    assert nll(fitted, X, y) == pytest.approx(nll(whole, X, y), abs=0.01)


def test_outputs_that_are_not_finite_are_found_among_all_examples():
    x = X.clone()
    x[1] = 1e38  # not among those that choices are made on
    with pytest.raises(CalibrationError, match="not finite"):
        calibrate(small(), [(x, labels())], procedure=vp.Adaptive(most=50))


@pytest.mark.parametrize("in_order", [False, True])
def test_a_temperature_is_fitted_to_more_data_than_choices_are_made_on(in_order):
    """Also where data are sorted by class, as folders of images are."""
    y, net = labels(), small()
    order = y.argsort(stable=True) if in_order else torch.arange(len(y))
    x, y = X[order], y[order]
    fitted = calibrate(net, [(x, y)], procedure=vp.Adaptive(most=50))
    assert fitted.calibration.chosen == "temperature"
    alone = vp.TemperatureScaled(vp.MeanNetwork(net._model[0])).fit([(x, y)]).temperature
    some = vp.TemperatureScaled(vp.MeanNetwork(net._model[0])).fit([(x[::16], y[::16])]).temperature
    assert abs(math.log(fitted.temperature / alone)) < 0.02
    assert abs(math.log(some / alone)) > 0.03


def test_pieces_of_a_sorted_set_are_alike():
    """Their gradients would differ by more than chance, and every step be too short."""
    folds = split_folds(HeldOut([(X[:1000], torch.arange(1000) // 100)]), 5, 2000, 256)
    for piece in folds.pieces:
        assert len(piece.batch.target.unique()) > 5


@pytest.mark.parametrize(
    ("link", "chosen", "fitted"),
    [
        (vp.links.Gaussian(0.3), -1, 3),  # scales, with nothing at the output
        (vp.links.Gaussian(0.3), 2, None),  # a width, likewise
        (vp.links.Gaussian(), -1, 3),
        (vp.links.Gaussian(), 2, 0),
        (vp.links.Gaussian(), 1, 0),
    ],
)
def test_what_is_fitted_to_all_examples(monkeypatch, link, chosen, fitted):
    """Scales if they were chosen, and the output's parameter if it is not given."""
    net, seen, refit = small("regression"), [], adaptive._Fit._refit
    y = net._model[0](X[:240]).detach() + 0.3 * torch.randn(240, 1, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(adaptive, "choose", lambda found: found[chosen])
    monkeypatch.setattr(adaptive._Fit, "_refit", lambda self, *args: seen.append(len(args[2])) or refit(self, *args))
    calibrate(net, [(X[:240], y)], link=link, procedure=vp.Adaptive(most=50))
    assert seen == ([] if fitted is None else [fitted])


def test_regression_with_noise_that_is_not_known():
    net = small("regression")
    y = net._model[0](X).detach() + 0.3 * torch.randn(len(X), 1, generator=torch.Generator().manual_seed(2))
    fitted = calibrate(net, [(X[:300], y[:300])], link=vp.links.Gaussian())
    link = vp.Propagated(fitted, link=vp.links.Gaussian()).link
    assert link.noise_std == fitted.calibration.noise_std
    alone = vp.links.Gaussian(float((net(X[:500]).mean - y[:500]).square().mean().sqrt()))
    plain = small("regression")
    PosteriorWidth(plain).set(0.0)
    assert float(link.loss(fitted(X[500:]), y[500:]).mean()) < float(alone.loss(plain(X[500:]), y[500:]).mean()) + 0.02
    assert fitted.calibration.noise_std == pytest.approx(0.3, rel=0.2)
    assert fitted.temperature == 1
    given = calibrate(net, [(X[:100], y[:100])], link=vp.links.Gaussian(0.3))
    assert given.calibration.noise_std is None
    assert vp.Propagated(given, link=vp.links.Gaussian(0.3)).link.noise_std == 0.3


@pytest.mark.second
def test_several_labels():
    y = torch.nn.functional.one_hot(labels(), 3).float()
    fitted = calibrate(small(), [(X[:100], y[:100])], link=vp.links.Sigmoid())
    loss = vp.links.Sigmoid().loss
    assert float(loss(fitted(X[300:]), y[300:]).mean()) < float(loss(small()(X[300:]), y[300:]).mean())


def test_scales_can_be_left_out_or_selected():
    y = labels()
    assert all(alpha == 1 for alpha in calibrate(small(), [(X[:200], y[:200])], scales=()).scales.values())
    fitted = calibrate(small(), [(X[:200], y[:200])], scales=vp.OUTPUT_ONLY)
    assert {name for name, alpha in fitted.scales.items() if alpha != 1} <= {"(output)"}


@pytest.mark.second
def test_calibrating_again_begins_anew():
    y = torch.where(X[:300, 0] > -0.7, labels()[:300], 0)
    once = calibrate(small(), [(X[:300], y)])
    assert once.calibration.width
    assert once.temperature != 1
    twice = calibrate(once, [(X[:300], y)])
    assert nll(twice, X[:300], y) == pytest.approx(nll(once, X[:300], y), abs=1e-3)


def test_it_is_reproducible_saved_and_loaded(tmp_path):
    y, net = labels(), small()
    first, second = (calibrate(net, [(X[:300], y[:300])]) for _ in range(2))
    assert first.temperature == second.temperature != 1
    assert first.scales == second.scales
    assert net.temperature == 1
    first.save_pretrained(tmp_path / "net")
    loaded = vp.MomentNet.from_pretrained(tmp_path / "net", model=small()._model[0])
    assert loaded.temperature == first.temperature
    assert all(torch.equal(a, b) for a, b in zip(loaded(X[:5]), first(X[:5]), strict=True))


def test_warnings():
    net = small()
    right = net._model[0](X[:200]).argmax(-1)
    with pytest.warns(UserWarning, match="not one of 200 held-out examples is wrong") as caught:
        calibrate(net, [(X[:200], right)])
    assert {warning.filename for warning in caught} == {__file__}  # they point at who called


def test_what_is_refused():
    with pytest.raises(CalibrationError, match="9 held-out examples are too few for 5 folds: give at least 10"):
        calibrate(small(), [(X[:9], labels()[:9])])
    with pytest.raises(CalibrationError, match="all held-out examples have the label 1"):
        calibrate(small(), [(X[:50], torch.ones(50, dtype=torch.long))])
    with pytest.raises(CalibrationError, match="folds at least 2"):
        vp.Adaptive(folds=1)
    wild = X[:50].clone()
    wild[3] = math.inf
    with pytest.raises(CalibrationError, match="outputs of the plain network are not finite"):
        calibrate(small(), [(wild, labels()[:50])])
