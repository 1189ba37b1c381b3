import numpy as np
import pytest
import torch

from experiments.data.cifar import NAMES_100, PACKS, PARTS, cifar10, cifar100
from experiments.exceptions import DataError
from tests.experiments.data import formats
from tests.experiments.data.formats import COLOUR, FINE, sheet

pytestmark = pytest.mark.second
TEN = [np.concatenate(COLOUR[:5]), COLOUR[5]], [np.concatenate(formats.COLOUR_LABELS[:5]), formats.COLOUR_LABELS[5]]
READERS = {cifar10: (TEN, "airplane"), cifar100: ((FINE, formats.FINE_LABELS), "thing_0")}


def fails(read, folder, name, message):
    with pytest.raises(DataError, match=message) as caught:
        read(folder)
    assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize(
    ("read", "write"),
    [
        (cifar10, formats.binary),
        (cifar10, formats.packed),
        (cifar100, formats.hundred_binary),
    ],
)
def test_values_and_order(tmp_path, read, write):
    found = read(write(tmp_path))
    (images, labels), first = READERS[read]
    assert found.classes[0] == first
    for part, pixels, classes in zip(found[:2], images, labels, strict=True):
        assert (part.inputs.dtype, part.labels.dtype) == (torch.uint8, torch.int64)
        assert np.array_equal(part.inputs.numpy(), pixels)
        assert part.labels.tolist() == classes.tolist()


@pytest.mark.parametrize(
    ("write", "read", "name", "change", "message"),
    [
        (formats.binary, cifar10, PARTS[2], lambda data: data[:-1], "not a whole number of CIFAR-10 records"),
        (formats.binary, cifar10, PARTS[2], lambda data: b"", "not a whole number of CIFAR-10 records .0 bytes"),
        (formats.binary, cifar10, PARTS[2], lambda data: b"\x0a" + data[1:], "label 10: this is not CIFAR-10"),
        (formats.packed, cifar10, PACKS[1], lambda data: data[: len(data) // 2], "is not a whole pack of images"),
        (formats.packed, cifar10, PACKS[1], lambda data: b"", "is not a whole pack of images"),
        (formats.hundred_binary, cifar100, "train.bin", lambda data: data[:-1], "number of CIFAR-100 records"),
        (formats.hundred_binary, cifar100, "test.bin", lambda data: b"\x00\x64" + data[2:], "has a label 100"),
        (formats.hundred_binary, cifar100, "test.bin", lambda data: b"\x14" + data[1:], "has a label 20"),
        (formats.hundred_binary, cifar100, NAMES_100, lambda data: b"apple\n", "has 1 names instead of 100"),
    ],
)
def test_damage_is_named_with_its_file(tmp_path, write, read, name, change, message):
    path = write(tmp_path) / name
    path.write_bytes(change(path.read_bytes()))
    fails(read, tmp_path, name, message)


@pytest.mark.parametrize(
    ("sheets", "labels", "message"),
    [
        ([sheet(COLOUR[0])], [1, 2, -1], "has a label -1"),
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
    formats.pack(formats.packed(tmp_path) / PACKS[0], sheets, np.array(labels))
    fails(cifar10, tmp_path, PACKS[0], message)
