"""from_laplace: fitted diagonal approximations of laplace-torch, and stand-ins with the same attributes."""

import copy
import types

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

import varprop as vp
from tests.posterior.exact import assert_agrees, inputs, two_layers
from varprop.errors import PosteriorError, PosteriorMismatchError
from varprop.posterior import Posterior

SETTINGS = {"sigma_noise": 0.3, "temperature": 0.5, "prior_precision": 2.0}


def data(classes=0):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(24, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (24,), generator=generator) if classes else torch.randn(24, 2, generator=generator).double()
    return DataLoader(TensorDataset(x, y), batch_size=8)


def fitted(model, subset="all", structure="diag", likelihood="regression", **settings):
    laplace = pytest.importorskip("laplace")
    la = laplace.Laplace(model, likelihood, subset_of_weights=subset, hessian_structure=structure, **settings)
    la.fit(data(classes=likelihood == "classification"))
    return la


class Fake:
    """The attributes of laplace-torch's DiagLaplace that are read."""

    _key = ("all", "diag")

    def __init__(self, model):
        self.model = model
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.mean = parameters_to_vector(self.params).detach() + 1
        self.posterior_variance = torch.linspace(0.1, 0.9, len(self.mean), dtype=self.mean.dtype)
        self.n_data = 24


class FakeLastLayer(Fake):
    """The same for DiagLLLaplace, which works on a copy of the model."""

    _key = ("last_layer", "diag")

    def __init__(self, model, path):
        super().__init__(model)
        inner = copy.deepcopy(model)
        self.model = nn.Module()
        self.model.model, self.model._last_layer_name = inner, path
        object.__setattr__(self.model, "last_layer", inner.get_submodule(path))
        self.mean = parameters_to_vector(self.model.last_layer.parameters()).detach() + 1
        self.posterior_variance = torch.linspace(0.1, 0.9, len(self.mean), dtype=self.mean.dtype)


class FakeSubnetwork(Fake):
    _key = ("subnetwork", "diag")

    def __init__(self, model, indices):
        super().__init__(model)
        self.backend = types.SimpleNamespace(subnetwork_indices=torch.tensor(indices))
        self.posterior_variance = self.posterior_variance[indices]


