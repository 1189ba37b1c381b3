"""What was tried beside CVP: its parts against formulas written once more, and each on little."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments import fitted_widths
from experiments.cvp_variants import VARIANTS, _gradients, methods_named
from experiments.fitted_widths import Case, _parts, smooth_aurc
from experiments.models.small_networks import ViT
from experiments.pipeline import Pipeline
from tests.experiments.synthetic import experiment
from varprop.errors import InputError
from varprop.evaluation.evaluate import evaluate
from varprop.metrics import aurc
from varprop.network.moment_net import propagate
from varprop.posterior import Posterior
from varprop.prediction.links import Softmax
from varprop.prediction.monte_carlo import MonteCarlo


def test_the_smooth_risk_of_sharp_ranks_is_aurc():
    generator = torch.Generator().manual_seed(0)
    score, wrong = torch.randn(400, generator=generator).double(), torch.rand(400, generator=generator).double()
    found = smooth_aurc(score, wrong, softness=1e-6)
    torch.testing.assert_close(found, aurc(score, 1 - wrong), rtol=1e-3, atol=0)


def test_the_smooth_risk_falls_when_a_wrong_answer_loses_confidence():
    score = torch.tensor([2.0, 1.0, 0.5, -1.0], requires_grad=True)
    (slope,) = torch.autograd.grad(smooth_aurc(score, torch.tensor([0.0, 1.0, 0.0, 0.0])), score)
    assert slope[1] > 0
    assert slope[[0, 2, 3]].max() < 0


def linear():
    torch.manual_seed(0)
    model, x = nn.Linear(5, 4).double(), torch.randn(6, 5, dtype=torch.float64)
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    var = {name: torch.rand_like(p) for name, p in mean.items()}
    posterior = Posterior.from_tensors(mean, var)
    return Case(model, posterior, [], Softmax(), propagate(model, posterior)), x, var


def test_variance_of_a_margin_of_a_linear_model():
    case, x, var = linear()
    factor = _gradients(case, 1)(x)
    first, second = case.model(x).topk(2).indices.T
    of_each = x.square() @ var["weight"].T + var["bias"]
    wanted = of_each.gather(1, first[:, None]) + of_each.gather(1, second[:, None])
    torch.testing.assert_close(factor.square().sum(-1).amax(-1, keepdim=True), wanted, rtol=1e-4, atol=0)


def test_covariance_of_classes_that_share_their_noise():
    """Two layers: the first is common to all classes."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)).double(), torch.randn(2, 3, dtype=torch.float64)
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    var = {name: torch.zeros_like(p) + (0.1 if name.startswith("0") else 0.0) for name, p in mean.items()}
    posterior = Posterior.from_tensors(mean, var)
    case = Case(model, posterior, [], Softmax(), propagate(model, posterior))
    factor = _gradients(case, 3)(x)
    weight = mean["1.weight"]
    for row, found in zip(x, factor @ factor.mT, strict=True):
        wanted = 0.1 * (row.square().sum() + 1) * weight @ weight.T
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_samples_have_the_width_and_the_temperature_of_least_nll(monkeypatch):
    monkeypatch.setattr(fitted_widths, "LOG_WIDTHS", (-1.5, -0.5, 0.5))
    monkeypatch.setattr(fitted_widths, "SAMPLES", 10)
    case, x, _ = linear()
    case.held_out = [(4 * x, case.model(x).argmax(-1)), (x, torch.arange(6) % 4)]
    found, seen = fitted_widths.sampled(case), {}
    means = sum(float(mean.square().sum()) for mean in case.posterior.mean.values())
    total = sum(float(var.sum()) for var in case.posterior.var.values())
    for log, temperature in itertools.product(fitted_widths.LOG_WIDTHS, fitted_widths.TEMPERATURES):
        wide = case.posterior.scaled(10 ** (2 * log) * means / total)
        draws = list(MonteCarlo(case.model, wide, 10).draws(torch.cat([x for x, _ in case.held_out])))
        probs = torch.stack([(each / temperature).softmax(-1) for each in draws]).mean(0)
        right = probs.gather(1, torch.cat([y for _, y in case.held_out])[:, None])
        seen[log, temperature] = -float(right.log().mean())
    log, temperature = min(seen, key=seen.__getitem__)
    assert (found.samples, found.temperature) == (10, temperature)
    wanted = {name: var * 10 ** (2 * log) * means / total for name, var in case.posterior.var.items()}
    torch.testing.assert_close(found.posterior.var, wanted)
    assert evaluate(found, case.held_out, progress=False).metrics["nll"] == pytest.approx(seen[log, temperature])


def test_the_default_calibration_is_computed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(fitted_widths, "calibrate", lambda net, *_, **__: calls.append(net) or propagate(*kept))
    first, *_ = linear()
    kept = first.model, first.posterior
    second = replace(first)
    adaptive, again = (VARIANTS["cvp-adaptive"].make(each).net for each in (first, second))
    assert adaptive is again
    assert calls == [first.lifted]


def test_every_entry_of_a_matrix_is_in_one_group():
    model = ViT(channels=1, side=8, classes=3, patch=4, width=8, depth=2, heads=2)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    parts = _parts(model, shapes)
    seen = {name: torch.zeros(shape) for name, shape in shapes.items() if len(shape) > 1}
    for path, rows in parts.values():
        seen[path][rows] += 1
    assert all((each == 1).all() for each in seen.values())
    assert sum(path == "blocks.1.qkv.weight" for path, _ in parts.values()) == 6


def test_unknown_names():
    with pytest.raises(InputError, match=r"no method 'cvp-gropus'.*cvp-groups"):
        methods_named("mean,cvp-gropus")
    assert [each.slug for each in methods_named("mc-2,cvp-margin")] == ["mc-2", "cvp-margin"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the best width", "ignore:some scales", "ignore:the scales had not")
def test_each_on_little(tmp_path, monkeypatch):
    chosen = replace(experiment(), methods=tuple(VARIANTS.values()))
    pipeline = Pipeline(chosen, [0], tmp_path, progress=False, log=lambda _: None, fidelity=False)
    pipeline.train([0])
    pipeline.evaluate(pipeline.network(0), 0, chosen.methods, {})
    assert not pipeline.missing(0)
