import numpy as np
import pytest
import torch

from experiments.data import cifar100, load
from experiments.data.cifar import ARCHIVE_100, NAMES_100
from tests.experiments.data.formats import FINE, FINE_LABELS, FINE_NAMES, hundred, hundred_archive, hundred_binary
from experiments.faults import DataError


@pytest.mark.parametrize("form", [hundred_binary, hundred_archive])
def test_values_and_order(tmp_path, form):
    found = load("cifar100", form(tmp_path))
    assert found.name == "cifar100"
    assert list(found.classes) == FINE_NAMES
    for split, images, labels in zip((found.train, found.test), FINE, FINE_LABELS, strict=True):
        assert split.images.dtype == torch.uint8
        assert np.array_equal(split.images.numpy(), images)
        assert split.labels.dtype == torch.int64
        assert split.labels.tolist() == labels.tolist()


def test_without_names_classes_are_numbers(tmp_path):
    (hundred_binary(tmp_path) / NAMES_100).unlink()
    assert cifar100(tmp_path).classes == tuple(map(str, range(100)))
    hundred_archive(tmp_path / "other", ("train.bin", "test.bin"))
    assert cifar100(tmp_path / "other").classes[99] == "99"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train.bin", lambda data: data[:-1], "not a whole number of CIFAR-100 records"),
        ("test.bin", lambda data: b"", r"not a whole number of CIFAR-100 records .0 bytes"),
        ("test.bin", lambda data: b"\x00\x64" + data[2:], "has a label 100: this is not CIFAR-100"),
        ("test.bin", lambda data: b"\x14" + data[1:], "has a label 20: this is not CIFAR-100"),
        (NAMES_100, lambda data: b"apple\nbaby\n", "has 2 names instead of 100"),
    ],
)
def test_damage_is_named_with_its_file(tmp_path, name, change, message):
    (hundred_binary(tmp_path) / name).write_bytes(change(hundred()[name]))
    with pytest.raises(DataError, match=message) as caught:
        cifar100(tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_damaged_archive(tmp_path):
    path = hundred_archive(tmp_path) / ARCHIVE_100
    whole = path.read_bytes()
    for content in (whole[:-20], whole[:-6] + b"x" + whole[-5:], b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{ARCHIVE_100} is not a whole archive"):
            cifar100(tmp_path)
    hundred_archive(tmp_path, ("train.bin",))
    with pytest.raises(DataError, match=r"lacks test\.bin"):
        cifar100(tmp_path)
