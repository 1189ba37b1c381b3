"""Changes of images, against one image at a time and nothing but indexing."""

import pytest
import torch

from experiments.augment import UNCHANGED, Augment, apply

pytestmark = pytest.mark.second

SHAPES = [(3, 8, 8), (3, 7, 5), (1, 9, 4), (1, 1, 1)]
EVERYTHING = Augment(pad=3, flip=True, jitter=0.5, erase=3)


def pictures(shape, count=40):
    return torch.randint(0, 256, (count, *shape), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def one(image, shift, flip, colour, corner, side):
    """The padded image is cropped, mirrored, coloured, and a grey square put on it."""
    channels, height, width = image.shape
    pad = 20
    canvas = torch.zeros(channels, height + 2 * pad, width + 2 * pad)
    canvas[:, pad : pad + height, pad : pad + width] = image
    top, left = pad + int(shift[0]), pad + int(shift[1])
    found = canvas[:, top : top + height, left : left + width]
    if flip:
        found = found.flip(-1)
    brightness, contrast, saturation = (float(factor) for factor in colour)
    found = found * brightness
    found = found.mean() + (found - found.mean()) * contrast
    grey = found.mean(0, keepdim=True)
    found = (grey + (found - grey) * saturation).clamp(0, 255)
    y, x = (int(c * size) - int(side) // 2 for c, size in zip(corner, (height, width), strict=True))
    for row in range(max(y, 0), min(y + int(side), height)):
        for column in range(max(x, 0), min(x + int(side), width)):
            found[:, row, column] = 127.5
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "augment", [Augment(pad=2), Augment(flip=True), Augment(jitter=0.4), Augment(erase=4), EVERYTHING], ids=str
)
def test_each_image_is_changed_as_if_it_were_alone(shape, augment):
    raw = pictures(shape)
    draws = augment.draw(len(raw), generator())
    found = apply(raw, draws)
    assert found.dtype == torch.float32
    for i, image in enumerate(raw):
        expected = one(image.float(), *(draws[name][i] for name in ("shift", "flip", "colour", "corner", "side")))
        torch.testing.assert_close(found[i], expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_default_changes_nothing(shape):
    raw = pictures(shape)
    assert torch.allclose(apply(raw, UNCHANGED.draw(len(raw), generator())), raw.float(), rtol=0, atol=1e-3)


def test_draws_cover_what_they_may_and_no_more():
    draws = EVERYTHING.draw(4000, generator())
    assert draws["shift"].unique().tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert draws["flip"].float().mean() == pytest.approx(0.5, abs=0.05)
    assert draws["colour"].min() == pytest.approx(0.5, abs=0.01)
    assert draws["colour"].max() == pytest.approx(1.5, abs=0.01)
    assert draws["side"].unique().tolist() == [3]
    still = Augment(pad=1).draw(100, generator())
    assert not still["flip"].any()
    assert (still["colour"] == 1).all()
    assert (still["side"] == 0).all()


def test_draws_come_from_the_generator_alone():
    first, again, other = (EVERYTHING.draw(50, generator(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["corner"], other["corner"])


def test_erased_squares_reach_the_edges():
    """The centre lies anywhere: all pixels are hit about as often, those at the edges less."""
    raw = torch.zeros(6000, 1, 6, 6, dtype=torch.uint8)
    hit = (apply(raw, Augment(erase=2).draw(len(raw), generator())) > 0).float().mean((0, 1))
    assert hit.min() > 0.02  # the last row and column see half as many squares
    assert torch.allclose(hit[:5, :5].mean(), torch.tensor(4 / 36), atol=0.01)
