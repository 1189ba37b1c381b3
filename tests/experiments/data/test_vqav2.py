"""VQAv2 in its official files."""

import json

import pytest
import torch

from experiments.data.examples import Examples, Scores, hold_out
from experiments.data.image_files import Padded, square_files
from experiments.data.vqav2 import ANNOTATIONS, QUESTIONS, VOCABULARY, normalized, vqav2
from experiments.exceptions import DataError
from tests.experiments.data import multimodal_files as files

TRAIN_Q, TRAIN_A = QUESTIONS["train2014"], ANNOTATIONS["train2014"]


def test_questions_images_and_scores_belong_together(tmp_path):
    found = vqav2(files.vqav2(tmp_path / "vqav2"), size=None)
    assert found.answers == ("no", "2") or found.answers == ("2", "no")
    two, no = found.answers.index("2"), found.answers.index("no")
    assert found.train.texts[0] == "How many cats are there?"
    assert found.train.paths[3].endswith("train2014/COCO_train2014_000000000012.jpg")
    scores = found.train.scores[:]
    assert scores.shape == (10, 2)
    assert scores[0, two] == 1, "seven said 2 and one two, which is the same"
    assert scores[9].sum() == 0, "nothing in the vocabulary is right: the question stays"
    assert found.val.scores[:][:, no].tolist() == [1.0] * 18


@pytest.mark.parametrize(("count", "score"), [(1, 1 / 3), (2, 2 / 3), (3, 1.0), (9, 1.0)])
def test_an_answer_that_n_of_ten_gave_scores_a_third_of_n(tmp_path, count, score):
    asked = {part: [("Is it?", {"yes": count, "no": 10 - count})] * 9 for part in files.ASKED}
    (tmp_path / "vqav2").mkdir()
    (tmp_path / "vqav2" / VOCABULARY).write_text('{"answer": "yes", "label": 0}\n')
    found = vqav2(files.vqav2(tmp_path / "vqav2", asked), size=1)
    assert found.answers == ("yes",)
    assert found.train.scores[:].squeeze(1).tolist() == pytest.approx([score] * 9)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("The Cat.", "cat"),
        ("two", "2"),
        ("none", "0"),
        ("dont know", "don't know"),
        ("1,000", "1000"),
        ("3.5", "3.5"),
        ("black/white", "black white"),
        ("black / white", "black white"),
        (" a\tdog\n", "dog"),
        ("yes!", "yes"),
    ],
)
def test_answers_are_compared_as_the_official_evaluation_does(said, meant):
    assert normalized(said) == meant


def broken(name, text):
    return lambda folder: (folder / name).write_text(text)


def change(name, edit):
    return lambda folder: files.edited(folder / name, edit)


