import pytest
import torch

import varprop as vp
from tests.models import tokenizer_of
from varprop.errors import InputError
from varprop.integrations.pipelines import ClassificationPipeline

transformers = pytest.importorskip("transformers")
TEXTS = ["good film", "bad film", "good good good", "bad", "film film bad bad good"]


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of("good", "bad", "film")


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=8,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    return vp.MeanNetwork(transformers.BertForSequenceClassification(config).eval())


def test_answers_are_those_of_the_predictor(predictor, tokenizer):
    found = ClassificationPipeline(predictor, tokenizer, batch_size=2)(TEXTS)
    for text, answer in zip(TEXTS, found, strict=True):
        alone = predictor(**tokenizer(text, return_tensors="pt"))
        assert answer["label"] == alone.names[0]
        assert answer["score"] == pytest.approx(float(alone.confidence), abs=1e-5)
        assert answer.keys() == {"label", "score"}
    (one,) = ClassificationPipeline(predictor, tokenizer)("good film")
    assert one == pytest.approx(found[0])


def test_a_selective_one_abstains(predictor, tokenizer):
    batch = tokenizer(TEXTS * 40, padding=True, return_tensors="pt")
    labels = predictor(**batch).label.clone()
    labels[::5] = 1 - labels[::5]  # the first text is always wrong
    selective = vp.Selective(predictor).fit([{**batch, "labels": labels}], risk=0.5)
    selective.processor = tokenizer
    found = ClassificationPipeline(selective)(TEXTS)
    decision = selective(**tokenizer(TEXTS, padding=True, return_tensors="pt"))
    assert [answer["abstain"] for answer in found] == (~decision.answered).tolist()
    assert [answer["label"] for answer in found] == decision.prediction.names


class Pads:
    """An image processor, of which some pad."""

    def pad(self):
        raise AssertionError

    def __call__(self, images, return_tensors):
        return {"pixel_values": torch.stack(images)}


def test_image_processors_are_not_taken_for_tokenizers():
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
    )
    predictor = vp.MeanNetwork(transformers.ViTForImageClassification(config).eval())
    assert len(ClassificationPipeline(predictor, Pads())([torch.zeros(3, 8, 8)] * 2)) == 2


def test_what_is_refused(predictor, tokenizer):
    with pytest.raises(InputError, match="give the tokenizer"):
        ClassificationPipeline(predictor)
    with pytest.raises(InputError, match="takes a predictor"):
        ClassificationPipeline(predictor.model, tokenizer)
    regression = vp.MeanNetwork(predictor.model, link=vp.links.Gaussian(1.0))
    with pytest.raises(InputError, match="call the predictor itself"):
        ClassificationPipeline(regression, tokenizer)("good")
