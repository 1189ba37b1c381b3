"""Questions and statements about images, end to end: on little in seconds, at full size in many minutes."""

import functools
from dataclasses import replace

import pytest
import torch

from experiments.data.examples import in_some_groups
from experiments.data.image_files import Padded
from experiments.data.vqav2 import Questions
from experiments.models.beit3 import BASE
from experiments.pipeline import Pipeline
from experiments.rows import ROWS
from experiments.rows.vqav2_rows import beit3_columns, vilt_columns
from tests.experiments import hf_folders, multimodal, synthetic_rows
from varprop.evaluation.evaluate import evaluate_answers
from varprop.evaluation.methods import listed
from varprop.moments import Moments
from varprop.prediction.links import Sigmoid
from varprop.report import tables
from varprop.report.summary import Summary

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings(
    "ignore:calibration ended after",
    "ignore:calibration raised the NLL",
    "ignore:these predictions are underconfident",
    "ignore:.* held-out examples for .* are few",
)
SMALL = {
    "vqav2-beit3": (synthetic_rows.vqav2_beit3, 16),
    "nlvr2-beit3": (synthetic_rows.nlvr2_beit3, 3),
    "vqav2-vilt": (synthetic_rows.vqav2_vilt, 16),
}
FULL = {
    "vqav2-beit3": (
        functools.partial(synthetic_rows.vqav2_beit3, sizes={**BASE, "img_size": 480}, classes=3129),
        228_113_721,
    ),
    "nlvr2-beit3": (functools.partial(synthetic_rows.nlvr2_beit3, sizes=dict(BASE)), 225_713_666),
    "vqav2-vilt": (
        functools.partial(synthetic_rows.vqav2_vilt, sizes={}, classes=3129, view=Padded()),
        117_588_537,
    ),
}


@pytest.fixture(autouse=True)
def torchscale(monkeypatch):
    multimodal.require_torchscale(monkeypatch)


def run(folder, made, methods, limit=None):
    experiment, sources = made(folder)
    experiment = replace(experiment, methods=tuple(listed(methods)))
    quiet = {"progress": False, "log": lambda _: None}
    return Pipeline(experiment, (0,), folder / "results", sources=sources, limit=limit, **quiet)


@pytest.mark.parametrize("name", SMALL)
def test_trained_and_tested_on_little(tmp_path, name, without_measuring):
    """Without propagation, which takes longer to set up than all the rest."""
    make, tested = SMALL[name]
    rows = run(tmp_path, make, "mean,mc-2").run().rows
    assert [(row.method, row.examples) for row in rows] == [("mean", tested), ("mc-2", tested)]
    assert ("Sigmoid" in rows[0].config.get("link", "")) == (ROWS[name].link == Sigmoid())
    for row in rows:
        assert {"aurc", "ace", "phi@10", "c@1", "nll", "brier"} <= row.metrics.keys()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("vqav2-beit3", marks=pytest.mark.slow),
        pytest.param("nlvr2-beit3", marks=pytest.mark.slow),
        pytest.param("vqav2-vilt", marks=pytest.mark.second),
    ],
)
def test_from_weights_to_the_table(tmp_path, name, without_measuring):
    results = run(tmp_path, SMALL[name][0], "mean,cvp").run()
    assert any(scale != 1 for scale in results.rows[1].scales.values())
    text = tables.kinds(Summary(results.rows), (name,))[0].text()
    assert text.startswith(ROWS[name].title)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FULL)
def test_from_weights_to_the_table_at_full_size(tmp_path, name, without_measuring):
    make, weights = FULL[name]
    # At 965 tokens the gradients of all scales take more than 19 GB, those of the last one little.
    pipeline = run(tmp_path, make, "mean,cvp-output-only" if name == "vqav2-beit3" else "mean,cvp", limit=4)
    results = pipeline.run()
    model, posterior = pipeline.trained(0)  # read back
    assert sum(parameter.numel() for parameter in model.parameters()) == weights
    assert posterior.keys() == dict(model.named_parameters()).keys()
    text = tables.kinds(Summary(results.rows), (name,))[-1].text()  # the one with all methods
    assert text.startswith(ROWS[name].title)
    assert "CVP" in text
    assert any(scale != 1 for scale in results.rows[1].scales.values())
    for file in (*tmp_path.rglob("*.safetensors"), *tmp_path.rglob("*.pth")):  # gigabytes, which pytest would keep
        file.unlink()


