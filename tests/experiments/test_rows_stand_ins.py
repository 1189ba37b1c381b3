"""What stands in for VQAv2 and NLVR2: DAQUAR and NLVR with small models, on synthetic data."""

import functools
import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments import pretraining
from experiments.data import daquar as photos_of_rooms
from experiments.data.daquar import daquar
from experiments.data.examples import map_inputs
from experiments.data.nlvr import COLOURS, ORDERS, nlvr, rearranged, recoloured, shape_tokens
from experiments.exceptions import DataError, ExperimentError
from experiments.models.features import image_tokens, load_tokens
from experiments.models.fusion import Multiway, SingleStream, fusion, masked
from experiments.pipeline import Pipeline
from experiments.rows import ROWS
from experiments.rows.daquar_fusion import DAQUAR_MULTIWAY, DAQUAR_SINGLE_STREAM
from experiments.side_by_side import SideBySide
from tests.experiments import hf_folders, keras_files, synthetic_rows
from tests.experiments.data import multimodal_files as files
from varprop.evaluation.methods import listed

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings(
    "ignore:calibration ended after",
    "ignore:calibration raised the NLL",
    "ignore:these predictions are underconfident",
    "ignore:.* held-out examples for .* are few",
)
MADE = {
    "daquar-single-stream": functools.partial(synthetic_rows.daquar, experiment=DAQUAR_SINGLE_STREAM),
    "daquar-multiway": functools.partial(synthetic_rows.daquar, experiment=DAQUAR_MULTIWAY),
    "nlvr-multiway": synthetic_rows.nlvr,
}


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    monkeypatch.setattr(photos_of_rooms, "TESTED", 3)
    monkeypatch.setattr(photos_of_rooms, "HELD_OUT", 2)


def run(folder, name, methods):
    experiment, sources = MADE[name](folder)
    experiment = replace(experiment, methods=tuple(listed(methods)))
    quiet = {"progress": False, "log": lambda _: None}
    return Pipeline(experiment, (0,), folder / "results", sources=sources, **quiet)


@pytest.mark.parametrize("name", MADE)
def test_trained_and_tested_on_little(tmp_path, name, without_measuring):
    pipeline = run(tmp_path, name, "mean,mc-2")
    rows = pipeline.run().rows
    splits = pipeline.splits(0)
    sizes = (20, 8, 12) if "daquar" in name else (36 * 12, 4, 8)
    assert tuple(map(len, splits[:3])) == sizes
    assert [(row.method, row.examples) for row in rows] == [("mean", sizes[2]), ("mc-2", sizes[2])]
    assert rows[0].config["stand_in"]
    assert rows[0].config["paper"] == ROWS[name].paper
    assert len(splits.texts) == sizes[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_to_the_row_of_cvp(tmp_path, name, without_measuring):
    rows = run(tmp_path, name, "mean,cvp").run().rows
    assert any(scale != 1 for scale in rows[1].scales.values())


def test_pretraining_is_done_once_and_every_seed_starts_from_it(tmp_path, monkeypatch):
    experiment, sources = synthetic_rows.nlvr(tmp_path)
    monkeypatch.setattr(pretraining, "train", None)
    given = replace(sources, weights=tmp_path / "bert")
    assert pretraining.pretrained(experiment, given, tmp_path / "pretraining", "cpu") == sources
    assert pretraining.pretrained(experiment, sources, tmp_path / "elsewhere", "cpu") == sources
    first, second = (experiment.model(experiment.recipe, sources, seed).state_dict() for seed in (0, 1))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    stage = experiment.pretraining[0]
    before = stage.model(stage.recipe, given, 0).state_dict()
    moved = [name for name, x in before.items() if not torch.allclose(x, first[name], atol=1e-4)]
    assert {name.partition(".")[0] for name in moved} >= {"words", "layers", "project", "head"}


def test_pretraining_that_is_stopped_goes_on(tmp_path, monkeypatch):
    """In the stage that was not finished: the first ones are not done again."""
    write = pretraining._write

    def stopped(made, *rest):
        if "stage3" in made.name:
            raise KeyboardInterrupt
        write(made, *rest)

    monkeypatch.setattr(pretraining, "_write", stopped)
    with pytest.raises(KeyboardInterrupt):
        synthetic_rows.nlvr(tmp_path)
    monkeypatch.undo()
    kept = next((tmp_path / "pretraining").glob("*stage2*/fusion.safetensors")).stat().st_mtime_ns
    _, sources = synthetic_rows.nlvr(tmp_path)
    assert "stage3" in sources.weights.name
    assert next((tmp_path / "pretraining").glob("*stage2*/fusion.safetensors")).stat().st_mtime_ns == kept


def test_a_row_is_not_trained_from_what_is_not_pretrained(tmp_path):
    experiment, sources = synthetic_rows.nlvr(tmp_path)
    with pytest.raises(ExperimentError, match=r"bert holds no fusion.safetensors: .* pretrain nlvr-multiway"):
        experiment.model(experiment.recipe, replace(sources, weights=tmp_path / "bert"), 0)


def test_generated_statements_are_read_as_real_ones_are(tmp_path):
    experiment, sources = synthetic_rows.nlvr(tmp_path)
    real, made = experiment.splits(sources, 0).train, experiment.pretraining[2].examples(sources, 40)
    rows = torch.tensor([3, 0])
    shapes = [{name: (x.dtype, x.shape) for name, x in each.read(rows).items()} for each in (real, made)]
    assert shapes[0] == shapes[1]
    assert made.labels.shape == (40, 1)


def test_answers_of_several_words_share_their_score(tmp_path):
    found = daquar(files.daquar(tmp_path / "daquar"))
    assert found.answers == ("2", "pillow", "table")
    assert found.scores[:2].tolist() == [[0, 0.5, 0], [1, 0, 0]], "toy is not among the answers"
    assert found.image.tolist() == [0, 0, 1, 1, 2, 2] * 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("what,,image1", "line 2 of .*eval.csv lacks one of question, answer, image_id"),
        ("what,bed,image9", "line 2 of .*eval.csv is about 'image9', which is not in images.npz"),
    ],
)
def test_wrong_lines_of_daquar(tmp_path, line, message):
    folder = files.daquar(tmp_path / "daquar")
    (folder / "eval.csv").write_text(f"question,answer,image_id\n{line}\n")
    with pytest.raises(DataError, match=message):
        daquar(folder)


