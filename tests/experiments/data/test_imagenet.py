import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.data.imagenet import imagenet_sample, tiny_imagenet
from experiments.exceptions import DataError
from tests.experiments.data.formats import SHADE_LABELS, SHADES, encoded, image_pack, picture, tiny_official, tiny_pack

pytestmark = pytest.mark.second
CLASSES = ("goldfish", "bullfrog", "alligator")


def shades(images):
    """Recognises an image: blue is its shade, nearly, after JPEG."""
    return images[:, 2].float().mean((1, 2)).tolist()


def test_tiny_imagenet_pack(tmp_path):
    found = tiny_imagenet(tiny_pack(tmp_path))
    assert found.classes == CLASSES
    assert found.train.inputs.shape == (5, 3, 64, 64)
    assert found.train.inputs.dtype == torch.uint8
    assert found.train.labels.tolist() == SHADE_LABELS["train_1.npz"] + SHADE_LABELS["train_2.npz"]
    assert found.test.labels.tolist() == SHADE_LABELS["val.npz"]
    assert shades(found.test.inputs) == pytest.approx(SHADES["val.npz"], abs=3)
    colour = [0, 1, 3, 4]
    assert [shades(found.train.inputs)[row] for row in colour] == pytest.approx([0, 20, 60, 80], abs=3)
    grey = found.train.inputs[2]
    assert torch.equal(grey[0], grey[2])
    # Rows go down and columns to the right: green grows with rows, red with columns.
    first = found.train.inputs[0].float()
    assert first[1, -8:].mean() > first[1, :8].mean() + 150
    assert first[0, :, -8:].mean() > first[0, :, :8].mean() + 150


def test_decoding_is_that_of_pillow_in_the_order_of_the_pack(tmp_path):
    images = [encoded(picture(64, 64, shade=number)) for number in range(200)]  # several chunks for the threads
    tiny_pack(tmp_path)
    image_pack(tmp_path / "val.npz", images, [1] * 200)
    found = tiny_imagenet(tmp_path).test.inputs
    wanted = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in images])
    assert np.array_equal(found.permute(0, 2, 3, 1).numpy(), wanted)


def test_tiny_imagenet_as_published(tmp_path):
    found = tiny_imagenet(tiny_official(tmp_path / "tiny-imagenet-200"))
    assert found.classes == CLASSES
    assert found.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert shades(found.train.inputs) == pytest.approx([0, 30, 60, 90, 120, 150], abs=3)
    assert found.test.labels.tolist() == [2, 0]
    assert shades(found.test.inputs) == pytest.approx([200, 250], abs=3)
    (tmp_path / "tiny-imagenet-200" / "words.txt").unlink()
    assert tiny_imagenet(tmp_path).classes[0] == "n01443537"


def test_damaged_tiny_imagenet_as_published(tmp_path):
    place = tiny_official(tmp_path)
    broken = place / "train" / "n01641577" / "images" / "n01641577_1.JPEG"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be decoded.*truncated") as caught:
        tiny_imagenet(place)
    assert str(broken) in str(caught.value)
    broken.write_bytes(whole)
    (place / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"val_1\.JPEG cannot be decoded.*No such file"):
        tiny_imagenet(place)
    (place / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn9\t0\t0\t1\t1\n")
    with pytest.raises(DataError, match=r"line 1 of .*val_annotations.txt names no image and one of the classes"):
        tiny_imagenet(place)
    (place / "val" / "val_annotations.txt").write_text("")
    with pytest.raises(DataError, match=r"val_annotations.txt names no image"):
        tiny_imagenet(place)
    for file in broken.parent.iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"n01641577 holds no images"):
        tiny_imagenet(place)


GOOD = encoded(picture(64, 64))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([GOOD, GOOD], [0], "holds 2 images and 1 labels"),
        ([GOOD], [3], "has a label 3: this is not the Tiny-ImageNet of classes.json, which has 3 classes"),
        ([GOOD], [-1], "has a label -1"),
        ([GOOD], [0.5], "its labels are float64"),
        ([GOOD, GOOD[: len(GOOD) // 2]], [0, 1], "image 1 of .* cannot be decoded"),
        ([GOOD, b"nonsense"], [0, 1], "image 1 of .* is not an image that Pillow knows"),
        ([encoded(picture(64, 32))], [0], "image 0 of .* has 64×32 pixels instead of 64×64"),
        ([GOOD, b""], [0, 1], "its ends do not divide"),
        ([], [], "its ends are"),
    ],
)
def test_packs_that_contradict_themselves(tmp_path, images, labels, message):
    image_pack(tiny_pack(tmp_path) / "train_2.npz", images, labels)
    with pytest.raises(DataError, match=message) as caught:
        tiny_imagenet(tmp_path)
    assert str(tmp_path / "train_2.npz") in str(caught.value)


@pytest.mark.parametrize("text", ["nonsense", "3", '["goldfish"]', '[{"wnid": "n1"}]', '[{"name": 3}]'])
def test_damaged_list_of_classes(tmp_path, text):
    (tiny_pack(tmp_path) / "classes.json").write_text(text)
    with pytest.raises(DataError, match=r"classes\.json is not (JSON|a JSON list)"):
        tiny_imagenet(tmp_path)


def sample(path, images=None):
    wide, tall = picture(400, 256), picture(256, 300, shade=90)
    return image_pack(path / "imagenet_val1000.npz", images or [encoded(wide, "PNG"), encoded(tall, "PNG")], [879, 0])


def test_imagenet_sample_is_cropped_in_the_middle(tmp_path):
    sample(tmp_path)
    found = imagenet_sample(tmp_path)
    assert found.labels.tolist() == [879, 0]
    assert found.inputs.dtype == torch.uint8
    wanted = [picture(400, 256).crop((88, 16, 312, 240)), picture(256, 300, shade=90).crop((16, 38, 240, 262))]
    assert np.array_equal(found.inputs.permute(0, 2, 3, 1).numpy(), np.stack([np.asarray(each) for each in wanted]))


def test_every_changed_byte_of_a_pack_is_noticed_or_harmless(tmp_path):
    """Zip keeps a checksum of every array; what is not under it is the frame of the archive."""
    path = sample(tmp_path, [encoded(Image.new("RGB", (256, 256), color)) for color in ("red", "blue")])
    whole, wanted = path.read_bytes(), imagenet_sample(tmp_path).inputs
    noticed = 0
    for place in range(0, len(whole), 13):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            assert torch.equal(imagenet_sample(tmp_path).inputs, wanted)
        except DataError as error:
            assert str(path) in str(error)
            noticed += 1
    assert noticed > len(whole) / 13 * 0.8


@pytest.mark.parametrize("part", [0.2, 0.9, 0.999])
def test_truncated_pack(tmp_path, part):
    path = sample(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(DataError, match="is not a whole pack of images"):
        imagenet_sample(tmp_path)


def test_packs_are_never_unpickled(tmp_path):
    path = tmp_path / "imagenet_val1000.npz"
    np.savez(path, images=np.array([{}], object), ends=np.array([1]), labels=np.array([0]))
    with pytest.raises(DataError, match="is not a whole pack of images.*allow_pickle"):
        imagenet_sample(tmp_path)
    with zipfile.ZipFile(path) as pack:
        assert "images.npy" in pack.namelist()
