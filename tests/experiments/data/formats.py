"""Small files in exactly the formats in which the data sets are published, and what is in them."""

import gzip
import io
import json
import struct

import numpy as np
from PIL import Image

from experiments.data.cifar import NAMES_100, PACKS, PARTS, PARTS_100
from experiments.data.idx import FILES

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


FINE = [RNG.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8) for size in (6, 4)]
FINE_LABELS = [np.array(labels, np.uint8) for labels in ([99, 0, 19, 20, 7, 7], [50, 1, 2, 98])]
FINE_NAMES = [f"thing_{number}" for number in range(100)]


def hundred():
    """As on cs.toronto.edu/~kriz/cifar.html: a coarse label, a fine one, 3072 bytes."""
    parts = {
        name: b"".join(
            bytes([label % 20, label]) + image.tobytes() for image, label in zip(images, labels, strict=True)
        )
        for name, images, labels in zip(PARTS_100, FINE, FINE_LABELS, strict=True)
    }
    return {**parts, NAMES_100: "".join(f"{name}\n" for name in FINE_NAMES).encode() + b"\n"}


def hundred_binary(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in hundred().items():
        (folder / name).write_bytes(data)
    return folder


def picture(width, height, mode="RGB", shade=0):
    """Red grows to the right, green downwards, blue is the shade: smooth, so that JPEG keeps it."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    pixels = np.stack([x, y, np.full_like(x, shade)], -1).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image, form="JPEG"):
    out = io.BytesIO()
    image.save(out, form, **({"quality": 95} if form == "JPEG" else {}))
    return out.getvalue()


def image_pack(path, images, labels):
    data = np.frombuffer(b"".join(images), np.uint8)
    np.savez(path, images=data, ends=np.cumsum([len(each) for each in images]), labels=np.array(labels))
    return path


# Shades stand for images: what is read can be recognised. The third is grey.
SHADES = {"train_1.npz": [0, 20, 40], "train_2.npz": [60, 80], "val.npz": [100, 120]}
SHADE_LABELS = {"train_1.npz": [0, 1, 2], "train_2.npz": [2, 0], "val.npz": [1, 2]}
SYNSETS = {"n01443537": "goldfish, Carassius auratus", "n01641577": "bullfrog", "n01698640": "alligator, gator"}


def tiny_pack(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, shades in SHADES.items():
        images = [encoded(picture(64, 64, "L" if shade == 40 else "RGB", shade)) for shade in shades]
        image_pack(folder / name, images, SHADE_LABELS[name])
    classes = [{"wnid": wnid, "name": name} for wnid, name in SYNSETS.items()]
    (folder / "classes.json").write_text(json.dumps(classes))
    return folder


def tiny_official(folder):
    """As tiny-imagenet-200.zip unpacks; its list of classes is not sorted."""
    wnids = list(SYNSETS)
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in reversed(wnids)))
    (folder / "words.txt").write_text("".join(f"{wnid}\t{name}\n" for wnid, name in [*SYNSETS.items(), ("n1", "x")]))
    for label, wnid in enumerate(wnids):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t10\t10\n")
        for number in range(2):
            picture(64, 64, shade=60 * label + 30 * number).save(images / f"{wnid}_{number}.JPEG", quality=95)
    rows = []
    for number, label in enumerate([2, 0]):
        picture(64, 64, shade=200 + 50 * number).save(folder / "val" / "images" / f"val_{number}.JPEG", quality=95)
        rows.append(f"val_{number}.JPEG\t{wnids[label]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    return folder


# Official GLUE: sentence first, a space before the tab, no labels in the test set.
GLUE = {
    "train.tsv": 'sentence\tlabel\nhide new secretions from the parental units \t0\nthat "loves its characters \t1\n',
    "dev.tsv": "sentence\tlabel\nit 's a charming\u2028and often affecting journey . \t1\n",
    "test.tsv": "index\tsentence\n0\tuneasy mishmash of styles and genres .\n",
}
# As others pass it on: labels first, other names, other ends of lines.
OTHER_GLUE = {
    "train.tsv": "label\tsentence\r\n0\thide new secretions from the parental units\r\n"
    '1\tthat "loves its characters\r\n',
    "dev.tsv": "label\tcontent\n1\tit 's a charming\u2028and often affecting journey .\n",
    "test.tsv": "label\tcontent\n0\tuneasy mishmash of styles and genres .\n",
}


def glue(folder, texts=GLUE, zipped=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        data = text.encode()
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(data) if zipped else data)
    return folder