def test_no_image_is_in_two_parts(tmp_path):
    experiment, sources = MADE["daquar-multiway"](tmp_path)
    parts = [set(part.inputs["image"].index.tolist()) for part in experiment.splits(sources, 0)[:3]]
    assert [len(part) for part in parts] == [5, 2, 3]
    assert len(set.union(*parts)) == 10


def test_votes_are_soft_labels_and_boxes_are_reordered(tmp_path):
    found = nlvr(files.nlvr(tmp_path / "nlvr"))
    assert found["dev"].truth.tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 0.2, 0.4, 0.6])
    assert found["hidden"].truth.tolist() == [0, 0, 1, 1, 1, 0, 0, 1]
    tokens, present = shape_tokens(found["dev"].boxes[2:3])
    turned, there = rearranged(tokens, present, ORDERS[3])
    assert ORDERS[3] == (1, 2, 0)
    assert present.sum() == there.sum() == 9
    colour, box = slice(8, 11), slice(11, 14)
    assert tokens[0, 0, colour].tolist() == [1, 0, 0]
    assert turned[0, 0, colour].tolist() == [0, 1, 0]
    assert tokens[0, 0, box].tolist() == turned[0, 0, box].tolist() == [1, 0, 0]


@pytest.mark.parametrize("boxes", ORDERS)
@pytest.mark.parametrize("colours", ORDERS)
def test_rearranged_shapes_are_those_of_a_rearranged_scene(boxes, colours):
    """Also of boxes with other numbers of shapes, and of none."""
    kinds = [(2, "yellow"), (0, "black"), (3, "#0099FF")]
    scene = [[files.shape(colour=colour, x=10 * i) for i in range(count)] for count, colour in kinds]
    repainted = {old: COLOURS[new] for old, new in zip(COLOURS, colours, strict=True)}
    moved = [[{**shape, "color": repainted[shape["color"].lower()]} for shape in scene[box]] for box in boxes]
    found = rearranged(*shape_tokens([scene, scene]), boxes, colours)
    torch.testing.assert_close(found, shape_tokens([moved, moved]))


def test_statements_about_other_colours():
    text = "Ablue block, blacks and YELLOW."
    assert recoloured([text], (1, 2, 0)) == ["Ayellow block, blues and black."]


def test_nonsense_is_not_counted(tmp_path):
    folder = files.nlvr(tmp_path / "nlvr")
    edited({"evals": {"r1": "true", "r2": "nonsense", "r3": "false", "r4": "true"}})(folder)
    assert nlvr(folder)["dev"].truth[2] == pytest.approx(2 / 3)
    edited({"evals": {"r1": "nonsense"}, "label": "false"})(folder)
    assert nlvr(folder)["dev"].truth[2] == 0


