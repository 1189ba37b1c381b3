"""Bad input gets an error of its own type that names the place and the remedy."""

import io
import logging
from collections import OrderedDict

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


class Functional(nn.Linear):
    """Dropout, or the like, that is no module."""

    function, always = staticmethod(nn.functional.dropout), False

    def forward(self, x):
        return self.function(super().forward(x), 0.1, training=self.training or self.always)


def test_dropout_that_is_no_module():
    for function in (nn.functional.dropout, nn.functional.rrelu):
        model = Functional(4, 3)
        model.function, model.always = function, True
        with pytest.raises(
            vp.errors.TrainingModeError, match=r"may draw random numbers, in eval mode too.* self.train"
        ):
            propagate(model.eval())(torch.randn(3, 4))


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.5), nn.BatchNorm1d(4), Functional(4, 4)], ids=lambda m: type(m).__name__
)
def test_a_model_that_goes_on_training(layer):
    """Its network is of the model in eval mode; what runs the model itself says that it cannot."""
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 3)).eval()
    net, same, x = propagate(model), propagate(model), torch.randn(6, 4)
    plain = [vp.MeanNetwork(model), vp.MonteCarlo(model, posterior_of(model), 2)]
    net(x)
    model.train()
    model[0].eval()
    modes = [module.training for module in model.modules()]
    found = net(x[:1]), net(x), same(x)
    with pytest.raises(vp.errors.InputError, match="cannot be multiplied"):
        net(x[:, :3])
    assert [module.training for module in model.modules()] == modes == [True, False, True, True]
    if not isinstance(layer, Functional):
        for each in plain:
            with pytest.raises(
                vp.errors.TrainingModeError, match=r"1 \(\w+\) is in training mode: call model.eval\(\)"
            ):
                each(x)
    fresh = propagate(model.eval())
    for one, rows in zip(found, (x[:1], x, x), strict=True):
        torch.testing.assert_close(one, fresh(rows))


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.axis = nn.Linear(4, 3), nn.Parameter(torch.randn(1, 3))

    def forward(self, x):
        y = self.layer(x)
        return torch.linalg.cross(y, self.axis) + torch.logcumsumexp(y, dim=1)


def test_missing_rules_are_all_listed_with_place_and_remedy():
    model = Turned().eval()
    with pytest.raises(vp.errors.UnsupportedOpError) as caught:
        propagate(model)(torch.randn(2, 4))
    message = str(caught.value)
    assert "2 ops have no variance rule in CVP" in message
    for part in ("linalg_cross", "logcumsumexp", "test_errors.py:", "@vp.rule(", "posterior.restrict"):
        assert part in message
    report = vp.audit(model, posterior_of(model), torch.randn(2, 4))
    assert len(report.missing) == 2
    assert "2 missing" in str(report)


def test_nothing_half_built_is_kept():
    net = propagate(Turned().eval())
    for _ in range(2):
        with pytest.raises(vp.errors.UnsupportedOpError):
            net(torch.randn(2, 4))
    assert net.signatures == []
    assert net.scales == {}
    assert not list(net.folded)


