"""Small files in exactly the formats in which the data sets are published, and what is in them."""

import gzip
import io
import struct
import tarfile

import numpy as np
from PIL import Image

from varprop.data.cifar import ARCHIVE, PACKS, PARTS
from varprop.data.idx import FILES

RNG = np.random.default_rng(0)
GREY = {"train": RNG.integers(0, 256, (7, 28, 28), dtype=np.uint8), "t10k": RNG.integers(0, 256, (3, 28, 28), np.uint8)}
GREY_LABELS = {"train": np.array([3, 0, 9, 9, 1, 4, 2], np.uint8), "t10k": np.array([5, 0, 9], np.uint8)}
# Five parts to train on and one to test on, none as long as another; 230 images need a second sheet.
SIZES = (3, 230, 1, 2, 4, 5)
COLOUR = [RNG.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8) for size in SIZES]
COLOUR_LABELS = [RNG.integers(0, 10, size).astype(np.uint8) for size in SIZES]


def idx(values):
    """As on yann.lecun.com/exdb/mnist: 0, 0, type 8, dimensions, sizes with the highest byte first, values."""
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return gzip.compress(header + values.tobytes())


def fashion(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        part = name.split("-")[0]
        (folder / name).write_bytes(idx((GREY if "images" in name else GREY_LABELS)[part]))
    return folder


def records(images, labels):
    """As on cs.toronto.edu/~kriz/cifar.html: a label, 1024 bytes of red, of green, of blue, row by row."""
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))


def binary(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, images, labels in zip(PARTS, COLOUR, COLOUR_LABELS, strict=True):
        (folder / name).write_bytes(records(images, labels))
    return folder


def archive(folder, parts=PARTS):
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / ARCHIVE, "w:gz") as file:
        for name, images, labels in zip(PARTS, COLOUR, COLOUR_LABELS, strict=True):
            if name in parts:
                data = records(images, labels)
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    return folder


def sheet(images, rows=20, columns=10):
    """One lossless WebP of up to 200 images, row by row; places that are left are black."""
    canvas = np.zeros((rows * 32, columns * 32, 3), np.uint8)
    for place, image in enumerate(images):
        y, x = 32 * (place // columns), 32 * (place % columns)
        canvas[y : y + 32, x : x + 32] = image.transpose(1, 2, 0)
    out = io.BytesIO()
    Image.fromarray(canvas).save(out, "WEBP", lossless=True)
    return out.getvalue()


def pack(path, sheets, labels):
    data = np.frombuffer(b"".join(sheets), np.uint8)
    np.savez(path, sheets=data, ends=np.cumsum([len(each) for each in sheets]), labels=labels)


def packed(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, images, labels in zip(PACKS, COLOUR, COLOUR_LABELS, strict=True):
        pack(folder / name, [sheet(images[i : i + 200]) for i in range(0, len(images), 200)], labels)
    return folder
