import sys

import pytest
import torch

from experiments.data import DATASETS, Images, Split, digits, load
from experiments.faults import DataError


def numbered(count):
    """Images that hold their number, and a label that follows from it."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Split(images, torch.arange(count) % 3)


DATA = Images("made", numbered(50), numbered(5), ("a", "b", "c"))


def test_hold_out_is_disjoint_and_complete_and_the_same_each_time():
    seen, held_out = DATA.hold_out(20)
    numbers = [split.images[:, 0, 0, 0].tolist() for split in (seen, held_out)]
    assert len(numbers[1]) == 20
    assert sorted(numbers[0] + numbers[1]) == list(range(50))
    for split, found in zip((seen, held_out), numbers, strict=True):
        assert split.labels.tolist() == [number % 3 for number in found]
    again = DATA.hold_out(20)
    assert torch.equal(again[1].images, held_out.images)
    assert torch.equal(again[0].images, seen.images)
    assert not torch.equal(DATA.hold_out(20, seed=1)[1].images, held_out.images)
    assert numbers[1] != sorted(numbers[1])


@pytest.mark.parametrize("count", [0, 50, -3])
def test_hold_out_leaves_something_on_both_sides(count):
    with pytest.raises(DataError, match=f"{count} of 50 examples cannot be held out"):
        DATA.hold_out(count)


def test_read_take_and_move():
    split = numbered(6)
    rows = torch.tensor([5, 1])
    assert split.read(rows)[:, 0, 0, 0].tolist() == [5, 1]
    assert split.read(rows).dtype == torch.uint8
    assert split.read(slice(2, 4))[:, 0, 0, 0].tolist() == [2, 3]
    assert split.take(rows).labels.tolist() == [2, 1]
    moved = split.to("meta")
    assert (moved.images.device.type, moved.labels.device.type) == ("meta", "meta")


def test_inputs_run_from_minus_one_to_one():
    split = Split(torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1), torch.zeros(3).long())
    assert split.inputs().flatten().tolist() == pytest.approx([-1, -0.6, 1])


def test_images_and_labels_must_be_as_many():
    with pytest.raises(DataError, match="5 images and 4 labels"):
        Split(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.zeros(4).long())


def test_digits_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    found = digits()
    assert (len(found.train), len(found.test)) == (1200, 597)
    assert found.train.images.shape[1:] == (1, 8, 8)
    assert found.train.images.max() == 255
    original = datasets.load_digits()
    wanted = sorted((int(t), tuple(i.ravel())) for i, t in zip(original.images, original.target, strict=True))
    both = [
        *zip(found.train.images, found.train.labels, strict=True),
        *zip(found.test.images, found.test.labels, strict=True),
    ]
    assert sorted((int(t), tuple((i.flatten().double() / 255 * 16).round().tolist())) for i, t in both) == wanted
    assert torch.equal(load("digits").test.images, found.test.images)


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'varprop\[demo\]'"):
        digits()


def test_unknown_data_set():
    with pytest.raises(DataError, match="there is no data set 'mnist', only digits, fashion-mnist, cifar10, cifar100"):
        load("mnist")
    assert set(DATASETS) == {
        "digits",
        "fashion-mnist",
        "cifar10",
        "cifar100",
        "tiny-imagenet",
        "imagenet-sample",
        "sst2",
    }
