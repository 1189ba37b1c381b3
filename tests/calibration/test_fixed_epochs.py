"""Calibration, by the paper's procedure: what it fits, what it costs, and what it refuses."""

import copy
import functools
import math
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

import varprop as vp
from tests.calibration.digits import trained
from tests.models import posterior_of
from varprop.calibration import stages
from varprop.errors import CalibrationError, InputError, PrecisionError
from varprop.graph.registry import scale_path

X = torch.randn(400, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (400,), generator=torch.Generator().manual_seed(2))


def small(activation=nn.GELU):
    """A network of the test's own; capturing it, which takes longest, is done once."""
    return copy.deepcopy(captured(activation))


@functools.cache
def captured(activation):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), activation(), nn.Linear(8, 3)).eval()
    net = vp.propagate(model, posterior_of(model, 0.05))
    net.capture(X)
    return net


def calibrate(net, batches, **settings):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "calibration ended")  # few steps are enough to compare ways of making them
        procedure = {"epochs": 2, "batch_size": 100}
        procedure |= {
            name: settings.pop(name) for name in ("epochs", "lr", "batch_size", "micro_batch") if name in settings
        }
        return vp.calibrate(net, batches, procedure=vp.FixedEpochs(**procedure), **({"progress": False} | settings))


def nll(net, x, y):
    return -vp.Propagated(net)(x).probs.double().gather(-1, y[:, None]).squeeze(-1).log()


@pytest.mark.slow
def test_calibration_improves_what_was_not_seen():
    """On average over networks: for some there is little to gain, and chance decides the sign."""
    gains = []
    for seed in range(4):
        digits = trained(seed)
        net = vp.propagate(digits.model, digits.posterior)
        fitted = calibrate(net, [digits.held_out], epochs=10)
        gains.append(nll(net, *digits.test).mean() - nll(fitted, *digits.test).mean())
        assert all(alpha != 1 for alpha in fitted.scales.values())
        assert all(alpha == 1 for alpha in net.scales.values())
    gain = torch.stack(gains)
    assert gain.mean() > gain.std() / math.sqrt(len(gain)), "the gain is within its standard error"


def test_the_fit_is_that_of_adam_on_the_loss():
    """Against the same optimisation written out, on the whole network at once."""
    net = small()
    fitted = calibrate(net, [(X[:100], Y[:100]), (X[100:200], Y[100:200])], epochs=3)
    net.capture(X)
    logs = list(net.scale.parameters())
    for parameter in logs:
        parameter.requires_grad_()
    adam = torch.optim.Adam(logs, lr=0.03)
    for _ in range(3):
        for some in (slice(0, 100), slice(100, 200)):
            adam.zero_grad()
            probs = vp.links.Softmax().probs(net(X[some]))
            nn.functional.nll_loss(probs.log(), Y[some]).backward()
            adam.step()
    expected = {name: float(net.scale[scale_path(name)].detach().exp()) for name in net.scales}
    assert fitted.scales == pytest.approx(expected, rel=1e-4)


def test_micro_batches_and_batch_sizes_make_no_difference():
    net, x, y = small(), X[:200], Y[:200]
    whole = calibrate(net, [(x, y)]).scales
    assert calibrate(net, [(x, y)], micro_batch=30).scales == pytest.approx(whole, rel=1e-4)
    assert calibrate(net, [(x, y)], cache=0).scales == pytest.approx(whole, rel=1e-6)  # no room to keep anything
    loader = DataLoader(TensorDataset(x, y), batch_size=25)
    assert calibrate(net, loader).scales == pytest.approx(whole, rel=1e-4)
    assert calibrate(net, zip(x.split(70), y.split(70), strict=True)).scales == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("rules", [vp.CVP, vp.STREAMLINING], ids=lambda rules: rules.name)
