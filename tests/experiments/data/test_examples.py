import numpy as np
import pytest
import torch
from PIL import Image

from experiments.data.examples import Examples, Scores, hold_out, majority
from experiments.data.image_files import CROP, ImageFiles, centre_crops, image_folder
from experiments.exceptions import DataError
from tests.experiments.data.formats import picture

pytestmark = pytest.mark.second


@pytest.fixture
def photos(tmp_path):
    """Two classes; files below the first one, of several formats, and some that are no images."""
    cats, dogs = tmp_path / "cat", tmp_path / "dog"
    (cats / "more").mkdir(parents=True)
    dogs.mkdir()
    (tmp_path / ".hidden").mkdir()
    picture(600, 400, shade=10).save(cats / "b.png")
    picture(400, 400, shade=20).save(cats / "a.PNG")
    picture(30, 90, shade=30).save(cats / "more" / "c.bmp")
    picture(50, 40, "L").save(dogs / "grey.png")
    picture(32, 32, "RGBA", shade=50).save(dogs / "see-through.png")
    (dogs / "notes.txt").write_text("no image")
    (tmp_path / "README").write_text("no folder")
    return tmp_path


def test_order_labels_and_classes(photos):
    files = image_folder(photos)
    assert files.classes == ("cat", "dog")
    assert files.labels.tolist() == [0, 0, 0, 1, 1]
    names = ["cat/a.PNG", "cat/b.png", "cat/more/c.bmp", "dog/grey.png", "dog/see-through.png"]
    assert list(files.paths) == [str(photos / name) for name in names]


def read_files(folder):
    found = image_folder(folder)
    return Examples(ImageFiles(found.paths, centre_crops), found.labels)


def test_read_resizes_the_short_side_and_crops_the_middle(photos):
    files = image_folder(photos)
    found = read_files(photos).read(slice(0, 3))
    assert (found.shape, found.dtype) == ((3, 3, CROP, CROP), torch.uint8)
    resized = [
        Image.open(files.paths[0]).resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240)),
        Image.open(files.paths[1]).resize((384, 256), Image.Resampling.BILINEAR).crop((80, 16, 304, 240)),
        Image.open(files.paths[2]).resize((256, 768), Image.Resampling.BILINEAR).crop((16, 272, 240, 496)),
    ]
    assert np.array_equal(found.permute(0, 2, 3, 1).numpy(), np.stack([np.asarray(image) for image in resized]))


def test_rows_may_be_numbers_masks_and_slices(photos):
    files = read_files(photos)
    whole = files.read(slice(None))
    for rows in (torch.tensor([4, 0, 0]), torch.tensor([True, False, True, False, False]), slice(1, None, 2)):
        assert torch.equal(files.read(rows), whole[rows])
        taken = files.take(rows)
        assert torch.equal(taken.labels, files.labels[rows])
        assert torch.equal(taken.read(slice(None)), whole[rows])
    assert files.read(torch.tensor([], dtype=torch.int64)).shape == (0, 3, CROP, CROP)


def test_broken_images_are_named_when_they_are_read(photos):
    path = photos / "cat" / "b.png"
    whole = path.read_bytes()
    files = read_files(photos)
    for content in (whole[: len(whole) // 2], whole[:50] + b"\xff" * 9 + whole[59:], b"nonsense", b""):
        path.write_bytes(content)
        assert len(files.read(torch.tensor([0, 2]))) == 2
        with pytest.raises(DataError, match=r"b\.png (cannot be decoded|is not an image)") as caught:
            files.read(slice(None))
        assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match=r"b\.png cannot be decoded.*No such file"):
        files.read(slice(None))


def test_folders_that_hold_no_images(tmp_path):
    with pytest.raises(DataError, match=f"{tmp_path} holds no images; there should be a folder of them for each class"):
        image_folder(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="cat holds no images"):
        image_folder(tmp_path)


def numbered(count):
    """Images that hold their number, and a label that follows from it."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Examples(images, torch.arange(count) % 3)


def test_hold_out_is_disjoint_and_complete_and_the_same_each_time():
    seen, held_out = hold_out(numbered(50), 20)
    numbers = [part.inputs[:, 0, 0, 0].tolist() for part in (seen, held_out)]
    assert len(numbers[1]) == 20
    assert sorted(numbers[0] + numbers[1]) == list(range(50))
    for part, found in zip((seen, held_out), numbers, strict=True):
        assert part.labels.tolist() == [number % 3 for number in found]
    assert torch.equal(hold_out(numbered(50), 20)[1].inputs, held_out.inputs)
    assert not torch.equal(hold_out(numbered(50), 20, seed=1)[1].inputs, held_out.inputs)
    assert numbers[1] != sorted(numbers[1])


@pytest.mark.parametrize("count", [0, 50, -3])
def test_hold_out_leaves_something_on_both_sides(count):
    with pytest.raises(DataError, match=f"{count} of 50 examples cannot be held out"):
        hold_out(numbered(50), count)


def test_read_take_and_move():
    split, rows = numbered(6), torch.tensor([5, 1])
    assert split.read(rows)[:, 0, 0, 0].tolist() == [5, 1]
    assert split.read(slice(2, 4))[:, 0, 0, 0].tolist() == [2, 3]
    assert split.take(rows).labels.tolist() == [2, 1]
    moved = split.to("meta")
    assert (moved.inputs.device.type, moved.labels.device.type) == ("meta", "meta")


@pytest.mark.parametrize(
    ("labels", "share"),
    [
        (torch.tensor([2, 0, 2, 1, 2]), 3 / 5),
        (Scores.of([{0: 1.0}, {1: 0.5, 2: 0.5}, {2: 0.75}, {}], 4), 1.25 / 4),
        (torch.tensor([[0.0], [0.2], [1.0]]), 1.8 / 3),
        (torch.tensor([[1.0], [0.8], [0.0]]), 1.8 / 3),
    ],
    ids=["classes", "scores", "mostly false", "mostly true"],
)
def test_how_right_the_most_common_answer_is(labels, share):
    assert majority(labels) == pytest.approx(share)
