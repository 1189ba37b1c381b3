"""Candidates are compared on held-out data alone, all at once, and a search that was stopped goes on."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from experiments import search as module
from experiments import training
from experiments.data.examples import PreparedBatches
from experiments.experiment import NO_SOURCES, Splits
from experiments.pipeline import Pipeline
from experiments.recipes import Schedule
from experiments.rows.starting_points import centred, vit
from experiments.search import search
from experiments.training import Run, train
from tests.experiments.synthetic import RECIPE, experiment, splits
from varprop.errors import InputError
from varprop.evaluation.evaluate import evaluate
from varprop.prediction.monte_carlo import MonteCarlo

pytestmark = [
    pytest.mark.second,
    pytest.mark.filterwarnings("ignore:.*(common answer, given to all|one answer for nearly all):UserWarning"),
]
CANDIDATES = {"plain": RECIPE, "flat, then down": replace(RECIPE, schedule=Schedule(plateau=0.5))}


def without_test_data(sources, seed):
    train_on, held_out, _, names, *_ = splits()
    return Splits(train_on, held_out, None, names)


@pytest.fixture
def chosen_from():
    return experiment(candidates=CANDIDATES, splits=without_test_data)


def test_every_candidate_with_every_seed(tmp_path, chosen_from):
    trials = search(chosen_from, [0, 4], tmp_path, "cpu", progress=False)
    assert [(trial.candidate, trial.seed) for trial in trials] == [
        (name, seed) for seed in (0, 4) for name in CANDIDATES
    ]
    found = json.loads((tmp_path / "squares-search.json").read_text())
    assert [trial["sampled"]["aurc"] for trial in found["trials"]] == [trial.sampled["aurc"] for trial in trials]
    assert found["recipes"]["flat, then down"]["schedule"]["plateau"] == 0.5
    assert len({trial.mean["nll"] for trial in trials}) == 4

    run = Run(CANDIDATES["flat, then down"], 4, tmp_path / "alone.safetensors")
    [posterior] = train(chosen_from, [run], splits().train, "cpu", progress=False)
    batches = PreparedBatches(splits().held_out, centred, 64, "cpu")
    alone = evaluate(MonteCarlo(vit(RECIPE, NO_SOURCES, 4).eval(), posterior, 8, seed=4), batches, progress=False)
    assert trials[3].sampled["nll"] == pytest.approx(alone.metrics["nll"], rel=1e-3)


def test_what_was_trained_is_not_trained_again(tmp_path, chosen_from, monkeypatch):
    """By a search that was stopped, or by a pipeline in the same folder."""
    first = search(chosen_from, [0], tmp_path, "cpu", progress=False)
    monkeypatch.setattr(training._Loop, "epoch", lambda self: pytest.fail("there was nothing to train"))
    assert search(chosen_from, [0], tmp_path, "cpu", progress=False) == first
    for recipe in CANDIDATES.values():
        chosen = replace(chosen_from, recipe=recipe)
        Pipeline(chosen, [0], tmp_path, progress=False, log=lambda _: None).train([0])


def test_a_candidate_that_learned_nothing_is_named(tmp_path, recwarn):
    """Beside the accuracy of the most common answer; nothing is said of one that learned something."""
    taught = replace(RECIPE, epochs=30, ivon={**RECIPE.ivon, "lr": 2.0})
    search(experiment(candidates={"taught": taught}), [0], tmp_path, "cpu", progress=False)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"squares: .*'plain', is right on 3\d\.\d% .* is right on 39\.\d%"):
        search(experiment(candidates={"plain": RECIPE}), [0], tmp_path, "cpu", progress=False)
    assert json.loads((tmp_path / "squares-search.json").read_text())["majority"] == pytest.approx(71 / 180)


def test_one_answer_for_all_is_not_chosen_silently(tmp_path):
    """Though its AURC is the least; if all candidates give one, the best of them is chosen. Old files do not tell."""
    chosen_from = experiment(candidates=CANDIDATES)
    first, second = CANDIDATES

    def best(*trials):
        (tmp_path / "squares-search.json").write_text(json.dumps({"trials": [dict(trial) for trial in trials]}))
        recipe = module.best_candidate(chosen_from, tmp_path).recipe
        return next(name for name, each in CANDIDATES.items() if each == recipe)

    def trial(name, aurc, **others):
        metrics = {"accuracy": 0.5, "aurc": aurc}
        return {"candidate": name, "seed": 0, "mean": metrics, "sampled": metrics, **others}

    alike = {"same": 1.0, "constant": True}
    assert best(trial(first, 0.4, **alike), trial(second, 0.5, same=0.6)) == second
    assert best(trial(first, 0.4, **alike), trial(second, 0.5, **alike)) == first
    assert best(trial(first, 0.4), trial(second, 0.5)) == first


def test_what_gives_one_answer_is_named_in_warning_and_table(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ALIKE", 0.0)
    [trial] = search(experiment(candidates={"plain": RECIPE}), [0], tmp_path, "cpu", progress=False)
    assert 0.3 < trial.same <= 1
    assert not trial.constant
    monkeypatch.setattr(module, "ALIKE", 2.0)
    chosen_from = experiment(candidates={"plain": RECIPE})
    with pytest.warns(UserWarning, match=r"squares: one answer .* by 'plain' \(\d.*; all candidates do"):
        trials = search(chosen_from, [0], tmp_path, "cpu", progress=False)
    assert trials[0].constant
    console = Console(width=200)
    with console.capture() as shown:
        console.print(module.trial_table(chosen_from, trials))
    assert "one answer for nearly all" in shown.get()


def test_candidates_of_another_length_cannot_be_together(tmp_path):
    chosen_from = experiment(candidates={"short": RECIPE, "long": replace(RECIPE, epochs=9)})
    with pytest.raises(InputError, match="the same epochs and batch"):
        module.search(chosen_from, [0], tmp_path, "cpu", progress=False)