class Wrapper(nn.Module):
    """As users write it because the library wants a tensor, not a ModelOutput."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, x):
        return self.inner(x)


def failure(model, la, kind=PosteriorError):
    with pytest.raises(kind) as caught:
        Posterior.from_laplace(model, la)
    assert type(caught.value) is kind
    return str(caught.value)


def check(posterior, la, model, names):
    """The pieces, joined in the model's order, are the library's own vectors."""
    assert posterior.names == tuple(names)
    assert torch.equal(torch.cat([posterior[name].mean.flatten() for name in names]), la.mean)
    assert torch.equal(torch.cat([posterior[name].var.flatten() for name in names]), la.posterior_variance)
    for name in names:
        assert posterior[name].shape == model.get_parameter(name).shape


ALL = ("0.weight", "0.bias", "1.weight", "1.bias")


def test_frozen_parameters_are_not_in_the_flat_vector():
    model = two_layers()
    model[0].weight.requires_grad_(False)
    la = Fake(model)
    check(Posterior.from_laplace(model, la), la, model, ALL[1:])
    model.requires_grad_(False)  # what trains now does not matter, what did at the fit does
    check(Posterior.from_laplace(model, la), la, model, ALL[1:])


def test_a_wrapped_model_is_named_as_the_model_given():
    model = two_layers()
    wrapper = Wrapper(model)
    for la, names in ((Fake(wrapper), ALL), (FakeLastLayer(wrapper, "inner.1"), ALL[2:])):
        check(Posterior.from_laplace(model, la), la, model, names)
        check(Posterior.from_laplace(wrapper, la), la, wrapper, [f"inner.{name}" for name in names])
        check(Posterior.from_laplace(copy.deepcopy(wrapper), la), la, wrapper, [f"inner.{name}" for name in names])


def test_a_network_put_together_from_the_layers_of_the_model():
    model = two_layers()
    la = Fake(nn.Sequential(model[0], nn.Identity(), model[1]))
    check(Posterior.from_laplace(model, la), la, model, ALL)


def test_a_copy_of_the_wrong_model():
    model = two_layers()
    other = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    text = failure(other, Fake(Wrapper(model)), PosteriorMismatchError)
    assert "Fake was fitted to parameters Sequential lacks" in text
    assert "'inner.0.weight' is not a parameter of the model (did you mean '0.weight'?)" in text
    assert len(text.splitlines()) == 6
    failure(model[0], Fake(model), PosteriorMismatchError)  # both layers have a weight
    wide = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    assert "'0.weight' has shape (4, 3), in the model (5, 3)" in failure(wide, Fake(model), PosteriorMismatchError)


def test_entries_outside_the_subnetwork_have_no_variance():
    model = two_layers()
    la = FakeSubnetwork(model, [13, 1, 25])  # 0.bias[1], 0.weight[0, 1], 1.bias[1]: not in order
    posterior = Posterior.from_laplace(model, la)
    assert posterior.names == ("0.weight", "0.bias", "1.bias")
    assert torch.equal(posterior["0.bias"].var, la.posterior_variance[0] * torch.eye(4).double()[1])
    assert posterior["0.weight"].var[0, 1] == la.posterior_variance[1]
    assert posterior["0.weight"].var.count_nonzero() == 1
    assert torch.equal(posterior["1.bias"].mean, la.mean[-2:])


def test_only_diagonal_structures():
    model = two_layers()
    for structure in ("full", "lowrank", "GP"):
        la = Fake(model)
        la._key = ("all", structure)
        text = failure(model, la)
        assert f"(all, {structure}) has no variance of each weight on its own" in text
        assert 'hessian_structure="diag"' in text


def test_not_fitted_and_not_laplace():
    model = two_layers()
    la = Fake(model)
    la.n_data = 0
    assert "this Fake is not fitted: call la.fit(train_loader) first" in failure(model, la)
    assert "a Sequential is no Laplace approximation" in failure(model, model)
    assert "the model comes first, not Fake" in failure(la, model)
    la = Fake(model)
    la.mean = la.mean[:-1]
    assert "has 25 entries, the parameters it was fitted to have 26" in failure(model, la, PosteriorMismatchError)


# --- with the library itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {**SETTINGS, "prior_precision": torch.tensor([1.0, 2.0, 3.0, 4.0])},
        {"prior_precision": torch.linspace(1, 5, 26), "temperature": 3.0},
    ],
    ids=["default", "per layer", "per weight"],
)
def test_all_weights(settings):
    model = two_layers()
    la = fitted(model, **settings)
    check(Posterior.from_laplace(model, la), la, model, ALL)


@pytest.mark.parametrize("settings", [{}, {"last_layer_name": "1"}, {"prior_precision": torch.linspace(1, 2, 10)}])
def test_last_layer(settings):
    model = two_layers()
    la = fitted(model, subset="last_layer", likelihood="classification", **settings)
    check(Posterior.from_laplace(model, la), la, model, ALL[2:])
    wrapped = fitted(Wrapper(model), subset="last_layer", likelihood="classification")
    assert Posterior.from_laplace(model, wrapped).names == ALL[2:]


def test_frozen_layers():
    model = two_layers()
    model[0].requires_grad_(False)
    la = fitted(model, **SETTINGS)
    check(Posterior.from_laplace(model, la), la, model, ALL[2:])


def test_a_tuned_prior_and_a_state_dict():
    model = two_layers()
    la = fitted(model)
    before = Posterior.from_laplace(model, la)
    la.optimize_prior_precision(pred_type="glm", method="marglik", n_steps=20)
    check(Posterior.from_laplace(model, la), la, model, ALL)
    assert (Posterior.from_laplace(model, la)["0.weight"].var != before["0.weight"].var).all()
    twin = copy.deepcopy(model)
    other = type(la)(twin, "regression")
    assert "not fitted" in failure(twin, other)
    other.load_state_dict(la.state_dict())
    check(Posterior.from_laplace(twin, other), la, twin, ALL)


def test_other_structures():
    model = two_layers()
    assert "propagates a diagonal Gaussian" in failure(model, fitted(model, "last_layer", "kron"))


def test_a_subnetwork():
    laplace = pytest.importorskip("laplace")
    model = two_layers()
    la = laplace.DiagSubnetLaplace(model, "regression", subnetwork_indices=torch.tensor([13, 1, 25]), **SETTINGS)
    la.fit(data())
    posterior = Posterior.from_laplace(model, la)
    flat = torch.cat(
        [(posterior[n].var if n in posterior else torch.zeros_like(p)).flatten() for n, p in model.named_parameters()]
    )
    assert torch.equal(flat[[13, 1, 25]], la.posterior_variance)
    assert flat.count_nonzero() == 3
    torch.manual_seed(4)
    draws = la.functional_samples(inputs(), pred_type="nn", n_samples=1000)
    assert_agrees(vp.propagate(model.eval(), posterior)(inputs()), draws)


def test_propagation_agrees_with_the_librarys_draws():
    model = two_layers()
    la = fitted(model, **SETTINGS)
    torch.manual_seed(4)
    draws = la.functional_samples(inputs(), pred_type="nn", n_samples=1000)
    assert_agrees(vp.propagate(model.eval(), Posterior.from_laplace(model, la))(inputs()), draws)


def test_the_last_layer_agrees_with_the_librarys_closed_form():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).double().eval()
    la = fitted(model, subset="last_layer", **SETTINGS)
    mean, covariance = la(inputs(), pred_type="glm")
    predicted = vp.propagate(model, Posterior.from_laplace(model, la))(inputs())
    torch.testing.assert_close(predicted.mean, mean)
    torch.testing.assert_close(predicted.var, covariance.diagonal(dim1=1, dim2=2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:By default `link_approx` is `probit`")  # laplace-torch, in optimize_prior_precision
def test_the_documented_recipe_does_not_break_a_network():
    """Propagated as it comes the posterior is far too wide; fitted to held-out data the network is no worse."""
    laplace = pytest.importorskip("laplace")
    images = load_digits()
    x, y = torch.tensor(images.images).float().unsqueeze(1) / 8 - 1, torch.tensor(images.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).split((900, 400, 497))
    train, held_out, test = ((x[rows], y[rows]) for rows in order)
    torch.manual_seed(0)
    features = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
    model = nn.Sequential(*features, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(15):
        for rows in torch.randperm(len(train[1])).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train[0][rows]), train[1][rows]).backward()
            optimizer.step()
    la = laplace.Laplace(model.eval(), "classification", subset_of_weights="all", hessian_structure="diag")
    la.fit(DataLoader(TensorDataset(*train), batch_size=100))
    la.optimize_prior_precision(method="marglik")
    posterior = Posterior.from_laplace(model, la)
    predictors = {
        "tempered": vp.TemperatureScaled(vp.MeanNetwork(model)).fit([held_out]),
        "bare": vp.Propagated(vp.propagate(model, posterior)),
        "fitted": vp.fit(model, [held_out], posterior, progress=False),
    }
    found = {name: vp.evaluate(each, [test], progress=False).metrics for name, each in predictors.items()}
    assert found["bare"]["accuracy"] < found["tempered"]["accuracy"] - 0.1  # or there was nothing to break
    assert found["fitted"]["accuracy"] > found["tempered"]["accuracy"] - 0.01
    assert found["fitted"]["nll"] < found["tempered"]["nll"] + 0.01
