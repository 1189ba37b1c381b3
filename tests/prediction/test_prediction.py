"""Predictions for all data: one object, whatever the data and the predictor are."""

import json
import sys

import numpy as np
import pandas
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError
from varprop.prediction.guarantee import Guarantee

X = torch.randn(11, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(11) % 3
GUARANTEE = Guarantee(0.5, risk=0.1, level=0.95, coverage=0.8, empirical_risk=0, bound=0.1, answered=8, examples=10)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)

    def forward(self, x, mask=None):
        return self.linear(x if mask is None else x * mask)


MODEL = Net().eval()
POSTERIOR = posterior_of(MODEL, 0.1)
PROPAGATED = vp.Propagated(vp.propagate(MODEL, POSTERIOR), classes=["ant", "bee", "cat"])


class Columns:
    """What a data set of Hugging Face looks like."""

    column_names = ("text", "x", "label")
    format = {"type": None}  # noqa: RUF012

    def __init__(self, rows):
        self.rows = rows

    def with_format(self, kind):
        assert kind == "torch"
        return self

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"text": "some words", "x": self.rows[index], "label": 1}


@pytest.mark.parametrize(
    "data",
    [
        X,
        X.numpy(),
        X.double().numpy(),
        (X, Y),
        (X.numpy(), Y.numpy()),
        {"x": X},
        {"x": X.numpy(), "labels": Y},
        [X[:4], X[4:]],
        [(X[:4], Y[:4]), (X[4:], Y[4:])],
        [{"x": X[:4]}, {"x": X[4:], "labels": Y[4:]}],
        [((X,),)],
        TensorDataset(X),
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=4),
        (batch for batch in X.split(4)),
        Columns(X),
    ],
    ids=lambda data: type(data).__name__,
)
def test_data_of_every_kind(data):
    found = PROPAGATED.predict(data, batch_size=4)
    assert torch.allclose(found.probs, PROPAGATED(X).probs, atol=1e-6)


