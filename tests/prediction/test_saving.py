"""A predictor comes back from its folder: network, link, and what was fitted."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from torch import nn

import varprop as vp
from tests.models import make, posterior_of
from varprop.errors import NetworkFileError
from varprop.network.record import Calibration
from varprop.prediction.guarantee import Guarantee
from varprop.prediction.predictor_config import LINKS

MODEL = nn.Linear(4, 3)


def uncaptured(**options):
    """Loaded in no time, because no call is to be captured again."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    return vp.Propagated(vp.propagate(model, posterior_of(model, 0.1)), **options)


def predictor(**options):
    found = uncaptured(**options)
    found.net.capture(torch.randn(2, 4))
    return found


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def reason(folder, **options):
    with pytest.raises(NetworkFileError) as caught:
        vp.load(folder, MODEL, **options)
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
    loaded = vp.load(tmp_path, MODEL)
    assert loaded.link == link
    assert type(loaded.link) is type(link)
    before, after = saved(x), loaded(x)
    for name in ("mean", "var") if isinstance(link, vp.links.Gaussian) else ("probs", "confidence"):
        assert torch.equal(getattr(before, name), getattr(after, name))


def test_the_same_predictor_gives_the_same_files(tmp_path):
    """Also where notes in a file of tensors hold what JSON escapes."""
    saved, x = predictor(classes=['a "b" \\', "ü\n\x7f", "🙂"]), torch.randn(5, 4)
    found = set()
    for number in range(10):  # notes were in one of two orders
        folder = tmp_path / str(number)
        saved.save_pretrained(folder)
        saved(x).save(folder / "answers.safetensors")
        found.add(tuple(sorted((file.name, file.read_bytes()) for file in folder.iterdir())))
    assert len(found) == 1
    with safe_open(tmp_path / "0" / "answers.safetensors", "pt") as file:
        assert json.loads(file.metadata()["classes"]) == [*saved.classes]


def test_all_links_of_the_library_are_known():
    concrete = [
        kind for kind in vars(vp.links).values() if isinstance(kind, type) and isinstance(vars(kind).get("name"), str)
    ]
    assert set(LINKS.values()) == {kind for kind in concrete if issubclass(kind, vp.links.Link)}


@pytest.mark.second  # tests/network/test_saving.py has more of them
def test_a_model_of_transformers_without_the_model(tmp_path):
    model, batch = make("vit")
    saved = vp.Propagated(vp.propagate(model, posterior_of(model)), link=vp.links.Softmax(64))
    probs = saved(**batch).probs
    saved.save_pretrained(tmp_path)
    assert torch.equal(vp.load(tmp_path)(**batch).probs, probs)


def test_the_network_alone(tmp_path):
    saved, x = predictor(link=vp.links.Sigmoid()), torch.randn(5, 4)
    saved.save_pretrained(tmp_path / "predictor")
    net = vp.MomentNet.from_pretrained(tmp_path / "predictor", MODEL)
    assert torch.equal(net(x).var, saved.net(x).var)
    net.save_pretrained(tmp_path / "net")
    assert "it was saved without a link: say how to predict, e.g. link=" in reason(tmp_path / "net")
    loaded = vp.load(tmp_path / "net", MODEL, link=vp.links.Sigmoid())
    assert torch.equal(loaded(x).probs, saved(x).probs)


def test_another_link_may_be_given(tmp_path):
    uncaptured(link=vp.links.Sigmoid()).save_pretrained(tmp_path)
    assert vp.load(tmp_path, MODEL, link=vp.links.Softmax()).link == vp.links.Softmax()


def test_a_link_of_ones_own_must_be_given_again(tmp_path):
    class Mine(vp.links.Sigmoid):
        pass

    uncaptured(link=Mine()).save_pretrained(tmp_path)
    assert "a link that is not varprop's own, Mine: give link=" in reason(tmp_path)
    assert type(vp.load(tmp_path, MODEL, link=Mine()).link) is Mine


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
        ({"name": "gaussian", "noise_std": -1}, "describes an impossible link"),
        ({"name": "gaussian", "noise_std": float("nan")}, "describes an impossible link"),
    ],
)
def test_links_that_make_no_sense(tmp_path, link, expected):
    uncaptured().save_pretrained(tmp_path)
    edit(tmp_path, link=link)
    assert expected in reason(tmp_path)


