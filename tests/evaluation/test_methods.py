import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError
from varprop.evaluation.methods import build, listed, named, samples_of

X = torch.randn(400, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] + 0.5 * torch.randn(400, generator=torch.Generator().manual_seed(2)) > 0).long()
HELD_OUT = [(X, Y)]
pytestmark = pytest.mark.filterwarnings("ignore:calibration ended after", "ignore:calibration raised the NLL")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).eval()


def make(name, model, **options):
    return build(name, model, posterior_of(model, 0.02), HELD_OUT, progress=False, epochs=2, lr=0.1, **options)


def test_mean_is_the_network_at_the_means_of_the_posterior(model):
    moved = vp.Posterior.from_tensors(
        {name: w + 0.5 for name, w in model.named_parameters()},
        {name: torch.full_like(w, 0.02) for name, w in model.named_parameters()},
    )
    predictor = build("mean", model, moved, HELD_OUT)
    assert isinstance(predictor, vp.MeanNetwork)
    with torch.no_grad():
        expected = torch.func.functional_call(model, moved.mean, (X,))
    assert torch.allclose(predictor(X).logits.mean, expected)
    assert torch.allclose(predictor(X).probs, expected.softmax(-1), atol=1e-6)


def test_temperature_is_fitted_on_the_held_out_data(model):
    predictor = make("temperature", model)
    assert isinstance(predictor, vp.TemperatureScaled)
    assert predictor.temperature != 1
    plain, scaled = (vp.metrics.nll(p(X).probs, Y) for p in (vp.MeanNetwork(model), predictor))
    assert scaled < plain


def test_monte_carlo_has_its_samples_and_its_seed(model):
    predictor = make("MC-3", model, seed=5)
    assert isinstance(predictor, vp.MonteCarlo)
    assert (predictor.samples, predictor.seed) == (3, 5)
    assert not torch.equal(predictor(X).probs, make("MC-3", model, seed=6)(X).probs)


@pytest.mark.parametrize("name", vp.ABLATIONS)
def test_propagated_networks_have_the_rules_and_scales_of_their_name(model, name):
    predictor = make(name, model)
    assert isinstance(predictor, vp.Propagated)
    rules, patterns = vp.ABLATIONS[name]
    assert predictor.net.rules is rules
    fitted = {path for path, alpha in predictor.net.scales.items() if alpha != 1}
    every = set(predictor.net.scales)
    assert len(every) == 3
    assert fitted == {vp.PER_LAYER: every, vp.OUTPUT_ONLY: {"(output)"}, (): set()}[patterns]


def test_a_temperature_on_top_of_propagation(model):
    predictor = make("CVP + temperature", model)
    by_hand = vp.TemperatureScaled(vp.Propagated(vp.propagate(model, posterior_of(model, 0.02)))).fit(HELD_OUT)
    assert predictor.temperature == by_hand.temperature != 1
    assert torch.equal(predictor(X).probs, by_hand(X).probs)


def test_networks_can_come_from_elsewhere(model):
    """One for each rule set, however many methods there are."""
    lifted = []

    def lift(rules):
        lifted.append(rules.name)
        return vp.propagate(model, posterior_of(model, 0.02), rules)

    assert torch.equal(make("CVP, none", model, lift=lift)(X).probs, make("CVP, none", model)(X).probs)
    make("mean", model, lift=lift)
    assert lifted == ["CVP"]


@pytest.mark.parametrize("name", ["mean", "temperature", "MC-2", "CVP", "Streamlining, none", "CVP + temperature"])
def test_every_method_predicts_with_the_link_it_is_given(model, name):
    target = nn.functional.one_hot(Y, 2).float()
    link = vp.links.Sigmoid()
    predictor = build(name, model, posterior_of(model), [(X, target)], link=link, progress=False, epochs=1, lr=0.1)
    assert predictor.link == link
    assert not torch.allclose(predictor(X).probs.sum(-1), torch.ones(len(X)), atol=1e-3)


def test_the_output_can_be_chosen():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            return {"first": self.a(x), "second": self.b(x)}

    torch.manual_seed(0)
    model = Two().eval()
    for name in ("mean", "MC-2", "CVP"):
        found = make(name, model, output="second")(X).logits.mean
        assert torch.allclose(found, model.b(X), atol=1.0), name
        assert not torch.allclose(found, model.a(X), atol=1.0), name


def test_names_in_any_capitalisation():
    assert named("cvp") == "CVP"
    assert named("MEAN") == "mean"
    assert named("mc-8") == "MC-8"
    assert named("streamlining + Per Layer") == "Streamlining + per layer"
    assert named("cvp + temperature") == "CVP + temperature"
    assert samples_of("MC-64") == 64
    assert samples_of("CVP") is None


@pytest.mark.parametrize("name", ["", "MC", "MC-", "MC-0", "MC-08", "MC-x", "MC--1", "laplace", "CVP,"])
def test_unknown_names_are_refused_with_those_there_are(model, name):
    with pytest.raises(InputError, match=r"there is no method .*; there are mean, temperature, MC-<samples>, CVP"):
        make(name, model)


def test_lists():
    assert listed("mean, MC-8,cvp") == ["mean", "MC-8", "CVP"]
    assert listed("mean,CVP, none,streamlining,none") == ["mean", "CVP, none", "Streamlining, none"]
    assert listed("CVP,CVP, output only") == ["CVP", "CVP, output only"]
    for wrong in ("", "mean,", "mean,,CVP", "mean;CVP"):
        with pytest.raises(InputError, match="there is no method"):
            listed(wrong)
