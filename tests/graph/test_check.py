"""Every capture is checked: the graph beside the model itself, on the caller's own inputs."""

import copy
import functools

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import CaptureError
from varprop.graph import check, compiler

aten = torch.ops.aten


@functools.cache
def _captured():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    net = vp.propagate(model, posterior_of(model))
    net.capture(torch.randn(2, 4))
    return net


@pytest.fixture
def checked(monkeypatch):
    """The sizes of the calls that were checked, in order."""
    _captured()
    seen, difference = [], check.difference

    def noted(lifting, captured, call):
        seen.append(*map(list, call.sizes))
        return difference(lifting, captured, call)

    monkeypatch.setattr(check, "difference", noted)
    return seen


def test_the_first_call_of_every_set_of_sizes_is_checked(checked):
    net = copy.deepcopy(_captured())
    for batch in (3, 3, 1, 5, 1, 3):
        net(torch.randn(batch, 4))
    assert checked == [[3, 4], [1, 4], [5, 4]]
    assert len(net.signatures) == 1


def test_a_loaded_network_is_checked(checked, tmp_path):
    net = _captured()
    net.save_pretrained(tmp_path)
    loaded = vp.MomentNet.from_pretrained(tmp_path, net.lifting.model)
    assert not checked
    for _ in range(2):
        loaded(torch.randn(2, 4))
    assert checked == [[2, 4]]


def test_what_regrouping_gets_wrong_is_an_error(monkeypatch):
    """At zero variance and at any other: it is the plain network that is looked at."""

    def mistaken(captured, sources):
        for node in captured.graph.find_nodes(op="call_function", target=aten.relu.default):
            node.target = aten.silu.default

    monkeypatch.setattr(compiler, "regroup", mistaken)
    expected = r"the graph of Sequential is not the model: module '1' differs for inputs of shape \[3, 4\]"
    net = vp.propagate(_captured().lifting.model, posterior_of(_captured().lifting.model))
    with pytest.raises(CaptureError, match=expected):
        net(torch.randn(3, 4))
    assert net.signatures == []


class Sided(nn.Linear):
    """What it does to a batch of one, no graph of a free batch does."""

    def forward(self, x):
        return super().forward(x) * (2.0 if x.shape[0] == 1 else 1.0)


@pytest.mark.filterwarnings("ignore:Sided cannot be captured with free sizes")
def test_sizes_at_which_a_graph_differs_get_one_of_their_own():
    model = Sided(4, 3)
    net = vp.propagate(model, posterior_of(model, 0.0))
    for batch, graphs in ((3, 1), (5, 1), (1, 2), (4, 2), (1, 2)):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(net(x).mean, model(x))
        assert len(net.signatures) == graphs


def test_inputs_are_never_changed():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    net = vp.propagate(model, posterior_of(model))
    x = torch.randn(3, 4)
    given = x.clone()
    net(vp.Moments(x, torch.rand(3, 4)))
    net(x)
    assert torch.equal(x, given)


@pytest.mark.parametrize(("value", "batch"), [(torch.nan, 7), (torch.inf, 8)])
def test_outputs_that_are_not_finite_agree_where_the_models_are_not(value, batch):
    net = copy.deepcopy(_captured())
    x = torch.randn(batch, 4)
    x[2, 1] = value
    found = net(x)
    assert torch.equal(found.mean.isfinite(), net.lifting.model(x).isfinite())
    assert bool(found.mean[3:].isfinite().all())
