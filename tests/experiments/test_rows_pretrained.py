"""The rows that start from trained weights, end to end on little: tiny networks, synthetic data and weights."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments import search, training
from experiments.data.examples import map_inputs
from experiments.pipeline import Pipeline
from experiments.rows import ROWS, imagenet_resnet50
from experiments.rows.imagenet_sample_resnet50 import CANDIDATES, IMAGENET_SAMPLE_RESNET50, smoothed
from experiments.rows.sst2_minilm import masked
from experiments.side_by_side import SideBySide
from experiments.training import Run, train
from tests.experiments import synthetic_rows
from tests.experiments.synthetic_rows import METHODS
from varprop.report import tables
from varprop.report.summary import Summary

pytest.importorskip("ivon")
# A step of calibration on a few examples is enough to see that it happens.
pytestmark = [
    pytest.mark.second,
    pytest.mark.filterwarnings(
        "ignore:calibration ended after",
        "ignore:calibration raised the NLL",
        "ignore:.* held-out examples for .* are few",
    ),
]
ROWS_ON_LITTLE = {
    "cifar100-vit": (synthetic_rows.cifar100, None, 4),
    "imagenet-resnet50": (synthetic_rows.imagenet, 30, 3),
    "imagenet-sample-resnet50": (synthetic_rows.imagenet_sample, None, 8),
    "sst2-minilm": (synthetic_rows.sst2, None, 3),
}


@pytest.mark.parametrize("name", ROWS_ON_LITTLE)
def test_from_weights_to_the_table(tmp_path, name, without_measuring):
    make, limit, tested = ROWS_ON_LITTLE[name]
    experiment, sources = make(tmp_path)
    assert experiment.name == name
    out = tmp_path / "results"
    results = Pipeline(experiment, (0,), out, sources=sources, limit=limit, progress=False, log=lambda _: None).run()
    assert [(row.method, row.examples) for row in results.rows] == [(method.slug, tested) for method in METHODS]
    propagated = results.rows[1]
    assert "(output)" in propagated.scales
    assert any(scale != 1 for scale in propagated.scales.values())
    text = tables.kinds(Summary(results.rows), (name,))[0].text()
    assert all(method.title in text for method in METHODS)
    assert text.startswith(ROWS[name].title)


def test_what_they_say_of_the_paper():
    said = {name: (ROWS[name].paper, ROWS[name].stand_in) for name in ROWS_ON_LITTLE}
    assert said == {
        "cifar100-vit": ("CIFAR-100 (ViT-Base)", False),
        "imagenet-resnet50": ("ImageNet (ResNet-50)", False),
        "imagenet-sample-resnet50": ("ImageNet (ResNet-50)", True),
        "sst2-minilm": (None, False),
    }
    for name in ROWS_ON_LITTLE:
        assert ROWS[name].recipe == next(iter(ROWS[name].candidates.values()), ROWS[name].recipe)


def test_every_seed_has_its_own_checkpoint(tmp_path):
    experiment, sources = synthetic_rows.imagenet(tmp_path)
    models = [experiment.model(experiment.recipe, sources, seed) for seed in (0, 1)]
    assert not torch.equal(models[0].fc.weight, models[1].fc.weight)
    for seed, model in enumerate(models):
        found = experiment.posterior(model, experiment.recipe, sources, seed)
        assert torch.equal(found["fc.weight"].mean, model.fc.weight)
        assert (found["fc.weight"].var > 0).all()
    alone = replace(sources, weights=sources.weights / "resnet50-seed1.pt")
    assert imagenet_resnet50.checkpoint(alone, 0) == alone.weights


def test_validation_images_are_divided_once_for_all_seeds(tmp_path):
    experiment, sources = synthetic_rows.imagenet(tmp_path, synthetic_rows.TINY)
    first, second = experiment.splits(sources, 0), experiment.splits(sources, 1)
    assert (len(first.train), len(first.held_out), len(first.test)) == (0, 4, 996)
    assert not set(first.held_out.labels.tolist()) & set(first.test.labels.tolist())
    assert first is second
    assert first.held_out.inputs.shape == (4, 3, 224, 224)
    # Given as the folder itself, as the one above it, and two above.
    for place in (tmp_path, tmp_path / "imagenet", tmp_path / "imagenet" / "val"):
        assert imagenet_resnet50.validation_folder(place) == tmp_path / "imagenet" / "val"


def test_all_of_the_sample_but_what_is_tested_is_divided_anew_for_each_seed(tmp_path):
    experiment, sources = synthetic_rows.imagenet_sample(tmp_path)
    shades = []
    for seed in (0, 0, 1):
        parts = experiment.splits(sources, seed)[:3]
        assert [len(part) for part in parts] == [6, 6, 8]
        shades.append([part.inputs[:, 2].float().mean((1, 2)).round().int().tolist() for part in parts])
        assert len({shade for part in shades[-1] for shade in part}) == 20, "no image is in two parts"
    assert shades[0] == shades[1] != shades[2]
    assert shades[0][2] == shades[2][2]


def test_the_posterior_of_the_sample_is_that_of_the_chosen_candidate(tmp_path):
    experiment, sources = synthetic_rows.imagenet_sample(tmp_path)
    model = experiment.model(experiment.recipe, sources, 0)
    found = experiment.posterior(model, experiment.recipe, sources, 0)
    chosen = IMAGENET_SAMPLE_RESNET50.recipe.ivon
    widest = 1 / (chosen["ess"] * chosen["weight_decay"])
    assert found["fc.weight"].var.max() <= widest * (1 + 1e-6)
    assert found["fc.weight"].var.min() < 0.999 * widest, "the curvature counts"
    assert not torch.equal(
        found["fc.weight"].var, experiment.posterior(model, experiment.recipe, sources, 1)["fc.weight"].var
    )


def test_smoothing_keeps_sums_of_rows_and_columns():
    before = torch.rand(3, 2, 2, 2)
    after = smoothed(before)
    torch.testing.assert_close(after.flatten(1).sum(1), before.flatten(1).sum(1))
    torch.testing.assert_close(after.flatten(1).sum(0), before.flatten(1).sum(0))
    assert torch.linalg.matrix_rank(after.flatten(1)) == 1
    assert torch.equal(smoothed(before[0, 0, 0]), before[0, 0, 0])


@pytest.mark.filterwarnings("ignore:.*(common answer, given to all|one answer for nearly all):UserWarning")
def test_candidates_are_judged_on_held_out_images(tmp_path, monkeypatch):
    experiment, sources = synthetic_rows.imagenet_sample(tmp_path)
    judged, judge = [], search.evaluate

    def watched(predictor, held_out, **options):
        judged.append(held_out.examples.labels.tolist())
        return judge(predictor, held_out, **options)

    monkeypatch.setattr(search, "evaluate", watched)
    trials = search.search(experiment, (0, 1), tmp_path, "cpu", sources)
    assert [(trial.candidate, trial.seed) for trial in trials] == [(n, seed) for seed in (0, 1) for n in CANDIDATES]
    wanted = [experiment.splits(sources, seed).held_out.labels.tolist() for seed in (0, 1)]
    assert judged == [part for part in wanted for _ in range(2 * len(CANDIDATES))]
    written = json.loads((tmp_path / "imagenet-sample-resnet50-search.json").read_text())
    assert written["recipes"].keys() == CANDIDATES.keys()
    assert len({trial["sampled"]["nll"] for trial in written["trials"]}) > len(CANDIDATES)


def test_sentences_are_held_out_and_tested_and_phrases_trained_on(tmp_path):
    experiment, sources = synthetic_rows.sst2(tmp_path)
    train, held_out, test, names, *_ = experiment.splits(sources, 0)
    assert (len(train), len(held_out), len(test)) == (24, 6, 3)
    assert test.inputs["input_ids"].shape == (3, 64)
    assert test.labels.tolist() == [1, 0, 1]
    assert names == ("negative", "positive")
    file = tmp_path / "sst2" / "test.tsv"
    file.write_text("index\tsentence\n0\tgood\n")  # as GLUE has it
    unlabelled = experiment.splits(replace(sources, data=tmp_path / "sst2"), 0)  # another place, so read again
    assert (len(unlabelled.train), len(unlabelled.held_out), len(unlabelled.test)) == (24, 3, 3)


def test_batches_of_similar_length_hold_every_phrase_once(tmp_path, monkeypatch):
    _, sources = synthetic_rows.sst2(tmp_path)
    row = ROWS["sst2-minilm-by-length-adamw"]
    row = replace(row, recipe=replace(row.recipe, batch=2, epochs=2))
    parts, seen, widths = row.splits(sources, 0), [], []
    step, prepare = training._Loop._step, row.prepare

    def watched(loop, number, draws):
        seen.append(draws["rows"])
        return step(loop, number, draws)

    def prepared(tokens):
        found = prepare(tokens)
        widths.append((found["input_ids"].shape[1], found["attention_mask"].shape[-1]))
        return found

    monkeypatch.setattr(training._Loop, "_step", watched)
    run = Run(row.recipe, 0, tmp_path / "0.safetensors", sources.fingerprint)
    train(replace(row, prepare=prepared), [run], parts.train, "cpu", sources=sources, progress=False)
    length = parts.train.inputs["attention_mask"].sum(1)
    assert torch.equal(torch.cat(seen[:12]).sort().values, torch.arange(24))
    assert not torch.equal(torch.stack(seen[:12]), torch.stack(seen[12:]))
    assert widths == [(int(length[rows].max()),) * 2 for rows in seen]
    between = torch.stack([length[rows].float() for rows in seen]).diff(dim=1).abs().mean()
    assert between < torch.cat([length[rows].float() for rows in seen]).std() / 2


def test_two_encoders_run_as_one(tmp_path):
    """Training side by side needs vmap to go through the model, and nothing may change by it."""
    experiment, sources = synthetic_rows.sst2(tmp_path)
    models = [experiment.model(experiment.recipe, sources, seed) for seed in (0, 1)]
    tokens = experiment.splits(sources, 0).train.read(slice(6))
    inputs = map_inputs(masked(tokens), lambda x: x.unflatten(0, (2, 3)))
    stack = SideBySide(models, "cpu")
    rows = torch.stack([stack.row(model) for model in models]).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):  # as in training
        together = stack(rows, inputs)
    for index, model in enumerate(models):
        alone = model(**map_inputs(tokens, lambda x, i=index: x[3 * i : 3 * i + 3])).logits
        torch.testing.assert_close(together[index], alone, rtol=1e-5, atol=1e-6)
    together.sum().backward()
    assert (rows.grad.norm(dim=1) > 0).all()
