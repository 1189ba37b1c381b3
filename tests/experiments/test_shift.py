"""Data from elsewhere: how well scores tell it apart, and what changed images do to risk."""

import sys
from dataclasses import replace

import pytest
import torch

from experiments import shift
from experiments.data import corruptions
from experiments.data.examples import Examples, hold_out
from experiments.exceptions import ExperimentError
from experiments.experiment import Splits
from experiments.pipeline import Pipeline
from experiments.rows import ROWS
from experiments.rows.small_images import GARMENTS_CNN
from experiments.shift import (
    FILE,
    OUT_OF_DISTRIBUTION,
    SCORES,
    accepted,
    auroc,
    corruptions_of,
    detection_table,
    mixed_corruptions_of,
    out_of_distribution,
    risk_table,
    shift_rows,
)
from tests.experiments.data import formats
from varprop.evaluation.methods import listed


def test_auroc_is_that_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    torch.manual_seed(0)
    inside, outside = torch.randn(300).mul(3).round(), torch.randn(200).mul(3).add(1).round()  # with ties
    labels = [0] * 300 + [1] * 200
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(labels, torch.cat([inside, outside])))
    assert auroc(inside, inside) == pytest.approx(0.5)
    assert auroc(torch.zeros(3), torch.ones(2)) == 1.0


def test_the_threshold_accepts_95_percent_of_the_inside():
    inside = torch.arange(100.0)  # 95 of them are at most 94
    assert accepted(inside, torch.tensor([93.0, 94.0, 94.5, 200.0])) == 0.5
    assert accepted(torch.zeros(7), torch.zeros(3)) == 1.0


def shifted(folder):
    images = Examples(
        torch.randint(0, 256, (60, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
        torch.arange(60) % 10,
    )
    train, held_out = hold_out(images, 20)
    recipe = replace(GARMENTS_CNN.recipe, epochs=1, batch=10)
    splits = Splits(train, held_out, images.take(slice(30)))
    experiment = replace(GARMENTS_CNN, splits=lambda *_: splits, recipe=recipe, methods=tuple(listed("mean,mc-2")))
    pipeline = Pipeline(experiment, (0, 1), folder, progress=False, log=lambda _: None)
    dark = Examples(torch.zeros(15, 1, 28, 28, dtype=torch.uint8), torch.zeros(15, dtype=torch.long))
    changed = {"none 0": lambda: images, "noise 2": lambda: images.take(slice(9))}
    return lambda: shift_rows(pipeline, {"darkness": dark}, changed)


def test_rows_and_tables(tmp_path):
    run, file = shifted(tmp_path), tmp_path / FILE
    rows = run()
    assert len(rows) == 2 * 2 * 3
    first = next(row for row in rows if row["data"] == "darkness" and row["method"] == "mc-2")
    assert first["scores"].keys() == SCORES.keys()
    assert all(0 <= value <= 1 for each in first["scores"].values() for value in each.values())
    before = file.read_text()
    assert run() == rows
    assert file.read_text() == before, "nothing is done twice"
    table = detection_table(rows, "garments-cnn", "darkness")
    assert [column.header for column in table.columns] == ["method", *SCORES]
    plain, sampled = table.columns[4].cells
    assert plain == "–", "the mean network has no variance"
    assert "±" in sampled
    assert [column.header for column in risk_table(rows, "garments-cnn", "nll").columns] == ["method", "0", "2"]


def test_every_row_with_other_data_is_there(tmp_path):
    formats.fashion(tmp_path / "fashion-mnist")
    formats.fashion(tmp_path / "mnist")
    assert len(out_of_distribution("garments-cnn-adamw", tmp_path)["MNIST"]) == 3
    assert len(out_of_distribution("digits-cnn", tmp_path)["Fashion-MNIST"]) == 3
    assert out_of_distribution("sst2-minilm", tmp_path) == {}
    assert set(OUT_OF_DISTRIBUTION) <= set(ROWS) | {row.removesuffix("-adamw") for row in ROWS}
    assert set(corruptions_of(Examples(torch.zeros(2), torch.zeros(2)), 0)) == {"none 0"}
    assert len(corruptions_of(Examples(torch.zeros(2), torch.zeros(2)), 1)) == 1 + 15 * 5


def test_damaged_images_are_made_once(monkeypatch):
    made = []
    monkeypatch.setattr(shift, "corrupted", lambda images, kind, strength: made.append((kind, strength)) or images)
    found = corruptions_of(Examples(torch.arange(5), torch.arange(5)), 2)
    assert found["fog 2"]() is found["fog 2"]()
    assert len(found["fog 3"]()) == 2
    assert made == [("fog", 2), ("fog", 3)]


def test_kinds_of_damage_that_are_mixed(monkeypatch):
    made = {}
    monkeypatch.setattr(shift, "corrupted", lambda images, kind, _: made.setdefault(kind, images))
    found = mixed_corruptions_of(Examples(torch.arange(32), torch.arange(32)))
    assert list(found) == ["none 0", *(f"mixed {strength}" for strength in corruptions.STRENGTHS)]
    assert found["mixed 4"]() is found["mixed 4"]()
    assert torch.equal(found["mixed 4"]().inputs, torch.arange(32)), "each image once, in its place"
    assert {kind: len(images) for kind, images in made.items()}.keys() == set(corruptions.KINDS)
    assert {len(images) for images in made.values()} == {2, 3}


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    before = set(sys.modules)
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    corruptions._library.cache_clear()
    with pytest.raises(ExperimentError, match="pip install imagecorruptions scikit-image opencv"):
        corruptions.corrupted(Examples(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.zeros(1)), "fog", 1)
    assert "pkg_resources" not in set(sys.modules) - before  # what stands in for it is taken away again


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # inside the package
def test_all_kinds_of_damage():
    pytest.importorskip("cv2")
    pytest.importorskip("skimage")
    corruptions._library.cache_clear()
    images = Examples(
        torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
        torch.arange(2),
    )
    for kind in corruptions.KINDS:
        found, again, strong = (corruptions.corrupted(images, kind, strength) for strength in (1, 1, 5))
        assert torch.equal(found.inputs, again.inputs)
        assert found.inputs.shape == images.inputs.shape
        assert not torch.equal(found.inputs, strong.inputs)