def test_every_metric_takes_scores_of_answers():
    """Against the formulas, written once more."""
    torch.manual_seed(0)
    logits, scores = torch.randn(200, 5, dtype=torch.float64), (torch.rand(200, 5) * 4).floor().double() / 3
    link = Sigmoid()
    held, test = ([(link(Moments(x, 0 * x)), y)] for x, y in zip(logits.chunk(2), scores.chunk(2), strict=True))
    before = evaluate_answers(held, progress=False)
    found = evaluate_answers(test, held_out=before, progress=False)
    probs, target = logits[100:].sigmoid(), scores[100:]
    confidence, label = probs.max(1)
    right = target.gather(1, label[:, None])[:, 0][confidence.argsort(descending=True)]
    risk = (1 - right).cumsum(0) / torch.arange(1, 101)
    assert found.metrics["accuracy"] == pytest.approx(float(right.mean()))
    assert 0 < ((right > 0) & (right < 1)).sum() < 100
    assert found.metrics["aurc"] == pytest.approx(float(risk.mean()))
    for name, limit in (("c@1", 0.01), ("c@5", 0.05)):
        kept = (risk <= limit).nonzero()
        assert found.metrics[name] == pytest.approx(float(kept.max() + 1) / 100 if len(kept) else 0.0)
    loss = -(target * probs.log() + (1 - target) * (1 - probs).log()).sum(1).mean()
    assert found.metrics["nll"] == pytest.approx(float(loss))
    assert found.metrics["brier"] == pytest.approx(float((probs - target).square().sum(1).mean()))
    ordered = confidence.sort(descending=True).values
    for cost, name in ((10, "phi@10"), (100, "phi@100")):
        answered = ordered >= before_threshold(before, cost)
        gain = torch.where(right > 0, right, -float(cost))
        assert found.metrics[name] == pytest.approx(float((gain * answered).mean()))
    gaps = (ordered - right).flip(0).tensor_split(15)
    assert found.metrics["ace"] == pytest.approx(float(sum(gap.sum().abs() for gap in gaps)) / 100)


def before_threshold(before, cost):
    """The lowest of the thresholds that are best on held-out data."""
    gain = torch.where(before.correctness > 0, before.correctness, -float(cost))
    tried = [(float(gain[before.confidence >= t].sum()), -float(t)) for t in before.confidence]
    best = max([(0.0, -float("inf")), *tried])
    return -best[1]


def test_the_papers_settings():
    found = {
        name: (ROWS[name].recipe.ivon, ROWS[name].recipe.gradient_clip, ROWS[name].recipe.epochs) for name in SMALL
    }
    order = ("lr", "ess", "hess_init", "beta2", "weight_decay", "clip_radius")
    assert [(*(ivon[key] for key in order), clip, epochs) for ivon, clip, epochs in found.values()] == [
        (0.02, 5e5, 0.5, 0.99995, 5e-5, 1e-3, 25.0, 10),
        (100.0, 1e8, 5e-4, 0.9999, 1e-5, 1e-3, 25.0, 10),
        (0.5, 5e5, 0.02, 0.99995, 5e-5, 1e-3, 1e6, 50),
    ]
    assert [ROWS[name].paper for name in SMALL] == [ROWS[name].title for name in SMALL]
    assert not any(ROWS[name].stand_in for name in SMALL)


def test_questions_are_divided_by_image():
    paths = [f"{number // 3}.jpg" for number in range(300)]
    held = in_some_groups(paths, 0.1)
    assert held.sum() == 30
    assert torch.equal(held.view(100, 3).any(1), held.view(100, 3).all(1))


def test_unanswerable_questions_are_not_trained_on(tmp_path):
    experiment, sources = synthetic_rows.vqav2_beit3(tmp_path)
    splits = experiment.splits(sources, 0)
    assert (len(splits.train), len(splits.held_out), len(splits.test)) == (9, 2, 16)
    assert splits.train.labels[:].sum(1).min() > 0


@pytest.mark.parametrize(("columns", "length"), [(beit3_columns(), 64), (vilt_columns(Padded()), 40)])
def test_a_question_longer_than_the_position_table_is_cut(tmp_path, columns, length):
    place = hf_folders.tokenizer(tmp_path)

    def tokens_of(count):
        found = columns(place, Questions(["film " * count], ["image.jpg"], None))
        return {name: column for name, column in found.items() if isinstance(column, torch.Tensor)}

    words = {count: tokens_of(count) for count in (length - 3, length - 2, 300)}
    for name, tokens in words[300].items():
        assert tokens.shape == (1, length)
        assert torch.equal(tokens, words[length - 2][name]), "two are for the ends"
    assert any(not torch.equal(x, words[length - 3][name]) for name, x in words[300].items())
