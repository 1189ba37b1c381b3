import numpy as np
import pytest
import torch
from PIL import Image

from experiments.data import hold_out, image_folder
from tests.experiments.data.formats import picture
from experiments.faults import DataError


@pytest.fixture
def photos(tmp_path):
    """Two classes; files below the first one, of several formats, and some that are no images."""
    cats, dogs = tmp_path / "cat", tmp_path / "dog"
    (cats / "more").mkdir(parents=True)
    dogs.mkdir()
    (tmp_path / ".hidden").mkdir()
    picture(60, 40, shade=10).save(cats / "b.png")
    picture(40, 40, shade=20).save(cats / "a.PNG")
    picture(30, 90, shade=30).save(cats / "more" / "c.bmp")
    picture(50, 40, "L").save(dogs / "grey.png")
    picture(32, 32, "RGBA", shade=50).save(dogs / "see-through.png")
    (dogs / "notes.txt").write_text("no image")
    (tmp_path / "README").write_text("no folder")
    return tmp_path


def test_order_labels_and_classes(photos):
    files = image_folder(photos, side=16, resize=20)
    assert files.classes == ("cat", "dog")
    assert files.labels.tolist() == [0, 0, 0, 1, 1]
    names = ["cat/a.PNG", "cat/b.png", "cat/more/c.bmp", "dog/grey.png", "dog/see-through.png"]
    assert list(files.paths) == [str(photos / name) for name in names]
    assert len(files) == 5


def test_read_resizes_the_short_side_and_crops_the_middle(photos):
    files = image_folder(photos, side=16, resize=20)
    found = files.read(slice(0, 3))
    assert (found.shape, found.dtype) == ((3, 3, 16, 16), torch.uint8)
    resized = [
        Image.open(files.paths[0]).resize((20, 20), Image.Resampling.BILINEAR).crop((2, 2, 18, 18)),
        Image.open(files.paths[1]).resize((30, 20), Image.Resampling.BILINEAR).crop((7, 2, 23, 18)),
        Image.open(files.paths[2]).resize((20, 60), Image.Resampling.BILINEAR).crop((2, 22, 18, 38)),
    ]
    assert np.array_equal(found.permute(0, 2, 3, 1).numpy(), np.stack([np.asarray(image) for image in resized]))
    assert files.read(torch.tensor([3, 4])).shape == (2, 3, 16, 16)


def test_rows_may_be_numbers_masks_and_slices(photos):
    files = image_folder(photos, side=16, resize=16)
    whole = files.read(slice(None))
    for rows in (torch.tensor([4, 0, 0]), torch.tensor([True, False, True, False, False]), slice(1, None, 2)):
        assert torch.equal(files.read(rows), whole[rows])
        taken = files.take(rows)
        assert torch.equal(taken.labels, files.labels[rows])
        assert torch.equal(taken.read(slice(None)), whole[rows])
        assert taken.classes == files.classes
    assert files.read(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 16, 16)


def test_hold_out(photos):
    files = image_folder(photos, side=16, resize=16)
    seen, held_out = hold_out(files, 2, seed=3)
    assert sorted(seen.paths + held_out.paths) == sorted(files.paths)
    assert len(held_out) == 2
    assert hold_out(files, 2, seed=3)[1].paths == held_out.paths


def test_broken_images_are_named_when_they_are_read(photos):
    path = photos / "cat" / "b.png"
    whole = path.read_bytes()
    files = image_folder(photos, side=16, resize=16)
    for content in (whole[: len(whole) // 2], whole[:50] + b"\xff" * 9 + whole[59:], b"nonsense", b""):
        path.write_bytes(content)
        assert len(files.read(torch.tensor([0, 2]))) == 2
        with pytest.raises(DataError, match=r"b\.png (cannot be decoded|is not an image)") as caught:
            files.read(slice(None))
        assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match=r"b\.png cannot be decoded.*No such file"):
        files.read(slice(None))


def test_folders_that_hold_no_classes(tmp_path):
    with pytest.raises(DataError, match="absent is not a folder; give one that holds a folder of images"):
        image_folder(tmp_path / "absent")
    with pytest.raises(DataError, match="holds no folders"):
        image_folder(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match=r"cat holds no images .\.jpg"):
        image_folder(tmp_path)


def test_a_crop_must_fit(photos):
    with pytest.raises(DataError, match="a crop of 256 pixels cannot be cut from a short side of 224"):
        image_folder(photos, side=256, resize=224)
