"""The way of a user, from training to shipping: train, fit, predict, abstain, save, load elsewhere."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

import varprop as vp
from tests.models import tokenizer_of

pytestmark = pytest.mark.second
CENTRES = torch.tensor([[0.0, 2.0], [1.7, -1.0], [-1.7, -1.0]])
WORDS = ["good", "fine", "great", "bad", "poor", "awful", "the", "film", "was", "a"]
LOAD = """
import json, sys
from pathlib import Path
import torch
from torch import nn
import varprop as vp
root = Path(sys.argv[1])
models = {
    "classes": nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 3)).eval(),
    "regression": nn.Sequential(nn.Linear(1, 32), nn.GELU(), nn.Linear(32, 1)).eval(),
    "text": None,
}
for name, model in models.items():
    predictor = vp.load(root / name, model)
    data = json.loads((root / f"{name}.json").read_text())
    found = predictor.predict(data if name == "text" else torch.tensor(data))
    found.to_pandas().to_json(root / f"{name}-again.json", double_precision=15)
    print(predictor)
"""


def train(model, loss, steps=150):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    return model.eval()


def points(count):
    labels = torch.randint(0, 3, (count,))
    return CENTRES[labels] + torch.randn(count, 2), labels


def curve(count):
    x = 4 * torch.rand(count, 1) - 2
    return x, torch.sin(2 * x) + 0.2 * torch.randn(count, 1)


def texts(count):
    """Label 1 if there are more words of praise than of blame among four."""
    found, labels = [], []
    for _ in range(count):
        chosen = torch.randint(0, 6, (3,)).tolist()
        found.append("the film was " + " ".join(WORDS[i] for i in chosen))
        labels.append(int(sum(i < 3 for i in chosen) >= 2))
    return found, torch.tensor(labels)


def keep(root, name, predictor, data):
    """Save the predictor and what it says about the data."""
    predictor.save_pretrained(root / name)
    (root / f"{name}.json").write_text(json.dumps(data))
    found = predictor.predict(data if name == "text" else torch.tensor(data))
    return json.loads(found.to_pandas().to_json(double_precision=15)), repr(predictor)


def walk_classes(root):
    x, labels = points(300)
    model = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 3))
    train(model, lambda m: nn.functional.cross_entropy(m(x), labels))
    predictor = vp.fit(model, DataLoader(TensorDataset(*points(600)), batch_size=100), classes=["a", "b", "c"])
    test, truth = points(500)
    table = predictor.predict(DataLoader(TensorDataset(test, truth), batch_size=64)).to_pandas()
    assert (table["label"] == [("a", "b", "c")[i] for i in truth]).mean() > 0.85
    selective = vp.Selective(predictor).fit(points(1500), risk=0.05)
    found = vp.evaluate(selective, (test, truth)).metrics
    assert 0.5 < found["coverage"] < 1
    assert found["risk"] < 1 - found["accuracy"]
    return keep(root, "classes", selective, test.tolist())


def walk_regression(root):
    x, y = curve(400)
    model = nn.Sequential(nn.Linear(1, 32), nn.GELU(), nn.Linear(32, 1))
    train(model, lambda m: nn.functional.mse_loss(m(x), y), steps=400)
    predictor = vp.fit(model, curve(600))
    test, truth = curve(500)
    assert vp.evaluate(predictor, (test, truth)).metrics["picp@95"] == pytest.approx(0.95, abs=0.04)
    conformal = vp.Conformal(predictor).fit(curve(500))
    low, high = conformal.predict(test).interval(0.9)
    assert ((low <= truth) & (truth <= high)).float().mean() == pytest.approx(0.9, abs=0.05)
    return keep(root, "regression", conformal, test.tolist())


def walk_text(root):
    tokenizer = tokenizer_of(*WORDS)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        id2label={0: "blame", 1: "praise"},
    )

    def batch(count):
        found, labels = texts(count)
        return {**tokenizer(found, padding=True, return_tensors="pt"), "labels": labels}

    model = train(BertForSequenceClassification(config), lambda m: m(**batch(32)).loss, steps=60)
    predictor = vp.fit(model, [batch(100) for _ in range(3)], processor=tokenizer)
    found, labels = texts(50)
    names = predictor.predict(found).names
    assert sum(name == ("blame", "praise")[label] for name, label in zip(names, labels, strict=True)) > 35
    return keep(root, "text", predictor, found)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("path")


@pytest.mark.filterwarnings("ignore:not one of .* held-out examples is wrong:UserWarning")  # these texts are easy
def test_the_same_numbers_in_a_fresh_process(root):
    torch.manual_seed(0)
    said = {"classes": walk_classes(root), "regression": walk_regression(root), "text": walk_text(root)}
    run = subprocess.run([sys.executable, "-c", LOAD, str(root)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [text for _, text in said.values()]
    for name, (table, _) in said.items():
        assert json.loads((root / f"{name}-again.json").read_text()) == table
    assert "praise" in (root / "text" / "README.md").read_text()