def test_a_rule_of_ones_own():
    class Bessel(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return torch.i0(self.layer(x))

    @vp.rule(torch.ops.aten.i0.default)
    def bessel(x):
        """I₀(μ), I₁²(μ) Σ. Approximation: linearised."""
        return vp.Moments(torch.i0(x.mean), torch.special.i1(x.mean) ** 2 * x.var)

    model, x = Bessel().eval(), torch.randn(2, 4)
    with pytest.raises(vp.errors.UnsupportedOpError, match=r"aten.i0.default +at \(top level\) \(Bessel\)"):
        propagate(model)(x)
    result = vp.propagate(model, posterior_of(model), vp.CVP | bessel)(x)
    torch.testing.assert_close(result.mean, model(x))
    vp.testing.check_rule(torch.ops.aten.i0.default, [vp.Moments(torch.ones(3), torch.full((3,), 1e-6))], rules=bessel)


def test_a_rule_that_fails_names_itself():
    @vp.rule(torch.ops.aten.relu.default)
    def broken(x):
        raise ValueError("no such thing")

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    net = vp.propagate(model, posterior_of(model), vp.CVP.replace(broken))
    with pytest.raises(vp.errors.RuleError, match=r"rule 'broken' for aten.relu.default failed at 1: no such thing"):
        net(torch.randn(2, 4))


def test_a_rule_of_wrong_shapes_prints_nothing(caplog, capsys):
    @vp.rule(torch.ops.aten.relu.default)
    def broken(x):
        return x.mean.sum(7)

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    with pytest.raises(vp.errors.RuleError, match=r"rule 'broken' .* failed at 1: Dimension out of range"):
        vp.propagate(model, posterior_of(model), vp.CVP.replace(broken))(torch.randn(2, 4))
    assert capsys.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []


def test_a_model_that_cannot_be_captured():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            y = self.layer(x)
            return y if y.sum().item() > 0 else -y

    with pytest.raises(vp.errors.CaptureError, match=r"reads a value at .*test_errors.py:\d+\) that depends on"):
        propagate(Branching().eval())(torch.randn(2, 4))


def test_a_failed_capture_prints_nothing(caplog, capsys):
    class Choosing(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y if y.sum() > 0 else -y

    with pytest.raises(vp.errors.CaptureError, match="depends on weights") as caught:
        propagate(Choosing(4, 3).eval())(torch.randn(2, 4))
    assert capsys.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []
    assert len(str(caught.value)) < 500
    logging.getLogger("torch._subclasses.fake_tensor").warning("still there")
    assert caplog.records[-1].message == "still there"


def test_integers_where_floats_are_needed():
    net = propagate(nn.Conv2d(3, 4, 3))
    with pytest.raises(
        vp.errors.InputError, match=r"Conv2d itself fails on these inputs.*uint8, the model torch.float32: does it need"
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


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16], ids=str)
def test_inputs_of_another_dtype(dtype):
    """Also where the capture itself, on fake tensors, does not mind."""
    net = propagate(nn.Linear(4, 3))
    expected = rf"Linear itself fails on these inputs.* Input 0 is {dtype}.*: does it need \.to\(torch\.float32\)\?"
    with pytest.raises(vp.errors.InputError, match=expected):
        net(torch.zeros(2, 4, dtype=dtype))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_variances_of_inputs(bad):
    net, x = propagate(nn.Linear(4, 3)), torch.zeros(2, 4)
    net(vp.Moments(x, x))
    var = x.clone()
    var[1, 2] = bad
    with pytest.raises(vp.errors.InputError, match="variance of an input is negative or not finite in 1 of 8 entries"):
        net(vp.Moments(x, var))
    with pytest.raises(vp.errors.InputError, match="mean is torch.float32 and var torch.float64: cast one of them"):
        net(vp.Moments(x, x.double()))


def test_an_empty_batch():
    net = propagate(nn.Linear(4, 3))
    for _ in range(2):
        assert net(torch.zeros(0, 4)).var.shape == (0, 3)
        assert net(torch.zeros(5, 4)).var.shape == (5, 3)


class Forgetful(nn.Linear):
    def forward(self, x):
        super().forward(x)


def test_a_forward_that_returns_nothing():
    with pytest.raises(vp.errors.OutputError, match=r"the model returns None: does its forward lack a return\?"):
        propagate(Forgetful(4, 3))(torch.zeros(2, 4))


LINEAR = nn.Linear(4, 3)


def sharded():
    model = nn.Linear(4, 3)
    model.weight.device_mesh = "as DTensors have one"
    return model


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.DataParallel(LINEAR), r"a DataParallel only wraps the model: give model.module, and a posterior"),
        (lambda: torch.jit.script(LINEAR), "has no Python code to capture: give the module it was made from"),
        (lambda: torch.jit.trace(LINEAR, torch.zeros(2, 4)), "has no Python code to capture"),
        (lambda: nn.Linear(4, 3, device="meta"), r"'weight' is on the meta device and holds no numbers: load the"),
        (sharded, r"'weight' is sharded over processes .* propagate a model that is not"),
        (lambda: nn.Linear, "a model is a torch.nn.Module, not the class Linear: make one of it"),
        (lambda: torch.relu, "a model is a torch.nn.Module, not a builtin_function_or_method"),
        (lambda: propagate(LINEAR), "this network is propagated already"),
    ],
)
def test_what_is_no_model(model, message):
    for use in (vp.propagate, lambda *given: vp.audit(*given, torch.zeros(2, 4))):
        with pytest.raises(vp.errors.InputError, match=message):
            use(model(), posterior_of(LINEAR))


def test_rules_and_posteriors_that_are_none():
    with pytest.raises(vp.errors.RuleError, match=r"rules are a rule set, such as vp.CVP, not the str 'CVP'"):
        vp.propagate(LINEAR, posterior_of(LINEAR), rules="CVP")
    with pytest.raises(vp.errors.PosteriorError, match=r"propagate\(model, posterior\) takes a Posterior, not a dict"):
        vp.propagate(LINEAR, {})


def test_arguments_that_are_mixed_up():
    with pytest.raises(vp.errors.InputError, match=r"in the place of the model: propagate\(model, posterior\)"):
        vp.propagate(posterior_of(LINEAR), LINEAR)
    expected = r"audit\(model, posterior, \*inputs\) takes a Posterior, not a Tensor.*vp.Posterior.isotropic\(model\)"
    with pytest.raises(vp.errors.PosteriorError, match=expected):
        vp.audit(LINEAR, torch.zeros(2, 4))


def test_a_predictor_of_a_plain_model():
    expected = r"Propagated takes a propagated network, not a Linear: vp.propagate\(model, posterior\) makes one"
    with pytest.raises(vp.errors.InputError, match=expected):
        vp.Propagated(LINEAR)
    vp.Propagated(torch.compile(propagate(LINEAR)))


def test_lines_of_our_own_are_not_the_models():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    assert {row.line for row in vp.audit(model, posterior_of(model), torch.zeros(2, 4))} == {""}


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


def test_a_network_is_not_pickled():
    with pytest.raises(vp.errors.NetworkFileError, match=r"keep it with save_pretrained\(folder\)"):
        torch.save(propagate(LINEAR), io.BytesIO())


def test_modules_may_be_called_like_methods():
    names = ("items", "values", "keys", "set", "tensors", "get")
    model = nn.Sequential(OrderedDict((name, nn.Linear(4, 4)) for name in names))
    net, x = propagate(model.eval()), torch.randn(2, 4)
    assert len(dict([*net.mean])) == 2 * len(names)
    torch.testing.assert_close(net(x).mean, model(x).detach(), rtol=1e-4, atol=1e-6)
