import gzip
import struct

import numpy as np
import pytest
import torch

from experiments.data.idx import FILES, fashion_mnist
from experiments.exceptions import DataError
from tests.experiments.data.formats import GREY, GREY_LABELS, fashion, idx

pytestmark = pytest.mark.second
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = FILES


def test_values_and_order(tmp_path):
    found = fashion_mnist(fashion(tmp_path))
    assert len(found.classes) == 10
    for part, split in (("train", found.train), ("t10k", found.test)):
        assert split.inputs.dtype == torch.uint8
        assert split.inputs.shape[1:] == (1, 28, 28)
        assert np.array_equal(split.inputs[:, 0].numpy(), GREY[part])
        assert split.labels.dtype == torch.int64
        assert split.labels.tolist() == GREY_LABELS[part].tolist()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (TRAIN_IMAGES, b"", "is not a whole file|is not an IDX file"),
        (TRAIN_IMAGES, b"not gzip", "is not a whole file"),
        (TRAIN_IMAGES, idx(GREY["train"])[:-300], "is not a whole file"),
        (TRAIN_IMAGES, gzip.compress(b"\x00\x00\x0d\x01\x00\x00\x00\x01aaaa"), "is not an IDX file of bytes"),
        (TRAIN_IMAGES, gzip.compress(b"\x00\x00\x08\x03\x00\x00"), "ends where its values should begin"),
        (TRAIN_IMAGES, gzip.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, 0, 28, 28)), "ends where its values"),
        (
            TRAIN_IMAGES,
            gzip.compress(struct.pack(">BBBBI", 0, 0, 8, 1, 9) + b"1234"),
            "should hold 9 values",
        ),
        (TEST_IMAGES, idx(GREY_LABELS["t10k"]), "1-dimensional values, not images"),
        (TEST_LABELS, idx(np.array([1, 2], np.uint8)), r"holds \[2\] labels for the 3 images"),
        (TRAIN_LABELS, idx(np.array([0, 1, 2, 3, 4, 5, 10], np.uint8)), "has a label 10: this is not Fashion-MNIST"),
    ],
    # gzip writes the time into what it compresses: the names of the tests must not have it.
    ids=lambda value: "content" if isinstance(value, bytes) else None,
)
def test_damage_is_named_with_its_file(tmp_path, name, content, message):
    (fashion(tmp_path) / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        fashion_mnist(tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_damage_inside_the_compressed_part(tmp_path):
    path = fashion(tmp_path) / TRAIN_IMAGES
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match="is not a whole file"):
        fashion_mnist(tmp_path)


def test_usual_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VARPROP_DATA", raising=False)
    fashion(tmp_path / "data" / "fashion-mnist")
    assert len(fashion_mnist().train) == 7
    other = fashion(tmp_path / "other" / "fashion-mnist")
    (other / TRAIN_IMAGES).write_bytes(idx(GREY["train"][:6]))
    (other / TRAIN_LABELS).write_bytes(idx(GREY_LABELS["train"][:6]))
    monkeypatch.setenv("VARPROP_DATA", str(tmp_path / "other"))  # comes first
    assert len(fashion_mnist().train) == 6