def test_what_no_scale_can_change_is_computed_once(rules, monkeypatch):
    net = vp.propagate(small()._model[0], posterior_of(small()._model[0], 0.05), rules)
    runs = []
    original = stages.StagedNet.prepare
    monkeypatch.setattr(stages.StagedNet, "prepare", lambda *args: runs.append(1) or original(*args))
    calibrate(net, [(X, Y)], scales=vp.OUTPUT_ONLY, epochs=5)
    assert len(runs) == 4  # batches of 100, once each
    _, live = stages.split(net, net.plan((X,), {})[0], {"(output).log_alpha"})
    called = {str(node.target) for node in live.graph.nodes if node.op == "call_function"}
    assert called == {"aten.exp.default", "aten.mul.Tensor"}


def test_calibration_is_reproducible_and_leaves_the_network_alone():
    net = small()
    before = net(X[:5])
    first, second = (calibrate(net, [(X, Y)]) for _ in range(2))
    assert first.scales == second.scales
    assert all(torch.equal(a, b) for a, b in zip(net(X[:5]), before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first(X[:5]), second(X[:5]), strict=True))
    assert not any(parameter.requires_grad for parameter in first.parameters())


def test_selected_scales():
    net = small()
    net.capture(X)
    fitted = calibrate(net, [(X, Y)], scales=["1"])
    assert [name for name, alpha in fitted.scales.items() if alpha != 1] == ["1"]
    assert all(alpha == 1 for alpha in calibrate(net, [(X, Y)], scales=()).scales.values())
    with pytest.raises(CalibrationError, match="no scale is selected by 'nose'; there are: 1, 2, "):
        calibrate(net, [(X, Y)], scales=["nose"])


