import pytest

from experiments.data.cifar import cifar100
from experiments.data.imagenet import imagenet_sample, tiny_imagenet
from experiments.data.sentences import sst2
from experiments.exceptions import DataError
from tests.experiments.data.formats import (
    encoded,
    glue,
    hundred_binary,
    image_pack,
    picture,
    tiny_official,
    tiny_pack,
)

pytestmark = pytest.mark.second


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of data sets, named by the environment variable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VARPROP_DATA", str(tmp_path / "root"))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.mark.parametrize("name", ["tiny-imagenet", "tinyimagenet100"])
def test_packs_below_a_root(root, name):
    tiny_pack(root / name)
    assert len(tiny_imagenet().train) == 5
    assert len(tiny_imagenet(root).train) == 5


def test_published_folders_below_a_root(root):
    tiny_official(root / "tiny-imagenet-200")
    hundred_binary(root / "cifar-100-binary")
    glue(root / "SST-2")
    assert len(tiny_imagenet().train) == 6
    assert len(cifar100().train) == 6
    assert len(sst2().train.labels) == 2


@pytest.mark.parametrize("place", [".", "imagenet-sample"])
def test_single_files_may_lie_in_the_root(root, place):
    (root / place).mkdir(exist_ok=True)
    image_pack(root / place / "imagenet_val1000.npz", [encoded(picture(256, 256))], [7])
    assert imagenet_sample().labels.tolist() == [7]


def test_files_with_usual_names_are_not_taken_from_the_root(root):
    glue(root)
    with pytest.raises(DataError, match="sst2 is not in"):
        sst2()
    assert len(sst2(root).train.labels) == 2


def test_an_empty_variable_is_none(root, monkeypatch):
    monkeypatch.setenv("VARPROP_DATA", "")
    glue(root.parent / "sst2")
    with pytest.raises(DataError, match="sst2 is not in data/sst2, data/SST-2, /usr/share"):
        sst2()


def test_missing_data_says_where_it_was_looked_for_and_what_is_wanted(root):
    with pytest.raises(DataError) as caught:
        cifar100()
    message = str(caught.value)
    for part in (root / "cifar100", root / "cifar-100-binary", "data/cifar100", "VARPROP_DATA", "cs.toronto.edu"):
        assert str(part) in message
    assert "wanted: train.bin, test.bin, fine_label_names.txt; get and unpack the binary version" in message


def test_incomplete_data_says_what_is_missing(root):
    (tiny_pack(root / "tinyimagenet100") / "val.npz").unlink()
    with pytest.raises(DataError, match=r"tinyimagenet100 lacks val\.npz\)"):
        tiny_imagenet()
