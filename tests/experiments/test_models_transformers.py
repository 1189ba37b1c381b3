"""MiniLM and ViT-B/16 from folders of transformers; synthetic checkpoints in exactly their formats."""

import json
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import varprop as vp
from experiments.exceptions import DataError
from experiments.models.transformer import minilm, tokenize, vit_base
from tests.experiments import hf_folders
from tests.experiments.hf_folders import SIZES
from tests.models import posterior_of
from varprop.calibration.calibrate import OUTPUT_ONLY

pytestmark = pytest.mark.second

SENTENCES = ["A good film.", "bad films", "good " * 20]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return hf_folders.bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return hf_folders.vit(tmp_path_factory.mktemp("vit"))


def failure(call, *args, **kwargs):
    with pytest.raises(DataError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def copied(folder, target, change=lambda weights: weights, **settings):
    """The same checkpoint with other weights or settings."""
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | settings))
    save_file(change(load_file(folder / "model.safetensors")), target / "model.safetensors", {"format": "pt"})
    return target


def test_minilm_has_the_encoder_and_a_fresh_head(bert):
    model = minilm(bert, classes=3, seed=1)
    assert isinstance(model, transformers.BertForSequenceClassification)
    assert not model.training
    assert all(m.p == 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))
    state = model.state_dict()
    for name, tensor in load_file(bert / "model.safetensors").items():  # the pooler is among them
        assert name == "embeddings.position_ids" or torch.equal(tensor, state[f"bert.{name}"])
    assert state["classifier.weight"].shape == (3, 32)


def test_heads_depend_on_the_seed_alone(bert):
    torch.manual_seed(5)
    heads = [minilm(bert, seed=seed).classifier.weight for seed in (1, 1, 2)]
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    minilm(bert)
    assert torch.equal(torch.rand(1), before), "drawing a head must leave the global generator alone"
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_a_missing_pooler_is_fresh(bert, tmp_path):
    folder = copied(bert, tmp_path, lambda w: {n: t for n, t in w.items() if "pooler" not in n})
    poolers = [minilm(folder, seed=seed).bert.pooler.dense.weight for seed in (1, 1, 2)]
    assert torch.equal(poolers[0], poolers[1])
    assert not torch.equal(poolers[0], poolers[2])


def test_sentences_are_padded_and_cut(bert):
    tokens = tokenize(bert, SENTENCES, length=8)
    assert tokens["input_ids"].tolist() == [[2, 4, 5, 7, 9, 3, 0, 0], [2, 6, 7, 8, 3, 0, 0, 0], [2, *[5] * 6, 3]]
    assert tokens["attention_mask"].sum(1).tolist() == [6, 5, 8]


@pytest.mark.filterwarnings("ignore:calibration ended")  # one step is enough to see that it runs
def test_minilm_propagates_and_calibrates(bert):
    model, tokens = minilm(bert), tokenize(bert, SENTENCES * 10, length=8)
    net = vp.propagate(model, posterior_of(model, 1e-3))
    result = net(**tokens)
    assert result.mean.shape == (30, 2)
    assert (result.var > 0).all()
    batch = {**tokens, "labels": torch.arange(30) % 2}
    fitted = vp.calibrate(net, [batch], scales=OUTPUT_ONLY, procedure=vp.FixedEpochs(1), progress=False)
    changed = [name for name, scale in fitted.scales.items() if scale != net.scales[name]]
    assert changed == list(OUTPUT_ONLY)


def test_wrong_folders_for_minilm(bert, vit, tmp_path):
    assert "holds no config.json" in failure(minilm, tmp_path)
    assert "'vit'; one of type 'bert' is needed" in failure(minilm, vit[0])
    wider = copied(bert, tmp_path, hidden_size=64)
    message = failure(minilm, wider)
    assert re.search(r"is 10×32, and should be 10×64", message), message
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "no .safetensors file" in failure(minilm, tmp_path)
    assert "holds no tokenizer.json" in failure(tokenize, tmp_path, ["a"])


def test_vit_from_a_published_checkpoint(vit):
    folder, original = vit
    model = vit_base(folder, classes=3, seed=1, sizes=SIZES)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert model(images).logits.shape == (2, 3)
    torch.testing.assert_close(model.vit(images).last_hidden_state, original.vit(images).last_hidden_state)
    assert torch.equal(model.classifier.weight, vit_base(folder, 3, 1, SIZES).classifier.weight)


def test_another_vit_is_refused(vit, tmp_path):
    folder = vit[0]
    message = failure(vit_base, folder)
    assert "hidden_size is 32 and should be 768" in message
    assert "patch_size is 4 and should be 16" in message
    deeper = copied(folder, tmp_path, num_hidden_layers=2)
    assert "lacks vit." in failure(vit_base, deeper, sizes={**SIZES, "num_hidden_layers": 2})