def test_too_much_variance_is_scaled_down_and_too_little_up():
    """A linear network whose labels are drawn from its own predictive distribution, up to a factor."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    true = vp.propagate(model, posterior_of(model, 1.0))
    x = torch.randn(4000, 4, generator=generator)
    labels = torch.multinomial(vp.Propagated(true)(x).probs, 1, generator=generator).squeeze(-1)
    for factor in (0.2, 5.0):
        net = vp.propagate(model, posterior_of(model, factor))
        fitted = vp.calibrate(net, [(x, labels)], procedure=vp.FixedEpochs(12, lr=0.1), progress=False)
        assert fitted.scales["(output)"] * factor == pytest.approx(1, rel=0.25)


def test_multi_label_and_regression():
    net = small()
    many = torch.nn.functional.one_hot(Y, 3).float()
    fitted = calibrate(net, [(X, many)], link=vp.links.Sigmoid())
    assert any(alpha != 1 for alpha in fitted.scales.values())
    fitted = calibrate(net, [(X, net(X).mean.detach() + 3)], link=vp.links.Gaussian(0.1), epochs=5)
    assert fitted.scales["(output)"] > 1.2  # the residuals are far larger than the variance


@pytest.mark.second
def test_hugging_face_batches():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    model = BertForSequenceClassification(config).eval()
    net = vp.propagate(model, posterior_of(model, 1e-3))
    ids = torch.randint(0, 50, (60, 9))
    mask = torch.ones_like(ids)
    mask[:20, 5:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 3, (60,))}
    other = {key: value for key, value in batch.items() if key != "attention_mask"}
    with pytest.warns(UserWarning, match="120 held-out examples for"):
        fitted = calibrate(net, [batch, other], micro_batch=20)
    assert len(fitted.signatures) == 2  # a call without a mask is another graph, of the same scales
    assert any(alpha != 1 for alpha in fitted.scales.values())


def test_warnings():
    net = small()
    with warnings.catch_warnings(record=True, action="always") as caught:
        vp.calibrate(net, [(X[:50], vp.Propagated(net)(X[:50]).label)], procedure=vp.FixedEpochs(1), progress=False)
    assert {warning.filename for warning in caught} == {__file__}  # they point at who called
    (only,) = caught  # a temperature is the remedy: neither more data nor more steps
    assert "underconfident" in str(only.message)
    with warnings.catch_warnings(record=True, action="always") as caught:
        vp.calibrate(net, [(X[:50], Y[:50])], procedure=vp.FixedEpochs(1), progress=False)
    (only,) = caught  # more steps would follow the noise further
    assert "50 held-out examples for 3 scales are few" in str(only.message)
    with pytest.warns(UserWarning, match="50 held-out examples for 3 scales are few"):
        calibrate(net, [(X[:50], Y[:50])])
    with pytest.warns(UserWarning, match="still moving: raise epochs"):
        vp.calibrate(net, [(X, Y)], procedure=vp.FixedEpochs(1), progress=False)


def test_underconfident_predictions():
    """Labels that the network always finds, and labels drawn from what it says."""
    net = small()
    probs = vp.Propagated(net)(X).probs
    with pytest.warns(UserWarning, match=r"underconfident: logits divided by 0.8 have an NLL that is 0\.\d+ lower"):
        calibrate(net, [(X, probs.argmax(-1))])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "these predictions")
        calibrate(net, [(X, torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(0)).squeeze(1))])


def test_what_is_refused():
    net = small()
    with pytest.raises(InputError, match="no batches"):
        vp.calibrate(net, [])
    with pytest.raises(InputError, match="squeeze"):
        vp.calibrate(net, [(X, Y[:, None])], progress=False)
    with pytest.raises(InputError, match="propagated network"):
        vp.calibrate(nn.Linear(4, 3), [(X, Y)])
    with pytest.raises(CalibrationError, match="epochs=0, lr=-1"):
        vp.FixedEpochs(epochs=0, lr=-1)
    with pytest.raises(PrecisionError, match="float32"):
        vp.calibrate(small().bfloat16(), [(X.bfloat16(), Y)])
    certain = vp.propagate(nn.Linear(4, 3), vp.Posterior.from_tensors({}, {}))
    with pytest.raises(CalibrationError, match="nothing to scale"):
        vp.calibrate(certain, [(X, Y)])
    wild = X.clone()
    wild[3] = math.nan
    with pytest.raises(InputError, match=r"an input of batch 2 is NaN in 4 of 1600 entries: leave those examples out"):
        vp.calibrate(net, [(X, Y), (wild, Y)], progress=False)
    huge = X.clone()
    huge[3] = math.inf
    with pytest.raises(CalibrationError, match=r"loss is nan in epoch 1: the outputs of the network are not finite"):
        calibrate(net, [(huge, Y)])
    with pytest.raises(InputError, match="no held-out example has a label"):
        vp.calibrate(net, [(X, torch.full_like(Y, -100))], progress=False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_off(mode):
    net = small()
    with mode():
        fitted = calibrate(net, [(X.clone(), Y.clone())])
    assert fitted.scales == calibrate(net, [(X, Y)]).scales


class Once:
    """A loader that goes on where it was left."""

    def __init__(self, length):
        self.left, self.length = iter([(X[:200], Y[:200]), (X[200:], Y[200:])]), length

    def __iter__(self):
        return (item for item in self.left)

    def __len__(self):
        if self.length is None:
            raise TypeError("a stream has no length")
        return self.length


def test_batches_that_can_be_read_once():
    net, whole = small(), calibrate(small(), [(X[:200], Y[:200]), (X[200:], Y[200:])]).scales
    assert calibrate(net, Once(None)).scales == whole
    assert calibrate(net, Once(None), cache=0).scales == pytest.approx(whole, rel=1e-6)
    assert calibrate(net, Once(2)).scales == whole  # it says that it can be read again, which is not needed
    with pytest.raises(InputError, match="no batches: .* or can be read only once"):
        calibrate(net, Once(2), cache=0)


def test_progress_is_shown_in_a_terminal_only(capsys, monkeypatch):
    net = small()
    calibrate(net, [(X, Y)], progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    calibrate(net, [(X, Y)], progress=True)
    assert "calibrate 2/2" in capsys.readouterr().err
