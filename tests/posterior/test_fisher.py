"""from_fisher, against gradients taken one example and one target at a time in float64."""

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical

import varprop as vp
from varprop.errors import CurvatureError, InputError, SettingError, TrainingModeError
from varprop.posterior import Posterior, fisher

NOISE = 0.3


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, outputs)).double().eval()


def data(count=6):
    torch.manual_seed(1)
    return torch.randn(count, 4, dtype=torch.float64), torch.zeros(count)


def cases(outputs, kind):
    """Every target, and how likely it is: by torch's own distributions."""
    if kind == "softmax":
        return [(torch.tensor(c), p) for c, p in enumerate(outputs.detach().softmax(-1))]
    p = outputs.detach().sigmoid()
    targets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * len(p)).double()
    return [(y, Bernoulli(p).log_prob(y).sum().exp()) for y in targets]


def exact(model, x, kind):
    """E over x and y of (∂ log p(y|x)/∂w)²."""
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for one in x:
        outputs = model(one[None])[0]
        if kind == "gaussian":  # E[(∂/∂w (y − f)²/2s)²] = Σ (∂f/∂w)²/s
            likelihoods = [(output / NOISE, torch.tensor(1.0)) for output in outputs]
        else:
            law = Categorical(logits=outputs) if kind == "softmax" else Bernoulli(logits=outputs)
            likelihoods = [(law.log_prob(y).sum(), p) for y, p in cases(outputs, kind)]
        for log_likelihood, p in likelihoods:
            gradients = torch.autograd.grad(log_likelihood, list(parameters.values()), retain_graph=True)
            for name, gradient in zip(parameters, gradients, strict=True):
                total[name] += p * gradient.square() / len(x)
    return total


def variances(h, examples, damping=1.0):
    mean = torch.cat([part.flatten() for part in h.values()]).mean()
    return {name: 1 / (examples * (part + damping * mean)) for name, part in h.items()}


LINKS = {"softmax": vp.links.Softmax(), "sigmoid": vp.links.Sigmoid(), "gaussian": vp.links.Gaussian(NOISE)}