def edited(entries):
    def change(folder):
        path = folder / "dev.json.gz"
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
        lines[2] |= entries
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))

    return change


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (edited({"evals": {"r1": "maybe"}}), "line 3 of .*dev.json.gz has votes or a label other than"),
        (edited({"structured_rep": [[], []]}), "line 3 .* has boxes of 0, 0 shapes: there should be 3"),
        (edited({"structured_rep": [[files.shape("star")], [], []]}), "line 3 .* a shape of unknown kind"),
        (edited({"structured_rep": 3}), "line 3 .* is no statement of NLVR"),
        (lambda f: (f / "dev.json.gz").write_bytes(b"no"), "dev.json.gz is not a whole file"),
        (lambda f: (f / "dev.json.gz").write_bytes(gzip.compress(b"{")), "line 1 of .*dev.json.gz is not JSON"),
    ],
)
def test_wrong_lines_of_nlvr(tmp_path, spoil, message):
    folder = files.nlvr(tmp_path / "nlvr")
    spoil(folder)
    with pytest.raises(DataError, match=message):
        nlvr(folder)


def test_experts_start_as_the_blocks_they_are_copied_from(tmp_path):
    folder = hf_folders.bert(tmp_path / "bert")
    sizes = {"features": 8, "tokens": 6, "classes": 3}
    single, multiway = (fusion(kind, folder, 0, **sizes) for kind in (SingleStream, Multiway))
    words = {"input_ids": torch.randint(4, 9, (2, 5)), "attention_mask": torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])}
    batch = masked(
        {**words, "image": torch.randn(2, 6, 8).half(), "present": torch.tensor([[1] * 6, [1] * 4 + [0] * 2])}
    )
    with torch.no_grad():
        wanted = single(**batch)
        torch.testing.assert_close(multiway(**batch), wanted)
        other = {**batch, "image": batch["image"].clone()}
        other["image"][1, 4:] = 9.0
        torch.testing.assert_close(single(**other), wanted)
        x, layer = torch.randn(2, 11, 32), multiway.layers[0]
        before = multiway.feed(0, layer, x, 5)
        multiway.experts[0][1].dense.bias.add_(torch.arange(32.0))
        after = multiway.feed(0, layer, x, 5)
    same = torch.isclose(before, after).all(-1)
    assert same[:, :5].all()
    assert not same[:, 5:].any()


def test_two_models_run_as_one(tmp_path):
    """As on a GPU, where several seeds are trained together."""
    experiment, sources = MADE["daquar-multiway"](tmp_path)
    models = [experiment.model(experiment.recipe, sources, seed) for seed in (0, 1)]
    inputs = experiment.prepare(experiment.splits(sources, 0).train.read(slice(4)))
    stack = SideBySide(models, "cpu")
    rows = torch.stack([stack.row(model) for model in models])
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # as in training
        together = stack(rows, map_inputs(inputs, lambda x: x.unflatten(0, (2, 2))))
        for index, model in enumerate(models):
            alone = model(**map_inputs(inputs, lambda x, i=index: x[2 * i : 2 * i + 2]))
            torch.testing.assert_close(together[index], alone, rtol=1e-5, atol=1e-6)


def test_image_tokens_are_principal_components(tmp_path):
    (tmp_path / "keras").mkdir()
    keras_files.write(tmp_path / "keras", keras_files.weights())
    images = torch.randint(0, 256, (9, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    tokens = image_tokens(tmp_path / "keras", images, torch.arange(7), dimensions=3).float()
    assert tokens.shape == (9, 6, 3)
    torch.testing.assert_close(tokens[:7].flatten(0, 1).mean(0), torch.zeros(3), atol=0.01, rtol=0)
    torch.testing.assert_close(torch.cov(tokens[:7].flatten(0, 1).T), torch.eye(3), atol=0.02, rtol=0)


def test_wrong_files_of_image_tokens(tmp_path):
    (tmp_path / "tokens.npz").write_bytes(b"no")
    with pytest.raises(DataError, match="holds no image tokens: .* make it with python -m experiments features"):
        load_tokens(tmp_path / "tokens.npz", 3)
    np.savez(tmp_path / "tokens.npz", tokens=np.zeros((2, 3, 4), np.float16))
    with pytest.raises(DataError, match=r"holds \[2, 3, 4\] tokens for 3 images"):
        load_tokens(tmp_path / "tokens.npz", 3)
