import numpy as np
import pytest
import torch

from experiments.data import cifar10, load
from experiments.data.cifar import ARCHIVE, PACKS, PARTS
from tests.experiments.data.formats import COLOUR, COLOUR_LABELS, archive, binary, pack, packed, sheet
from experiments.faults import DataError


@pytest.mark.parametrize("form", [binary, archive, packed])
def test_values_and_order(tmp_path, form):
    found = load("cifar10", form(tmp_path))
    assert found.name == "cifar10"
    assert found.classes[:2] == ("airplane", "automobile")
    assert found.train.images.dtype == torch.uint8
    assert np.array_equal(found.train.images.numpy(), np.concatenate(COLOUR[:5]))
    assert found.train.labels.tolist() == np.concatenate(COLOUR_LABELS[:5]).tolist()
    assert np.array_equal(found.test.images.numpy(), COLOUR[5])
    assert found.test.labels.tolist() == COLOUR_LABELS[5].tolist()


def fails(folder, name, message):
    with pytest.raises(DataError, match=message) as caught:
        cifar10(folder)
    assert str(folder / name) in str(caught.value)


def test_damaged_binary_files(tmp_path):
    path = binary(tmp_path) / PARTS[2]
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"x", b""):
        path.write_bytes(content)
        fails(tmp_path, PARTS[2], f"not a whole number of CIFAR-10 records .{len(content)} bytes")
    path.write_bytes(b"\x0a" + whole[1:])
    fails(tmp_path, PARTS[2], "has a label 10: this is not CIFAR-10")


def test_damaged_archive(tmp_path):
    path = archive(tmp_path) / ARCHIVE
    whole = path.read_bytes()
    turned = bytearray(whole)
    turned[len(whole) // 2] ^= 0xFF
    for content in (whole[: len(whole) // 2], bytes(turned), b"nonsense", b""):
        path.write_bytes(content)
        fails(tmp_path, ARCHIVE, "is not a whole archive")
    archive(tmp_path, PARTS[:-2])
    fails(tmp_path, ARCHIVE, "lacks data_batch_5.bin, test_batch.bin")


def test_damaged_packs(tmp_path):
    path = packed(tmp_path) / PACKS[1]
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"nonsense", b""):
        path.write_bytes(content)
        fails(tmp_path, PACKS[1], "is not a whole pack of images")
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    fails(tmp_path, PACKS[1], "is not a whole pack of images")
    np.savez(path, sheets=np.zeros(3, np.uint8))
    fails(tmp_path, PACKS[1], "is not a whole pack of images.*ends")


@pytest.mark.parametrize(
    ("sheets", "labels", "message"),
    [
        ([sheet(COLOUR[0])], [1, 2, -1], "has a label -1"),
        ([sheet(COLOUR[0])], [1, 2, 10], "has a label 10"),
        ([sheet(COLOUR[0])], ["cat"], "is not a whole pack"),
        ([sheet(COLOUR[0])], [], "its labels are float64"),
        ([sheet(COLOUR[0])], [1] * 201, "holds 201 labels, and sheets with places for 200 images"),
        ([sheet(COLOUR[0])] * 2, [1] * 200, "holds 200 labels, and sheets with places for 400 images"),
        ([sheet(COLOUR[0])[:-40]], [1, 2, 3], "image 0 of .* cannot be decoded"),
        ([sheet(COLOUR[0], rows=10)], [1, 2, 3], "has 320×320 pixels instead of 320×640"),
        ([], [1, 2, 3], "is not a whole pack"),
    ],
)
def test_packs_that_contradict_themselves(tmp_path, sheets, labels, message):
    pack(packed(tmp_path) / PACKS[0], sheets, np.array(labels))
    fails(tmp_path, PACKS[0], message)


def test_missing_says_where_was_looked(tmp_path):
    binary(tmp_path).joinpath(PARTS[3]).unlink()
    with pytest.raises(DataError, match=ARCHIVE) as caught:
        cifar10(tmp_path)
    assert f"cifar10 is not in {tmp_path}, {tmp_path}/cifar10" in str(caught.value)
    assert "the pickled one is not read" in str(caught.value)
