"""BEiT-3 and ViLT: their sizes, and that what is propagated is the original."""

import copy

import pytest
import torch

import varprop as vp
from experiments.exceptions import DataError, ExperimentError
from experiments.models import beit3, vilt
from experiments.models.beit3 import Beit3ForPairs, Beit3ForQuestions
from experiments.models.weights import seeded
from tests.experiments import multimodal
from tests.experiments.multimodal import BEIT3, VILT, image, padded_images, words

transformers = pytest.importorskip("transformers")
SIZES = [(96, 128), (64, 128), (96, 32), (32, 64)]


@pytest.fixture
def torchscale(monkeypatch):
    multimodal.require_torchscale(monkeypatch)


def original(**options):
    torch.manual_seed(0)
    model = transformers.ViltForQuestionAnswering(transformers.ViltConfig(num_labels=5, **VILT, **options)).eval()
    torch.nn.init.normal_(model.vilt.embeddings.position_embeddings)
    torch.nn.init.normal_(model.vilt.embeddings.cls_token)
    return model


def questions():
    return words(4) | padded_images(SIZES)


def test_vilt_with_fixed_patches_is_the_original():
    model, inputs = original(), questions()
    fixed = vilt.with_fixed_patches(copy.deepcopy(model))
    assert fixed.state_dict().keys() == model.state_dict().keys()
    # Padded; then smaller than the table, as large, and larger.
    whole = [words(2) | padded_images([canvas] * 2, canvas) for canvas in ((32, 32), (64, 64), (96, 128))]
    for batch in (inputs, *whole):
        with torch.no_grad():
            torch.testing.assert_close(fixed(**batch).logits, model(**batch).logits, rtol=1e-5, atol=1e-6)


def test_vilt_that_throws_patches_away_is_refused():
    with pytest.raises(DataError, match="keeps 3 random patches .* set it to -1"):
        vilt.with_fixed_patches(original(max_image_length=3))


@pytest.mark.slow
def test_vilt_is_captured_once_for_all_masks():
    model, inputs = original(), questions()
    fixed = vilt.with_fixed_patches(copy.deepcopy(model))
    parameters = dict(fixed.named_parameters())
    none = {key: torch.zeros_like(p) for key, p in parameters.items()}
    net = vp.propagate(
        fixed,
        vp.Posterior.from_tensors(parameters, none | {"classifier.0.weight": none["classifier.0.weight"] + 1e-30}),
    )
    turned = {key: x.roll(1, 0) for key, x in inputs.items()}
    for each in (inputs, turned):
        with torch.no_grad():
            torch.testing.assert_close(net(**each).mean, model(**each).logits, rtol=1e-4, atol=1e-5)
    assert len(net.signatures) == 1


def test_sizes_are_the_papers(torchscale):
    with torch.device("meta"):
        questions = Beit3ForQuestions(img_size=480)
        pairs = Beit3ForPairs()
        single = transformers.ViltForQuestionAnswering(transformers.ViltConfig(num_labels=3129))
    counts = [sum(p.numel() for p in model.parameters()) / 1e6 for model in (questions, pairs, single)]
    assert counts == pytest.approx([228.1, 225.7, 117.6], rel=1e-3)


def asked(count):
    tokens = beit3.padded(words(count), "question")
    return {"image": image(count), **tokens}


def stated(count):
    tokens = beit3.padded(words(count), "text")
    return {"image_a": image(count), "image_b": image(count, seed=1), **tokens}


def test_padding_of_a_question_does_not_matter(torchscale):
    model, batch = seeded(0, Beit3ForQuestions, classes=7, **BEIT3), asked(2)
    assert batch["padding_mask"].tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6]
    other = {**batch, "question": batch["question"].where(batch["padding_mask"] == 0, 7)}
    cut = {"image": batch["image"][:1], "question": batch["question"][:1, :4], "padding_mask": torch.zeros(1, 4)}
    with torch.no_grad():
        found = model(**batch)
        torch.testing.assert_close(model(**other), found)
        torch.testing.assert_close(model(**cut), found[:1], rtol=1e-4, atol=1e-5)


def test_a_pair_is_two_passes_and_its_order_counts(torchscale):
    model, batch = seeded(0, Beit3ForPairs, **BEIT3), stated(3)
    swapped = {**batch, "image_a": batch["image_b"], "image_b": batch["image_a"]}
    with torch.no_grad():
        found, other = model(**batch), model(**swapped)
        one = model(**{key: x[1:2] for key, x in batch.items()})
    assert found.shape == (3, 2)
    assert not torch.allclose(found, other)
    torch.testing.assert_close(one, found[1:2], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "batch"), [(Beit3ForQuestions, asked), (Beit3ForPairs, stated)])
def test_beit3_is_propagated_as_it_is(torchscale, kind, batch):
    model = seeded(0, kind, classes=7, **BEIT3)
    parameters = dict(model.named_parameters())
    var = {key: torch.full_like(p, 1e-6) for key, p in parameters.items()}
    net = vp.propagate(model, vp.Posterior.from_tensors(parameters, var))
    for count in (3, 2):
        inputs = batch(count)
        with torch.no_grad():
            found = net(**inputs)
            torch.testing.assert_close(found.mean, model(**inputs), rtol=0.02, atol=0.002)
        assert (found.var > 0).all()
    assert len(net.signatures) == 1


def test_an_encoder_comes_from_its_checkpoint_and_its_positions_are_resized(torchscale, tmp_path):
    source = seeded(1, Beit3ForPairs, **BEIT3)
    torch.save({"model": source.state_dict()}, tmp_path / "beit3.pth")
    same = beit3.beit3(Beit3ForPairs, tmp_path, seed=2, **BEIT3)
    assert torch.equal(same.beit3.text_embed.weight, source.beit3.text_embed.weight)
    assert not torch.equal(same.head.dense1.weight, source.head.dense1.weight)
    larger = beit3.beit3(Beit3ForQuestions, tmp_path / "beit3.pth", classes=7, **{**BEIT3, "img_size": 48})
    table, small = (model.beit3.encoder.embed_positions.A.weight for model in (larger, source))
    assert len(table) == 3 + 9
    assert torch.equal(table[:3], small[:3])
    torch.testing.assert_close(table[3:].mean(0), small[3:].mean(0), rtol=0.1, atol=0.1)


def test_checkpoints_that_are_none(torchscale, tmp_path):
    with pytest.raises(DataError, match="should hold one checkpoint of BEiT-3 .* and holds none"):
        beit3.beit3(Beit3ForPairs, tmp_path, **BEIT3)
    torch.save({"model": {"fc.weight": torch.ones(1)}}, tmp_path / "other.pth")
    with pytest.raises(DataError, match=r"other.pth lacks beit3.* more: it is no checkpoint of this BEiT-3"):
        beit3.beit3(Beit3ForPairs, tmp_path, **BEIT3)


def test_without_torchscale_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchscale.architecture.config", None)
    with pytest.raises(ExperimentError, match="pip install torchscale"):
        Beit3ForQuestions(**BEIT3)