BAD = {
    "damaged": (
        broken(TRAIN_Q, '{"questions": [\n{"image_id": 3,,}'),
        rf"line 2, column 16 of .*{TRAIN_Q} is not JSON",
    ),
    "empty": (broken(TRAIN_Q, ""), rf"line 1, column 1 of .*{TRAIN_Q} is not JSON"),
    "other": (broken(TRAIN_A, '{"questions": []}'), f"{TRAIN_A} is not an official file .* no list of annotations"),
    "no image id": (change(TRAIN_Q, lambda c: c["questions"][4].pop("image_id")), "entry 4 of .* lacks 'image_id'"),
    "unasked": (
        change(TRAIN_A, lambda c: c["annotations"].pop(0)),
        f"question 18000, entry 9 of .*{TRAIN_Q}, has no annotation in .*{TRAIN_A}",
    ),
    "nine": (
        change(TRAIN_A, lambda c: c["annotations"][9]["answers"].pop()),
        f"question 9000, entry 9 of .*{TRAIN_A}, has 9 answers instead of 10",
    ),
    "no image": (
        lambda folder: (folder / "val2014" / "COCO_val2014_000000000011.jpg").unlink(),
        "val2014 lacks COCO_val2014_000000000011.jpg, of question 11000 .* and 0 more",
    ),
    "label": (
        broken(VOCABULARY, '{"answer": "a", "label": 0}\n{"answer": "b"}\n'),
        f"line 2 of .*{VOCABULARY} lacks label",
    ),
    "twice": (broken(VOCABULARY, '{"answer": "a", "label": 0}\n' * 2), f"line 2 of .*{VOCABULARY} has the label 0"),
    "gap": (broken(VOCABULARY, '{"answer": "a", "label": 1}\n'), "are not 0 to 0"),
    "line": (broken(VOCABULARY, '{"answer": "a", "label": 0}\n{"a'), f"line 2 of .*{VOCABULARY} is not JSON"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_named(tmp_path, what):
    spoil, message = BAD[what]
    folder = files.vqav2(tmp_path / "vqav2")
    spoil(folder)
    with pytest.raises(DataError, match=message):
        vqav2(folder, size=None)


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    with pytest.raises(DataError, match="gives a vocabulary of 2 answers instead of 3129"):
        vqav2(files.vqav2(tmp_path / "vqav2"))


def test_a_folder_of_images_must_be_there(tmp_path):
    folder = files.vqav2(tmp_path / "vqav2")
    (folder / "train2014").rename(folder / "elsewhere")
    with pytest.raises(DataError, match="the images of train2014 are not in .*train2014"):
        vqav2(folder, size=None)


def test_scores_are_dense_when_they_are_read():
    scores = Scores.of([{2: 0.5}, {}, {0: 1.0, 3: 0.25}], 4)
    dense = torch.tensor([[0, 0, 0.5, 0], [0, 0, 0, 0], [1, 0, 0, 0.25]])
    assert torch.equal(scores[:], dense)
    assert torch.equal(scores[torch.tensor([2, 0])], dense[[2, 0]])
    assert torch.equal(scores.take(slice(1, 3))[:], dense[1:])
    assert len(scores.to("cpu")) == 3
    assert Scores.of([], 4)[:].shape == (0, 4)


def illustrated(folder, view):
    found = vqav2(files.vqav2(folder / "vqav2"), size=None).train
    tokens = {"input_ids": torch.arange(20).view(10, 2)}
    return Examples(tokens | view(found.paths), found.scores)


def test_images_become_squares(tmp_path):
    examples = illustrated(tmp_path, lambda paths: {"image": square_files(paths, 32)})
    some = examples.take(torch.tensor([4, 0, 7]))
    found = some.read(slice(2))
    assert found["image"].shape == (2, 3, 32, 32)
    assert found["input_ids"].tolist() == [[8, 9], [0, 1]]
    assert torch.equal(found["image"][0], examples.read(torch.tensor([4]))["image"][0])
    train, held = hold_out(examples, 3)
    assert (len(train), len(held), train.labels[:].shape) == (7, 3, (7, 2))


def test_images_are_padded_at_their_own_sizes(tmp_path):
    found = illustrated(tmp_path, Padded(short=96, long=160)).read(slice(3))
    assert found["pixel_values"].shape == (3, 3, 160, 160)
    assert found["sizes"].tolist() == [[96, 128], [128, 96], [96, 96]]
    values = found["pixel_values"].float()
    assert values[0, :, 96:].max() == 0
    assert values[0, :, :, 128:].max() == 0
    assert values[0, :, 80:96, 100:128].max() > 0


@pytest.mark.parametrize(
    ("image", "size"),
    [((640, 480), (512, 384)), ((480, 640), (384, 512)), ((640, 200), (608, 192)), ((500, 375), (512, 384))],
)
def test_sizes_are_those_of_vilts_own_processor(image, size):
    transformers = pytest.importorskip("transformers")
    assert Padded().size(*image) == size
    make = getattr(transformers, "ViltImageProcessorPil", None) or transformers.ViltImageProcessor
    processor = make(size={"shortest_edge": 384}, size_divisor=32)
    PIL = pytest.importorskip("PIL.Image")
    found = processor(PIL.new("RGB", image), return_tensors="np")["pixel_values"]
    assert found.shape[2:] == size[::-1]


def test_the_vocabulary_may_be_given_in_any_order(tmp_path):
    folder = files.vqav2(tmp_path / "vqav2")
    lines = [json.dumps({"answer": answer, "label": label}) for answer, label in (("no", 1), ("yes", 0))]
    (folder / VOCABULARY).write_text("\n".join(lines))
    assert vqav2(folder, size=2).answers == ("yes", "no")
