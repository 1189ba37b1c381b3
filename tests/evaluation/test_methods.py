import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError
from varprop.evaluation.methods import METHODS, Method, listed, method_of, monte_carlo, named

X = torch.randn(400, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] + 0.5 * torch.randn(400, generator=torch.Generator().manual_seed(2)) > 0).long()
HELD_OUT = [(X, Y)]
pytestmark = pytest.mark.filterwarnings("ignore:calibration ended after", "ignore:calibration raised the NLL")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).eval()


def make(name, model, **options):
    return named(name).build(
        model, posterior_of(model, 0.02), HELD_OUT, progress=False, paper=vp.FixedEpochs(2, lr=0.1), **options
    )


def test_mean_is_the_network_at_the_means_of_the_posterior(model):
    moved = vp.Posterior.from_tensors(
        {name: w + 0.5 for name, w in model.named_parameters()},
        {name: torch.full_like(w, 0.02) for name, w in model.named_parameters()},
    )
    predictor = named("mean").build(model, moved, HELD_OUT)
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
    predictor = make("mc-3", model, seed=5)
    assert isinstance(predictor, vp.MonteCarlo)
    assert (predictor.samples, predictor.seed) == (3, 5)
    assert not torch.equal(predictor(X).probs, make("mc-3", model, seed=6)(X).probs)


def test_propagated_networks_have_the_rules_and_scales_of_their_method(model):
    predictor = make("streamlining", model)
    assert isinstance(predictor, vp.Propagated)
    assert predictor.net.rules is vp.STREAMLINING
    assert [path for path, alpha in predictor.net.scales.items() if alpha != 1] == ["(output)"]


def test_a_temperature_on_top_of_propagation(model):
    predictor = make("cvp-temperature", model)
    by_hand = vp.TemperatureScaled(vp.Propagated(vp.propagate(model, posterior_of(model, 0.02)))).fit(HELD_OUT)
    assert predictor.temperature == by_hand.temperature != 1
    assert torch.equal(predictor(X).probs, by_hand(X).probs)


def test_networks_can_come_from_elsewhere(model):
    """One for each rule set, however many methods there are."""
    lifted = []

    def lift(rules):
        lifted.append(rules.name)
        return vp.propagate(model, posterior_of(model, 0.02), rules)

    assert torch.equal(make("cvp-none", model, lift=lift)(X).probs, make("cvp-none", model)(X).probs)
    make("mean", model, lift=lift)
    assert lifted == ["CVP"]


@pytest.mark.parametrize("name", ["mean", "temperature", "mc-2", "cvp", "cvp-temperature"])
def test_every_method_predicts_with_the_link_it_is_given(model, name):
    target = nn.functional.one_hot(Y, 2).float()
    link = vp.links.Sigmoid()
    predictor = named(name).build(
        model, posterior_of(model), [(X, target)], link=link, progress=False, paper=vp.FixedEpochs(1, lr=0.1)
    )
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
    for name in ("mean", "mc-16", "cvp"):
        found = make(name, model, output="second")(X).logits.mean
        assert torch.allclose(found, model.b(X), atol=1.0), name
        assert not torch.allclose(found, model.a(X), atol=1.0), name


def test_slugs_and_titles():
    assert all(named(slug) is method and method.slug == slug for slug, method in METHODS.items())
    assert named("CVP") is METHODS["cvp"]
    assert named("MC-8") == monte_carlo(8) == Method("mc-8", "MC-8", samples=8)
    assert len({method.title for method in METHODS.values()}) == len(METHODS)
    stored = ("cvp-none", "mc-8", "mine, once")
    assert [method_of(slug).title for slug in stored] == ["CVP, none", "MC-8", "mine, once"]


@pytest.mark.parametrize("slug", ["", "mc", "mc-", "mc-0", "mc-08", "mc-x", "mc--1", "laplace", "CVP, none"])
def test_unknown_methods_are_refused_with_those_there_are(slug):
    with pytest.raises(InputError, match=r"there is no method .*; there are mc-<samples>, mean, temperature, cvp, "):
        named(slug)
    with pytest.raises(InputError, match=r"no method 'streamlinning' \(did you mean streamlining\?\)"):
        named("streamlinning")


def test_lists():
    assert [method.slug for method in listed("mean, mc-8,cvp,mean")] == ["mean", "mc-8", "cvp"]
    for wrong in ("", "mean,", "mean,,cvp", "mean;cvp"):
        with pytest.raises(InputError, match="there is no method"):
            listed(wrong)
