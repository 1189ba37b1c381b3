"""Bad input gets an error of its own type that names the place and the remedy."""

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of


def propagate(model):
    return vp.propagate(model, posterior_of(model))


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.BatchNorm1d(4)], ids=lambda m: type(m).__name__)
def test_training_mode(layer):
    model = nn.Sequential(nn.Linear(4, 4), layer).train()
    with pytest.raises(vp.errors.TrainingModeError, match=r"1 \(\w+\) is in training mode: call model.eval\(\)"):
        propagate(model)
    model.eval()
    net = propagate(model)
    model.train()
    with pytest.raises(vp.errors.TrainingModeError):
        net(torch.randn(3, 4))


def test_dropout_that_is_no_module():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return nn.functional.dropout(self.layer(x), 0.5, self.training)

    net = propagate(Functional().train())
    with pytest.raises(vp.errors.TrainingModeError, match=r"may draw random numbers.* call model.eval\(\)"):
        net(torch.randn(3, 4))


class Distances(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.prototypes = nn.Linear(4, 3), nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        y = self.layer(x)
        return torch.cdist(y, self.prototypes) + torch.linalg.vector_norm(y, dim=1, keepdim=True)


def test_missing_rules_are_all_listed_with_place_and_remedy():
    model = Distances().eval()
    with pytest.raises(vp.errors.UnsupportedOpError) as caught:
        propagate(model)(torch.randn(2, 4))
    message = str(caught.value)
    assert "2 ops have no variance rule in CVP" in message
    for part in ("cdist", "linalg_vector_norm", "test_errors.py:", "@vp.rule(", "posterior.restrict"):
        assert part in message
    report = vp.coverage(model, posterior_of(model), torch.randn(2, 4))
    assert len(report.missing) == 2
    assert "2 missing" in str(report)


def test_nothing_half_built_is_kept():
    net = propagate(Distances().eval())
    for _ in range(2):
        with pytest.raises(vp.errors.UnsupportedOpError):
            net(torch.randn(2, 4))
    assert net.signatures == []
    assert net.scales == {}
    assert not list(net.folded)


def test_a_rule_of_ones_own():
    class Cubed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return torch.sinh(self.layer(x))

    @vp.rule(torch.ops.aten.sinh.default)
    def sinh(x):
        """sinh(μ), cosh²(μ) Σ. Approximation: linearised."""
        return vp.Moments(x.mean.sinh(), x.mean.cosh() ** 2 * x.var)

    model, x = Cubed().eval(), torch.randn(2, 4)
    with pytest.raises(vp.errors.UnsupportedOpError, match=r"aten.sinh.default +at \(top level\) \(Cubed\)"):
        propagate(model)(x)
    result = vp.propagate(model, posterior_of(model), vp.CVP | sinh)(x)
    torch.testing.assert_close(result.mean, model(x))
    vp.testing.check_rule(torch.ops.aten.sinh.default, [vp.Moments(torch.randn(3), torch.full((3,), 1e-6))], rules=sinh)


def test_a_rule_that_fails_names_itself():
    @vp.rule(torch.ops.aten.relu.default)
    def broken(x):
        raise ValueError("no such thing")

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    net = vp.propagate(model, posterior_of(model), vp.CVP.replace(broken))
    with pytest.raises(vp.errors.RuleError, match=r"rule 'broken' for aten.relu.default failed at 1 .*no such thing"):
        net(torch.randn(2, 4))


def test_a_model_that_cannot_be_captured():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            y = self.layer(x)
            return y if y.sum().item() > 0 else -y

    with pytest.raises(vp.errors.CaptureError, match="Branching cannot be captured"):
        propagate(Branching().eval())(torch.randn(2, 4))


def test_integers_where_floats_are_needed():
    net = propagate(nn.Conv2d(3, 4, 3))
    with pytest.raises(
        vp.errors.InputError, match=r"Conv2d itself fails on these inputs.*uint8: does it need \.float\(\)"
    ):
        net(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (vp.Moments(torch.zeros(2, 4), torch.zeros(2, 3)), "differ in shape"),
        (vp.Moments(torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 4)), "need floats"),
        (vp.Moments(torch.zeros(2, 4), None), "take two tensors"),
        (iter([]), "list_iterator"),
    ],
)
def test_inputs_that_are_no_moments(value, message):
    with pytest.raises(vp.errors.InputError, match=message):
        propagate(nn.Linear(4, 3))(value)


def test_an_argument_given_twice():
    with pytest.raises(vp.errors.InputError, match="'input' was given twice"):
        propagate(nn.Linear(4, 3))(torch.zeros(2, 4), input=torch.zeros(2, 4))


def test_a_posterior_that_does_not_fit():
    model = nn.Linear(4, 3)
    wrong = vp.Posterior.from_tensors(
        {"weights": torch.zeros(3, 4), "bias": torch.zeros(2)}, {"weights": torch.zeros(3, 4), "bias": torch.zeros(2)}
    )
    with pytest.raises(vp.errors.PosteriorMismatchError) as caught:
        vp.propagate(model, wrong)
    assert "weights" in str(caught.value)
    assert "bias" in str(caught.value)


def test_a_posterior_elsewhere():
    model = nn.Linear(4, 3)
    with pytest.raises(vp.errors.DeviceMismatchError, match="meta"):
        vp.propagate(model, posterior_of(model).to(device="meta"))
