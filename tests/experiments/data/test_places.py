import hashlib

import pytest

from experiments.data import cifar100, load
from tests.experiments.data.formats import (
    GLUE,
    encoded,
    glue,
    hundred_archive,
    hundred_binary,
    image_pack,
    picture,
    tiny_official,
    tiny_pack,
)
from experiments.faults import DataError


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
    assert len(load("tiny-imagenet").train) == 5
    assert len(load("tiny-imagenet", root).train) == 5


def test_published_folders_below_a_root(root):
    tiny_official(root / "tiny-imagenet-200")
    hundred_binary(root / "cifar-100-binary")
    glue(root / "SST-2")
    assert len(load("tiny-imagenet").train) == 6
    assert len(load("cifar100").train) == 6
    assert len(load("sst2").train) == 2


@pytest.mark.parametrize("place", [".", "imagenet-sample"])
def test_single_files_may_lie_in_the_root(root, place):
    (root / place).mkdir(exist_ok=True)
    image_pack(root / place / "imagenet_val1000.npz", [encoded(picture(256, 256))], [7])
    hundred_archive(root)
    assert load("imagenet-sample").labels.tolist() == [7]
    assert len(load("cifar100").test) == 4


def test_files_with_usual_names_are_not_taken_from_the_root(root):
    glue(root)
    with pytest.raises(DataError, match="sst2 is not in"):
        load("sst2")
    assert len(load("sst2", root).train) == 2


def test_an_empty_variable_is_none(root, monkeypatch):
    monkeypatch.setenv("VARPROP_DATA", "")
    glue(root.parent / "sst2")
    with pytest.raises(DataError, match="sst2 is not in data/sst2, data/SST-2, /usr/share"):
        load("sst2")


def test_missing_data_says_where_it_was_looked_for_and_what_is_wanted(root):
    with pytest.raises(DataError) as caught:
        load("cifar100")
    message = str(caught.value)
    for part in (root / "cifar100", root / "cifar-100-binary", "data/cifar100", "VARPROP_DATA", "cs.toronto.edu"):
        assert str(part) in message
    assert "wanted: train.bin, test.bin or cifar-100-binary.tar.gz; get the binary version" in message


def test_incomplete_data_says_what_is_missing(root):
    (tiny_pack(root / "tinyimagenet100") / "val.npz").unlink()
    with pytest.raises(DataError, match=r"tinyimagenet100 lacks val\.npz\)"):
        load("tiny-imagenet")


def listed(folder, *names, mark=" "):
    return "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()} {mark}{name}\n" for name in names)


@pytest.mark.parametrize("sums", ["SHA256SUMS", "checksums.sha256"])
@pytest.mark.parametrize("mark", [" ", "*"])
def test_sums_beside_the_data_are_compared(tmp_path, sums, mark):
    folder = glue(tmp_path)
    (folder / sums).write_text(listed(folder, *GLUE, mark=mark) + f"{'0' * 64}  of another file\n\n")
    assert len(load("sst2", folder).train) == 2
    (folder / "dev.tsv").write_text("sentence\tlabel\nanother\t1\n")
    with pytest.raises(DataError, match=rf"dev\.tsv: not what {sums} beside it lists \(SHA-256\)") as caught:
        load("sst2", folder)
    assert "train.tsv" not in str(caught.value)


def test_sums_of_single_images(tmp_path):
    folder, name = tiny_official(tmp_path), "train/n01641577/images/n01641577_1.JPEG"
    (folder / "SHA256SUMS").write_text(listed(folder, f"./{name}", "wnids.txt"))
    assert len(load("tiny-imagenet", folder).train) == 6
    picture(64, 64, shade=255).save(folder / name)
    with pytest.raises(DataError, match="n01641577_1.JPEG: not what SHA256SUMS"):
        load("tiny-imagenet", folder)


def test_sums_that_are_none(tmp_path):
    (hundred_binary(tmp_path) / "SHA256SUMS").write_text("\nnonsense\n")
    with pytest.raises(DataError, match="line 2 of .*SHA256SUMS is not a SHA-256 sum and a file name"):
        cifar100(tmp_path)
