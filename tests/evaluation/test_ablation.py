"""One calibrated network for each method, whatever their rule sets are called."""

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError
from varprop.moments import Moments

aten = torch.ops.aten
X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
HELD_OUT = [(X, torch.zeros(8).long())]


def changed(factor):
    """A rule set whose ReLU multiplies the variance: all of them have the name that replace gives."""

    @vp.rule(aten.relu.default)
    def relu(x):
        return Moments(x.mean.relu(), factor * x.var)

    return vp.CVP.replace(relu)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)).eval()


@pytest.mark.second
@pytest.mark.filterwarnings("ignore:.*calibration|8 held-out examples", "ignore:these predictions are underconfident")
def test_the_papers_table(model):
    nets = vp.ablate(model, posterior_of(model, 0.02), HELD_OUT, procedure=vp.FixedEpochs(2), progress=False)
    assert list(nets) == list(vp.ABLATIONS)
    assert len(nets) == 8
    for slug, net in nets.items():
        every = {"1", "2", "(output)"}
        fitted = {path for path, alpha in net.scales.items() if alpha != 1}
        assert set(net.scales) == every
        assert fitted == {vp.PER_LAYER: every, vp.OUTPUT_ONLY: {"(output)"}, (): set()}[vp.ABLATIONS[slug].scales], slug
        assert net.rules is vp.ABLATIONS[slug].rules
        same = torch.allclose(net(X).mean, model(X), atol=1e-4)
        assert same == slug.startswith("streamlining"), f"{slug}: Streamlining keeps the means of the plain network"


def test_rule_sets_of_one_name_are_told_apart(model):
    once, twice = changed(1.0), changed(2.0)
    assert once.name == twice.name
    methods = [vp.Method("once", "once", once, ()), vp.Method("twice", "twice", twice, ())]
    nets = vp.ablate(model, posterior_of(model), HELD_OUT, methods=methods)
    assert [net.rules for net in nets.values()] == [once, twice]
    assert (nets["twice"](X).var > nets["once"](X).var).all()


def test_each_rule_set_is_lifted_once(model, monkeypatch):
    lifted = []
    monkeypatch.setattr(
        "varprop.evaluation.methods.propagate",
        lambda *args, **kwargs: lifted.append(args[2]) or vp.propagate(*args, **kwargs),
    )
    methods = [vp.ABLATIONS["cvp-none"], vp.Method("a", "a", vp.CVP, ())]
    nets = vp.ablate(model, posterior_of(model), HELD_OUT, methods=methods)
    assert list(nets) == ["cvp-none", "a"]
    assert lifted == [vp.CVP]


@pytest.mark.parametrize("second", [vp.Method("mean", "mean"), vp.Method("a", "b", vp.STREAMLINING, ())])
def test_wrong_use(model, second):
    methods = [vp.Method("a", "a", vp.CVP, ()), second]
    with pytest.raises(InputError, match="is no ablation: give methods with rules, each with a slug of its own"):
        vp.ablate(model, posterior_of(model), HELD_OUT, methods=methods)