X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(40) % 3
TARGETS = torch.randn(40, 3, generator=torch.Generator().manual_seed(2))
YES = (TARGETS > 0).float()
PROMISE = Guarantee(0.4, risk=0.1, level=0.95, coverage=0.75, empirical_risk=0.05, bound=0.09, answered=30, examples=40)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda p: vp.Propagated(p.net, classes=["ant", "bee", "cat"]),
        lambda p: vp.MeanNetwork(p.net.lifting.model),
        lambda p: vp.MeanNetwork(p.net.lifting.model, vp.Posterior.isotropic(nn.Linear(4, 3))),
        lambda p: vp.MonteCarlo(p.net.lifting.model, posterior_of(p.net.lifting.model, 0.1), 3, seed=5),
        lambda p: vp.TemperatureScaled(vp.MeanNetwork(p.net.lifting.model)).fit((X, LABELS)),
        lambda p: vp.Selective(vp.TemperatureScaled(p, 2.0), guarantee=PROMISE),
        lambda p: vp.Selective(vp.MeanNetwork(p.net.lifting.model), guarantee=replace(PROMISE, threshold=-math.inf)),
        lambda p: vp.Conformal(vp.MeanNetwork(p.net.lifting.model, link=vp.links.Gaussian(0.3))).fit((X, TARGETS)),
        lambda p: vp.PerLabel(vp.MeanNetwork(p.net.lifting.model, link=vp.links.Sigmoid())).fit((X, YES)),
    ],
)
def test_every_predictor_comes_back(tmp_path, wrap):
    saved = wrap(uncaptured())
    saved.save_pretrained(tmp_path)
    json.loads((tmp_path / "config.json").read_text(), parse_constant=pytest.fail)  # no -Infinity, which is no JSON
    loaded = vp.load(tmp_path, MODEL)
    assert repr(loaded) == repr(saved)
    assert loaded.classes == saved.classes
    before, after = saved.predict(X), loaded.predict(X)
    for name, tensor in before.tensors().items():
        assert torch.equal(tensor, after.tensors()[name]), name
    if isinstance(saved, vp.Conformal):
        assert torch.equal(before.interval(0.9)[0], after.interval(0.9)[0])
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_text() == (tmp_path / "README.md").read_text()


def test_predictors_that_cannot_be_saved_or_loaded(tmp_path):
    class Mine(vp.Predictor):
        link, device = vp.links.Softmax(), torch.device("cpu")

        def __call__(self, x):
            return x

    with pytest.raises(NetworkFileError, match="a Mine is not one of varprop's own predictors, and cannot be saved"):
        Mine().save_pretrained(tmp_path / "mine")
    vp.Selective(uncaptured(), score=vp.scores.entropy, guarantee=PROMISE).save_pretrained(tmp_path)
    assert "it abstains by a score of its own, entropy: give it as score=" in reason(tmp_path)
    assert vp.load(tmp_path, MODEL, score=vp.scores.entropy).score is vp.scores.entropy
    inner = {"kind": "Propagated"}
    for record, message in (
        ({"kind": "Oracle"}, "this varprop has no predictor 'Oracle'"),
        ({"kind": "TemperatureScaled", "temperature": -1, "fitted": None, "predictor": inner}, "positive and finite"),
        ({"kind": "Selective"}, "describes an impossible predictor"),
        ({}, "describes an impossible predictor"),
        ([], "describes an impossible predictor"),
    ):
        edit(tmp_path, predictor=record)
        assert message in reason(tmp_path)
    edit(tmp_path, predictor=inner, processor="os")
    assert "has no processor 'os'" in reason(tmp_path)


def test_folders_of_version_0_1(tmp_path):
    """They name no predictor, no calibration and no classes."""
    saved = uncaptured(link=vp.links.Sigmoid())
    saved.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("predictor", "classes", "processor", "calibration", "temperature"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(vp.load(tmp_path, MODEL).predict(X).probs, saved.predict(X).probs)


def test_the_model_card(tmp_path):
    base = uncaptured()
    base.net.calibration = Calibration("width", {"plain": 0.9, "width": 0.8}, 0.1, None, 500, True, 10.0)
    saved = vp.Selective(vp.Propagated(base.net, classes=["ant", "bee", "c|t"]), guarantee=PROMISE)
    evaluation = vp.evaluate(saved, (X, LABELS), progress=False)
    saved.save_pretrained(tmp_path, evaluation=evaluation)
    card = (tmp_path / "README.md").read_text()
    assert 'vp.load("this folder", model=Linear(...).eval())' in card
    assert "| predictor | Selective of Propagated |" in card
    assert "| classes | ant, bee, c\\|t |" in card
    assert "Fitted on 500 held-out examples: width, width 0.1." in card
    assert "| **width** | 0.8000 |" in card
    assert "at most 10.00% of the answers are wrong" in card
    low, high = evaluation.intervals()["aurc"]
    assert f"| aurc | {evaluation.metrics['aurc']:.4g} | {low:.4g} to {high:.4g} |" in card
    assert vp.load(tmp_path, MODEL).predictor.net.calibration == base.net.calibration
    (tmp_path / "README.md").write_text("# My own words\n")
    saved.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "# My own words\n"


def test_a_processor_of_ones_own(tmp_path):
    with pytest.raises(NetworkFileError, match="its processor, a dict, is not of transformers: keep it yourself"):
        uncaptured().save_pretrained(tmp_path, processor={})
    assert list(tmp_path.iterdir()) == []
