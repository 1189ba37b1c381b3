"""NLVR2 in its official files."""

import json

import pytest

from experiments.data.nlvr2 import nlvr2
from experiments.exceptions import DataError
from tests.experiments.data import multimodal_files as files


def test_statements_have_two_images_and_a_label(tmp_path):
    found = nlvr2(files.nlvr2(tmp_path / "nlvr2"))
    assert [len(part.texts) for part in found] == [3, 2, 2]
    assert found.train.labels.tolist() == [1, 0, 1]
    assert [path.split("/images/")[1] for path in found.train.paths[1]] == [
        "train/1/train-1-0-img0.png",
        "train/1/train-1-0-img1.png",
    ]
    assert found.test.paths[0][0].endswith("images/test1/test1-0-0-img0.png")


def altered(**entries):
    def change(folder):
        path = folder / "dev.json"
        lines = path.read_text().splitlines()
        line = {name: value for name, value in (json.loads(lines[1]) | entries).items() if value is not None}
        path.write_text("\n".join([lines[0], json.dumps(line)]))

    return change


BAD = {
    "label": (altered(label="maybe"), "line 2 of .*dev.json has the label 'maybe' instead of True or False"),
    "sentence": (altered(sentence=None), "line 2 of .*dev.json lacks sentence"),
    "image": (altered(identifier="dev-7-0-0"), "line 2 of .*dev-7-0-0, has 0 of the 2 images .* no .*dev-7-0-img0.png"),
    "one image": (
        lambda folder: (folder / "images" / "dev" / "dev-1-0-img1.png").unlink(),
        "line 2 of .*dev-1-0-0, has 1 of the 2 images .* no .*dev-1-0-img1.png",
    ),
    "damaged": (
        lambda folder: (folder / "dev.json").write_text('{"sentence": "a"'),
        "line 1 of .*dev.json is not JSON",
    ),
    "list": (lambda folder: (folder / "dev.json").write_text("[]\n"), "line 1 of .*dev.json is not a JSON object"),
    "empty": (lambda folder: (folder / "dev.json").write_text(""), "dev.json holds no statements"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_named(tmp_path, what):
    spoil, message = BAD[what]
    folder = files.nlvr2(tmp_path / "nlvr2")
    spoil(folder)
    with pytest.raises(DataError, match=message):
        nlvr2(folder)