def test_data_sets_of_hugging_face():
    """The library itself, where it is installed: it brings 180 MB, for which ``Columns`` stands in elsewhere."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["some words"] * 11, "x": X.tolist(), "label": Y.tolist()})
    for data in (rows, rows.with_format("torch"), rows.with_format("numpy"), rows.to_iterable_dataset()):
        assert torch.allclose(PROPAGATED.predict(data, batch_size=4).probs, PROPAGATED(X).probs, atol=1e-6)
        found, wanted = (vp.evaluate(PROPAGATED, each, progress=False) for each in (data, (X, Y)))
        assert found.metrics["nll"] == pytest.approx(wanted.metrics["nll"], rel=1e-6)


def test_moments_as_inputs():
    inputs = vp.Moments(X, torch.full_like(X, 0.1))
    assert torch.allclose(PROPAGATED.predict(inputs, batch_size=4).var, PROPAGATED(inputs).var)


@pytest.mark.parametrize(
    "predictor",
    [
        PROPAGATED,
        vp.MeanNetwork(MODEL),
        vp.MonteCarlo(MODEL, POSTERIOR, samples=3),
        vp.TemperatureScaled(PROPAGATED, 2.0),
        vp.Selective(PROPAGATED, guarantee=GUARANTEE),
    ],
    ids=lambda predictor: type(predictor).__name__,
)
def test_every_predictor_predicts_all_data(predictor, capsys):
    one, found = predictor(X), predictor.predict(X, batch_size=4)
    assert type(found) is type(one)
    assert len(found) == 11
    assert torch.allclose(found.probs, one.probs, atol=1e-6)
    for name in ("label", "confidence", "var"):
        assert torch.allclose(getattr(found, name), getattr(one, name), atol=1e-6)
    assert capsys.readouterr() == ("", "")  # no bar without a terminal


def test_rows():
    found = PROPAGATED.predict(X)
    assert torch.equal(found[2:5].probs, found.probs[2:5])
    assert torch.equal(found[found.confidence > 0.5].logits.var, found.logits.var[found.confidence > 0.5])
    assert torch.equal(found[[3, 0]].label, found.label[[3, 0]])
    assert torch.equal(found[-1].probs, found.probs[10:])
    assert [len(each) for each in found] == [1] * 11
    with pytest.raises(IndexError, match="there are 11 examples"):
        found[11]


def test_names():
    found = PROPAGATED.predict(X)
    assert found.names == [("ant", "bee", "cat")[i] for i in found.label]
    decided = vp.Selective(PROPAGATED, guarantee=GUARANTEE).predict(X)
    assert decided.names == [name if a else None for name, a in zip(found.names, decided.answered, strict=True)]
    assert None in decided.names
    with pytest.raises(InputError, match=r"have no names: give them, vp.fit\(model, held_out, classes="):
        _ = vp.MeanNetwork(MODEL)(X).names


def test_names_of_a_hugging_face_model():
    model = Net().eval()
    model.config = type("Config", (), {"id2label": {1: "bee", 0: "ant", 2: "cat"}})()
    assert vp.MeanNetwork(model).predict(X).classes == ("ant", "bee", "cat")
    model.config.id2label = {0: "ant", 1: "bee"}  # not those of this output
    assert vp.MonteCarlo(model, POSTERIOR, samples=1).predict(X).classes is None


def test_tables():
    found = PROPAGATED.predict(X)
    table = found.to_pandas()
    assert list(table) == ["label", "confidence", "p(ant)", "p(bee)", "p(cat)"]
    assert list(table["label"]) == found.names
    assert np.array_equal(table["p(bee)"], found.probs[:, 1].numpy())
    decided = vp.Selective(PROPAGATED, guarantee=GUARANTEE).predict(X).to_pandas()
    assert np.array_equal(decided["label"].notna(), decided["answered"])
    plain = vp.MeanNetwork(MODEL).predict(X).to_pandas()
    assert list(plain) == ["label", "confidence", "p(0)", "p(1)", "p(2)"]


def test_tables_of_other_links():
    single = vp.links.Sigmoid()(vp.Moments(torch.tensor([[1.0], [-2.0]]), torch.zeros(2, 1)))
    assert list(single.to_pandas()) == ["label", "confidence", "p(1)"]
    tokens = vp.links.Softmax()(vp.Moments(torch.randn(2, 5, 3), torch.zeros(2, 5, 3))).to_pandas()
    assert list(tokens.index) == [(i, j) for i in range(2) for j in range(5)]
    regression = vp.links.Gaussian(0.5)(vp.Moments(torch.zeros(3, 1), torch.zeros(3, 1))).to_pandas()
    assert list(regression) == ["mean", "std"]
    assert list(regression["std"]) == [0.5] * 3
    several = vp.links.Gaussian()(vp.Moments(torch.zeros(3, 2), torch.ones(3, 2))).to_pandas()
    assert list(several) == ["mean(0)", "mean(1)", "std(0)", "std(1)"]


def test_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        PROPAGATED.predict(X).to_pandas()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "nothing to predict"),
        ("some words", "batches are a str"),
        ([{"words": ["a"]}], "holds no examples"),
        (np.array(["a", "b"]), "not numbers"),
        (Columns([X[0], X[1, :2]]), "pad them, or give a DataLoader with collate_fn=transformers.DataCollatorWithPa"),
    ],
)
def test_what_cannot_be_predicted(data, message):
    with pytest.raises(InputError, match=message):
        PROPAGATED.predict(data)


def test_batches_of_several_lengths():
    model = nn.Linear(4, 3).eval()
    predictor = vp.MeanNetwork(model)
    with pytest.raises(InputError, match=r"\[2, 3\] and \[5, 3\] for one example: pad"):
        predictor.predict([torch.zeros(2, 5, 4), torch.zeros(2, 2, 4)])


def test_files(tmp_path):
    found = vp.Selective(PROPAGATED, guarantee=GUARANTEE).predict(X)
    found.save(tmp_path / "found.safetensors")
    with safe_open(tmp_path / "found.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("prediction.logits.var"), found.var)
        assert json.loads(file.metadata()["classes"]) == ["ant", "bee", "cat"]
    found.save(tmp_path / "found.csv")
    assert list(pandas.read_csv(tmp_path / "found.csv", index_col=0)["answered"]) == found.answered.tolist()
    with pytest.raises(InputError, match=r"found.pt is neither .safetensors nor .csv"):
        found.save(tmp_path / "found.pt")


@pytest.mark.parametrize(
    ("link", "target", "message"),
    [
        (vp.links.Softmax(), torch.randn(11), "a regression, link=vp.links.Gaussian"),
        (vp.links.Softmax(), torch.randn(11, 1), "a regression, link=vp.links.Gaussian"),
        (
            vp.links.Gaussian(),
            Y,
            r"outputs of shape \[11, 3\]. Class indices need link=vp.links.Softmax",
        ),
    ],
)
def test_a_predictor_of_the_wrong_link(link, target, message):
    with pytest.raises(InputError, match=message):
        vp.evaluate(vp.Propagated(PROPAGATED.net, link=link), (X, target))


def test_a_calibration_for_the_wrong_link():
    with pytest.raises(InputError, match=r"Class indices need link=vp.links.Softmax\(\)"):
        vp.calibrate(PROPAGATED.net, (X, Y), link=vp.links.Gaussian(), progress=False)