@pytest.mark.parametrize("kind", LINKS)
def test_few_outputs_are_exact(kind):
    model, (x, y) = network(), data()
    found = Posterior.from_fisher(model, [(x, y)], LINKS[kind], examples=100, damping=0.3)
    expected = variances(exact(model, x, kind), 100, 0.3)
    assert set(found) == set(expected)
    for name in expected:
        torch.testing.assert_close(found[name].var, expected[name], rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", LINKS)
def test_many_outputs_are_drawn(kind, monkeypatch):
    """Within five standard errors of the exact expectation, the mean of independent seeds."""
    model, (x, y) = network(), data()
    expected = exact(model, x, kind)
    monkeypatch.setattr(fisher, "FEW", 1)
    seen = []
    monkeypatch.setattr(fisher, "from_curvature", lambda h, *_: seen.append(h) or {})
    batch = (x.repeat(50, 1), y.repeat(50))
    for seed in range(30):
        Posterior.from_fisher(model, [batch], LINKS[kind], seed=seed)
    for name, h in expected.items():
        draws = torch.stack([each[name] for each in seen])
        error = draws.std(0) / len(draws) ** 0.5
        assert ((draws.mean(0) - h).abs() <= 5 * error + 1e-12).all()


def test_the_score_has_the_information_for_its_covariance():
    """Of any outputs, by quadrature over the uniform numbers it is drawn from."""
    grid = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000
    outputs = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    for link in (vp.links.Softmax(), vp.links.Sigmoid(), vp.links.Gaussian(NOISE)):
        roots, score = link.likelihood
        scores = score(outputs.expand(20000, 3), grid[:, None].expand(-1, 3))
        a = roots(outputs)
        information = a.T @ a
        torch.testing.assert_close(scores.square().mean(0), information.diagonal(), rtol=2e-3, atol=0)
    h = torch.autograd.functional.hessian(lambda f: -f.log_softmax(-1)[0], outputs)
    a = vp.links.Softmax().likelihood.roots(outputs)
    torch.testing.assert_close(a.T @ a, h)


def test_batches_chunks_and_labels_do_not_matter_and_the_seed_does(monkeypatch):
    model, (x, y) = network(20), data()
    runs = [Posterior.from_fisher(model, [(x, y)], seed=1)]
    runs += [Posterior.from_fisher(model, zip(x.split(4), (y + 7).split(4), strict=True), seed=1)]
    monkeypatch.setattr(fisher, "AT_ONCE", 1)
    runs += [Posterior.from_fisher(model, [(x, y)], seed=1)]
    for other in runs[1:]:
        torch.testing.assert_close(other["0.weight"].var, runs[0]["0.weight"].var, rtol=1e-10, atol=0)
    other = Posterior.from_fisher(model, [(x, y)], seed=2)
    assert not torch.allclose(other["0.weight"].var, runs[0]["0.weight"].var)


class Branching(nn.Module):
    """Looks at values, which vmap refuses; takes and returns what models of transformers do."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features, scale):
        return {"logits": self.model(features if float(features.sum()) > 1e9 else features * scale), "hidden": features}


def test_one_by_one_where_examples_cannot_be_stacked():
    model, (x, y) = network(), data()
    plain = Posterior.from_fisher(model, [(x, y)])
    batch = {"features": x, "scale": torch.tensor(1.0), "labels": y}
    found = Posterior.from_fisher(Branching(model).eval(), [batch])
    for name in plain:
        torch.testing.assert_close(found[f"model.{name}"].var, plain[name].var)


def test_tokens_and_single_numbers():
    """Outputs [N, T, C] are drawn for each position; outputs [N] are a regression."""
    torch.manual_seed(0)
    model, tokens = nn.Linear(4, 3).double(), torch.randn(5, 7, 4, dtype=torch.float64)
    assert set(Posterior.from_fisher(model, [(tokens, torch.zeros(5))])) == {"weight", "bias"}
    flat = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double()
    x, y = data()
    found = Posterior.from_fisher(flat, [(x, y)], vp.links.Gaussian(NOISE), examples=10)
    h = {"0.weight": x.square().mean(0)[None] / NOISE**2, "0.bias": torch.ones(1).double() / NOISE**2}
    for name, var in variances(h, 10).items():
        torch.testing.assert_close(found[name].var, var)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_around_it_and_nothing_is_left_behind(mode):
    model, (x, y) = network(), data()
    model[0].bias.requires_grad_(False)
    expected = Posterior.from_fisher(model, [(x, y)])
    with mode():
        found = Posterior.from_fisher(model, [(x, y)])
    assert set(found) == {name for name, p in model.named_parameters() if p.requires_grad}
    assert torch.equal(found["3.weight"].var, expected["3.weight"].var)
    assert all(p.grad is None for p in model.parameters())


def test_refusals():
    model, (x, y) = network(), data()
    with pytest.raises(InputError, match="no batches"):
        Posterior.from_fisher(model, [])
    with pytest.raises(InputError, match="a batch is empty"):
        Posterior.from_fisher(model, [(x[:0], y[:0])])
    with pytest.raises(CurvatureError, match="batch 1 are not finite"):
        Posterior.from_fisher(model, [(x, y), (x * float("nan"), y)])
    with pytest.raises(InputError, match="one of vp.links"):
        Posterior.from_fisher(model, [(x, y)], "softmax")
    with pytest.raises(InputError, match="noise_std=..."):
        Posterior.from_fisher(model, [(x, y)], vp.links.Gaussian())
    with pytest.raises(TrainingModeError, match="eval"):
        Posterior.from_fisher(nn.Sequential(model, nn.Dropout(0.1)).train(), [(x, y)])
    with pytest.raises(SettingError, match="examples"):
        Posterior.from_fisher(model, [(x, y)], examples=0)
    with pytest.raises(CurvatureError, match="zero everywhere"):
        Posterior.from_fisher(nn.Sequential(model, nn.Hardtanh(9, 10)), [(x, y)])
