"""Predictors as they are shipped: a folder and the file it was exported to answer alike, from raw texts and images."""

import json

import numpy as np
import pytest
import torch

import varprop as vp
from tests.deployment.conftest import write_classifier
from varprop.deployment.artifact import open_artifact
from varprop.deployment.preprocessing import Limits, Preprocessor
from varprop.errors import InputError, NetworkFileError
from varprop.prediction.predictor_config import describe_link

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def test_what_is_no_predictor(tmp_path):
    for place in (tmp_path, tmp_path / "nothing", tmp_path / "model.onnx"):
        with pytest.raises(NetworkFileError, match="cannot open"):
            open_artifact(place)
    foreign = tmp_path / "foreign.onnx"
    foreign.write_bytes(b"import os")
    with pytest.raises(NetworkFileError, match="no file of vp.export"):
        open_artifact(foreign)


@pytest.mark.parametrize("place", ["../secret", "{}/secret", "link"])
def test_a_file_cannot_name_weights_outside_of_its_folder(tmp_path, place):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "secret").write_bytes(bytes(48))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "secret")
    model = onnx.load(write_classifier(tmp_path / "folder" / "model.onnx"))
    weight = next(each for each in model.graph.initializer if each.name == "weight")
    onnx.external_data_helper.set_external_data(weight, place.format(tmp_path), length=48)
    weight.ClearField("raw_data")
    (tmp_path / "folder" / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(NetworkFileError, match="External data path validation failed"):
        open_artifact(tmp_path / "folder")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder, what the predictor that is saved in it answers, and how it is called."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]))
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=16)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=8, id2label={0: "bad", 1: "good"}, **SIZES)
    model = transformers.BertForSequenceClassification(config).eval()
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=0.05))
    predictor = vp.Propagated(net, processor=tokenizer)
    called = tokenizer(["good film", "bad bad film"], padding=True, return_tensors="pt")
    named = {name: called[name] for name in ("input_ids", "attention_mask")}
    predictor(**named)
    predictor.save_pretrained(folder / "saved")
    return folder, predictor, named


WORDS = ["good film", "bad", "film film film good bad film", "good film"]


def assert_reads_texts(place, expected):
    preprocessor = Preprocessor(open_artifact(place), Limits(characters=100))
    assert preprocessor.columns[0] == "text"
    found = preprocessor.answers([preprocessor.read({"text": text}) for text in WORDS])
    assert [each["label"] for each in found] == expected.names
    np.testing.assert_allclose([each["probs"] for each in found], expected.probs, atol=1e-5)
    for wrong in ("x" * 101, 3):
        with pytest.raises(InputError, match="a string of at most 100 characters"):
            preprocessor.read({"text": wrong})


@pytest.mark.slow
def test_texts(texts):
    folder, predictor, _ = texts
    assert_reads_texts(folder / "saved", predictor.predict(WORDS, progress=False))


@pytest.mark.slow
def test_texts_with_a_file(texts):
    folder, predictor, named = texts
    vp.export(predictor, folder / "model.onnx", **named)
    assert_reads_texts(folder / "model.onnx", predictor.predict(WORDS, progress=False))


@pytest.mark.parametrize("name", ["os.system", "AutoConfig", "../evil", "PreTrainedModel"])
def test_a_file_cannot_name_code_to_import(tmp_path, name):
    config = {"format": "varprop.network", "version": 1, "link": describe_link(vp.links.Softmax()), "processor": name}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(NetworkFileError, match="no processor"):
        open_artifact(tmp_path)


@pytest.mark.slow
def test_images_of_a_folder(tmp_path):
    image, parquet = pytest.importorskip("PIL.Image"), pytest.importorskip("pyarrow.parquet")
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=8, patch_size=4, **SIZES)).eval()
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=0.05))
    predictor = vp.Propagated(net, processor=processor)
    rng = np.random.default_rng(0)
    pictures = [image.fromarray(rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)) for _ in range(5)]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    expected = predictor(pixel_values=pixels)
    predictor.save_pretrained(tmp_path / "saved")
    (tmp_path / "images" / "b").mkdir(parents=True)
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / "images" / ("b" if number > 2 else "") / f"{number}.png")
    (tmp_path / "images" / "b" / "9.jpg").write_bytes(b"broken")
    done = vp.score(tmp_path / "saved", tmp_path / "images", tmp_path / "out", progress=False)
    found = parquet.read_table(tmp_path / "out")
    assert (done.rows, done.problems) == (6, 1), found["problem"]
    assert found["path"].to_pylist() == ["0.png", "1.png", "2.png", "b/3.png", "b/4.png", "b/9.jpg"]
    np.testing.assert_allclose(found["confidence"].to_numpy()[:5], expected.confidence, atol=1e-5)
    assert "cannot be read" in found["problem"].to_pylist()[5]
