"""An experiment end to end, on little: every method is there, nothing is done twice, and a kill changes nothing."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from experiments import pipeline
from experiments.data.examples import Examples, Lookup
from experiments.experiment import METHODS, Sources, Splits
from experiments.paper.norms import load_norms
from experiments.pipeline import Pipeline
from experiments.products import products
from tests.experiments.synthetic import ADAMW, FEW, RECIPE, every_method, experiment, splits
from tests.models import posterior_of
from varprop.errors import ResultsError
from varprop.evaluation.evaluate import evaluate
from varprop.evaluation.methods import listed, named
from varprop.evaluation.results import ONE_LABEL, Results
from varprop.prediction.monte_carlo import MonteCarlo

# Twelve steps of training and two of calibration are enough to see that they happen, and no more.
pytestmark = [
    pytest.mark.second,
    pytest.mark.filterwarnings("ignore:calibration ended after", "ignore:calibration raised the NLL"),
    pytest.mark.filterwarnings(
        "ignore:.* held-out examples for .* are few", "ignore:the best temperature is at the end"
    ),
]
COST = {"plain": 1.5, "sample": 1.0}


@pytest.fixture(autouse=True)
def timed(monkeypatch):
    """The methods that were timed, each time."""
    calls = []

    def costs(methods, *_, **__):
        calls.append(tuple(methods))
        return {method.slug: COST for method in methods}

    monkeypatch.setattr(pipeline, "relative_costs", costs)
    return calls


@pytest.fixture
def trained(monkeypatch):
    """The seeds that were trained together, each time; reading a finished training back does not count."""
    calls, original = [], pipeline.train

    def train(experiment, runs, *args, **kwargs):
        if not all(run.finished for run in runs):
            calls.append([run.seed for run in runs])
        return original(experiment, runs, *args, **kwargs)

    monkeypatch.setattr(pipeline, "train", train)
    return calls


def make(folder, *seeds, of=None, **options):
    said = []
    found = Pipeline(of or experiment(), seeds or (0,), folder, progress=False, log=said.append, **options)
    return found, said


def run(folder, *seeds, **options):
    return make(folder, *seeds, **options)[0].run()


def contents(results):
    """All that was measured: rows without their time, and the scores of each example."""
    rows = [replace(row, time=None) for row in results.rows]
    return rows, [results.scores(row) for row in results.rows]


def same(a, b):
    assert a[0] == b[0]
    for mine, others in zip(a[1], b[1], strict=True):
        assert mine.keys() == others.keys()
        assert all(np.array_equal(mine[name], others[name]) for name in mine)


def test_a_network_trained_with_adamw(tmp_path, trained):
    """From training to calibrated rows; what is finished is not trained again."""
    ordinary = experiment(recipe=ADAMW, methods=tuple(listed("mean,cvp")))
    found = Pipeline(ordinary, (0, 1), tmp_path, progress=False, log=lambda _: None).run()
    assert {(row.method, row.seed) for row in found.rows} == {(m, s) for m in ("mean", "cvp") for s in (0, 1)}
    assert all(row.config["recipe"]["adamw"] == ADAMW.adamw for row in found.rows)
    more = replace(ordinary, methods=FEW)
    Pipeline(more, (0, 1), tmp_path, progress=False, log=lambda _: None).run()
    assert trained == [[0], [1]]


def test_fast_products_on_cuda_alone(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    for device in ("cpu", "cuda:1"):
        make(tmp_path, device=device)
    assert asked == ["high"]
    assert [products(device) for device in ("cpu", "cuda:1")] == [{}, {"products": "TF32"}]


def test_every_method_has_a_row(tmp_path, trained, timed):
    results = run(tmp_path, of=every_method())
    assert {row.method for row in results.rows} == {method.slug for method in METHODS}
    assert len(results.rows) == len(METHODS) == 17
    for row in results.rows:
        assert (row.row, row.seed, row.examples) == ("squares", 0, 48)
        assert set(row.metrics) == set(ONE_LABEL)
        assert len(row.curve) == 100
        assert row.curve[-1] == pytest.approx(1 - row.metrics["accuracy"])
        assert row.cost == COST
        assert row.config["recipe"]["epochs"] == 3
        assert {name: row.config[name] for name in ("title", "paper", "stand_in", "limit")} == {
            "title": "Squares (tiny ViT)",
            "paper": None,
            "stand_in": False,
            "limit": None,
        }
        assert {"torch", "varprop"} <= row.versions.keys()
        scores = results.scores(row)
        assert len(scores["confidence"]) == 48
        assert len(scores["held_out_confidence"]) == 180
    check_scales({row.method: row for row in results.rows})
    assert results.examples("squares").images.shape == (48, 8, 8)
    assert results.examples("squares").names == ("left", "right", "below")
    (traced,) = load_norms(results, "squares")
    assert set(traced.rmse) == {"cvp", "streamlining"}

    before = contents(results)
    again, said = make(tmp_path, of=every_method())
    same(before, contents(again.run()))
    assert trained == [[0]]
    assert timed == [METHODS]
    assert said == ["all 17 methods are there already: nothing to do"]


def check_scales(rows):
    fitted = {name: [p for p, alpha in (row.scales or {}).items() if alpha != 1] for name, row in rows.items()}
    assert all(bool(rows[method.slug].scales) == (method.rules is not None) for method in METHODS)
    assert all(
        len(fitted[name]) > 3 for name in ("cvp", "cvp-minus-norm", "cvp-minus-activation", "streamlining-per-layer")
    )
    assert fitted["streamlining"] == fitted["cvp-output-only"] == ["(output)"]
    assert fitted["cvp-none"] == fitted["streamlining-none"] == []
    assert [name for name, row in rows.items() if row.fidelity] == ["cvp"]
    assert {"blocks.0.mlp", "head"} < {entry["path"] for entry in rows["cvp"].fidelity}
    assert rows["mean"].metrics["accuracy"] == rows["temperature"].metrics["accuracy"]
    assert rows["cvp"].metrics != rows["cvp-none"].metrics != rows["streamlining-none"].metrics


def test_draws_of_few_samples_are_the_first_of_many(tmp_path):
    results = run(tmp_path, 3, of=experiment(methods=tuple(listed("mc-1,mc-2,mc-8"))))
    network = make(tmp_path, 3)[0].network(3)
    for row, count in zip(results.rows, (1, 2, 8), strict=True):
        alone = evaluate(MonteCarlo(network.model, network.posterior, count, seed=3), network.test, progress=False)
        np.testing.assert_allclose(results.scores(row)["confidence"], alone.confidence, rtol=1e-5)
        assert row.metrics["nll"] == pytest.approx(alone.metrics["nll"], rel=1e-5)
    assert len({row.metrics["nll"] for row in results.rows}) == 3


def test_seeds_share_a_folder_and_differ(tmp_path, trained):
    results = run(tmp_path, 0, 1)
    assert [(row.method, row.seed) for row in results.rows] == [(m.slug, seed) for seed in (0, 1) for m in FEW]
    first, second = (results.scores(row)["confidence"] for row in results.rows[:: len(FEW)])
    assert not np.array_equal(first, second)
    more = run(tmp_path, 0, 1, 2)
    assert trained == [[0], [1], [2]]
    assert [row.seed for row in more.rows] == [0] * 3 + [1] * 3 + [2] * 3
    run(tmp_path / "alone", 1)
    alone, among = (contents(Results(folder)) for folder in (tmp_path / "alone", tmp_path))
    same(alone, ([row for row in among[0] if row.seed == 1], among[1][3:6]))


def test_a_kill_between_methods_resumes_with_the_missing_ones(tmp_path, monkeypatch, trained):
    whole = contents(run(tmp_path / "whole"))
    record = pipeline.record
    with monkeypatch.context() as killing:
        killing.setattr(pipeline, "record", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "killed")
    assert pipeline.record is record
    assert [row.method for row in Results(tmp_path / "killed").rows] == ["mean"]
    again, said = make(tmp_path / "killed")
    same(whole, contents(again.run()))
    assert trained == [[0], [0]]
    assert said == ["seed 0: MC-2", "seed 0: temperature"]


def test_another_recipe_is_another_result(tmp_path, trained):
    first = contents(run(tmp_path))
    changed = replace(RECIPE, ivon={**RECIPE.ivon, "lr": 0.3})
    results = run(tmp_path, of=experiment(changed))
    assert trained == [[0], [0]]
    assert [row.method for row in results.rows] == [method.slug for method in FEW]  # in the place of the old ones
    assert {row.config["recipe"]["ivon"]["lr"] for row in results.rows} == {0.3}
    assert results.rows[0].metrics != first[0][0].metrics
    same(contents(run(tmp_path / "alone", of=experiment(changed))), contents(results))


def test_epochs_instead_of_the_recipes(tmp_path):
    results = run(tmp_path, epochs=1)
    assert {row.config["recipe"]["epochs"] for row in results.rows} == {1}
    same(contents(results), contents(run(tmp_path / "recipe", of=experiment(replace(RECIPE, epochs=1)))))


def test_a_limited_run_is_kept_apart(tmp_path):
    found, _ = make(tmp_path, limit=50)
    assert [len(part) for part in found.splits(0)[:3]] == [50, 5, 5]
    assert {row.examples for row in found.run().rows} == {5}
    assert {row.config["limit"] for row in Results(tmp_path).rows} == {50}
    whole = run(tmp_path)
    assert {row.examples for row in whole.rows} == {48}
    same(contents(whole), contents(run(tmp_path / "alone")))
    names = sorted(path.name.rpartition("-")[0] for path in tmp_path.glob("*.safetensors"))
    assert names == ["squares-0", "squares-50-0"]
    assert [len(part) for part in make(tmp_path, limit=10_000)[0].splits(0)[:3]] == [70, 180, 48]


def test_several_seeds_are_trained_together_on_a_gpu_only(tmp_path, monkeypatch):
    groups = []
    monkeypatch.setattr(Pipeline, "_train", lambda self, seeds: groups.append(list(seeds)))
    for device, side_by_side in (("cpu", None), ("cuda", None), ("cuda", 1), ("cuda", 3)):
        of = experiment(side_by_side=2)
        make(tmp_path, 0, 1, 2, of=of, device=device, side_by_side=side_by_side)[0].train([0, 1, 2])
    assert groups == [[0], [1], [2], [0, 1], [2], [0], [1], [2], [0, 1, 2]]


def test_costs_are_measured_once(tmp_path, timed):
    run(tmp_path, 0, 1)
    run(tmp_path, 2)
    assert timed == [FEW]
    run(tmp_path, of=experiment(methods=tuple(listed("mean,mc-4"))))
    assert timed == [FEW, tuple(listed("mean,mc-4"))]  # one was not among them


def test_no_costs_where_nothing_can_be_compiled(tmp_path, monkeypatch, timed):
    monkeypatch.setattr(pipeline, "relative_costs", lambda *_, **__: {})
    assert [row.cost for row in run(tmp_path).rows] == [None] * 3
    monkeypatch.undo()
    monkeypatch.setattr(pipeline, "relative_costs", lambda methods, *_, **__: {method.slug: COST for method in methods})
    assert [row.cost for row in run(tmp_path, 1).rows] == [None] * 3 + [COST] * 3  # there is a compiler now


def test_a_posterior_that_is_there_already_is_not_trained(tmp_path, trained):
    ready = experiment(posterior=lambda model, recipe, sources, seed: posterior_of(model, 0.01 * (1 + seed)))
    results = run(tmp_path, 0, 1, of=ready)
    assert trained == []
    assert [row.seed for row in results.rows] == [0] * 3 + [1] * 3
    assert not list(tmp_path.glob("*.safetensors"))


def test_other_weights_to_start_from_are_another_result(tmp_path, trained):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(name)
    out = tmp_path / "out"
    for name in ("first", "first", "second"):
        results = run(out, sources=Sources(weights=tmp_path / name))
    assert trained == [[0], [0]]
    assert {row.config["weights"] for row in results.rows} == {Sources(weights=tmp_path / "second").fingerprint}


def test_a_network_without_layer_norms_has_no_comparison_of_them(tmp_path):
    def plain(recipe, sources, seed):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    results = run(tmp_path, of=experiment(methods=(named("cvp"),), model=plain))
    assert results.rows[0].fidelity
    assert load_norms(results, "squares") == ()


def test_pictures_are_shown_only_where_there_are_small_ones(tmp_path):
    def hidden(sources, seed):
        """Looked up in a table, not in memory as they are."""
        parts = splits()[:3]
        return Splits(*(Examples(Lookup(torch.arange(len(part)), part.inputs), part.labels) for part in parts))

    results = run(tmp_path, of=experiment(splits=hidden))
    assert results.examples("squares") is None
    same(contents(results), contents(run(tmp_path / "shown")))


def test_a_folder_that_cannot_be_written_to_is_known_before_the_training(tmp_path, trained):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="choose another folder|give a results folder"):
        run(tmp_path / "file" / "results")
    assert trained == []


def test_the_config_is_what_json_makes_of_it(tmp_path):
    found, _ = make(tmp_path)
    assert found.config == json.loads(json.dumps(found.config))
    assert found.config["recipe"] == json.loads(json.dumps(asdict(RECIPE)))
