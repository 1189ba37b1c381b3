"""Propagated: the link comes back with the network."""

import json

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import make, posterior_of
from varprop.errors import NetworkFileError
from varprop.prediction.stored import LINKS

MODEL = nn.Linear(4, 3)


def predictor(**options):
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    net = vp.propagate(model, posterior_of(model, 0.1))
    net.capture(torch.randn(2, 4))
    return vp.Propagated(net, **options)


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def reason(folder, **options):
    with pytest.raises(NetworkFileError) as caught:
        vp.Propagated.from_pretrained(folder, MODEL, **options)
    assert str(caught.value).startswith(f"cannot load {folder}: ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("link", "written"),
    [
        (vp.links.Softmax(32), {"name": "softmax", "samples": 32}),
        (vp.links.MeanFieldSoftmax(), {"name": "mean-field softmax", "samples": 256}),
        (vp.links.Sigmoid(), {"name": "sigmoid"}),
        (vp.links.ProbitSigmoid(), {"name": "probit sigmoid"}),
        (vp.links.Gaussian(0.25), {"name": "gaussian", "noise_std": 0.25}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_link_comes_back(tmp_path, link, written):
    saved, x = predictor(link=link), torch.randn(5, 4)
    saved.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["link"] == written
    loaded = vp.Propagated.from_pretrained(tmp_path, MODEL)
    assert loaded.link == link
    assert type(loaded.link) is type(link)
    before, after = saved(x), loaded(x)
    for name in ("mean", "var") if isinstance(link, vp.links.Gaussian) else ("probs", "confidence"):
        assert torch.equal(getattr(before, name), getattr(after, name))


def test_all_links_of_the_library_are_known():
    concrete = [
        kind for kind in vars(vp.links).values() if isinstance(kind, type) and isinstance(vars(kind).get("name"), str)
    ]
    assert set(LINKS.values()) == {kind for kind in concrete if issubclass(kind, vp.links.Link)}


def test_a_model_of_transformers_without_the_model(tmp_path):
    model, batch = make("vit")
    saved = vp.Propagated(vp.propagate(model, posterior_of(model)), link=vp.links.Softmax(64))
    probs = saved(**batch).probs
    saved.save_pretrained(tmp_path)
    assert torch.equal(vp.Propagated.from_pretrained(tmp_path)(**batch).probs, probs)


def test_the_network_alone(tmp_path):
    saved, x = predictor(link=vp.links.Sigmoid()), torch.randn(5, 4)
    saved.save_pretrained(tmp_path / "predictor")
    net = vp.MomentNet.from_pretrained(tmp_path / "predictor", MODEL)
    assert torch.equal(net(x).var, saved.net(x).var)
    net.save_pretrained(tmp_path / "net")
    assert "it was saved without a link: say how to predict, e.g. link=" in reason(tmp_path / "net")
    loaded = vp.Propagated.from_pretrained(tmp_path / "net", MODEL, link=vp.links.Sigmoid())
    assert torch.equal(loaded(x).probs, saved(x).probs)


def test_another_link_may_be_given(tmp_path):
    predictor(link=vp.links.Sigmoid()).save_pretrained(tmp_path)
    assert vp.Propagated.from_pretrained(tmp_path, MODEL, link=vp.links.Softmax()).link == vp.links.Softmax()


def test_a_link_of_ones_own_must_be_given_again(tmp_path):
    class Mine(vp.links.Sigmoid):
        pass

    predictor(link=Mine()).save_pretrained(tmp_path)
    assert "a link that is not varprop's own, Mine: give link=" in reason(tmp_path)
    assert type(vp.Propagated.from_pretrained(tmp_path, MODEL, link=Mine()).link) is Mine


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("softmax", "lacks a usable 'link'"),
        ({"name": ["softmax"]}, "lacks a usable 'link'"),
        ({"name": "argmax"}, "this varprop has no link 'argmax', only 'softmax'"),
        ({"name": "softmax"}, "which are not all it takes"),
        ({"name": "softmax", "samples": "many"}, "describes an impossible link"),
        ({"name": "softmax", "samples": 2.5}, "a whole number"),
        ({"name": "softmax", "samples": 2, "seed": 1}, "describes an impossible link"),
        ({"name": "softmax", "samples": 10**12}, "samples=1000000000000: there must be 1 to 1048576"),
        ({"name": "gaussian", "noise": -1}, "describes an impossible link"),
        ({"name": "gaussian", "noise": float("nan")}, "describes an impossible link"),
    ],
)
def test_links_that_make_no_sense(tmp_path, link, expected):
    predictor().save_pretrained(tmp_path)
    edit(tmp_path, link=link)
    assert expected in reason(tmp_path)


def test_folders_that_hold_nothing(tmp_path):
    assert "there is no such folder" in reason(tmp_path / "nothing")
    assert "it has no model.safetensors" in _without_weights(tmp_path)


def _without_weights(folder):
    predictor().save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    return reason(folder)
