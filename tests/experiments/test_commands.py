"""reproduce and search, on an experiment that takes no time."""

import json
import sqlite3
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import __main__ as program
from experiments import pipeline, search, shift, training
from experiments import rows as registry
from experiments.exceptions import DataError
from experiments.models.weights import fill
from experiments.paper.norms import Norms, load_norms
from experiments.recipes import Schedule
from experiments.row_files import read_rows
from tests.experiments.synthetic import RECIPE, experiment, splits
from varprop.evaluation.methods import named
from varprop.evaluation.results import FILE, Results, Row

pytestmark = [
    pytest.mark.second,
    pytest.mark.filterwarnings("ignore:the best temperature is at the end", "ignore:.*held-out examples for"),
    pytest.mark.filterwarnings("ignore:calibration ended after", "ignore:calibration raised the NLL"),
]
COSTS = {"mean": {"plain": 1.0, "sample": 0.5}, "mc-2": {"plain": 4.0, "sample": 2.0}}
NORMS = Norms(
    "Σ ~ U(0, 1)",
    samples=10,
    activations=4,
    rmse={"cvp": {"mean": 0.1, "var": 0.2}},
    points={name: torch.ones(4, 2).numpy() for name in ("mean", "var")},
)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """The rows there are: the current folder is empty, reports are not drawn."""
    found = {
        "squares": experiment(methods=tuple(map(named, COSTS)), paper="Squares (large ViT)", stand_in=True),
        "other": experiment(methods=tuple(map(named, COSTS)), name="other"),
    }
    monkeypatch.setattr(registry, "ROWS", found)
    monkeypatch.setattr(program, "ROWS", found)
    monkeypatch.setattr(pipeline, "relative_costs", lambda methods, *_: {m.slug: COSTS["mean"] for m in methods})
    monkeypatch.setattr(program, "synthetic", lambda: [NORMS])
    monkeypatch.setattr(program, "write_paper_report", lambda folder, out: folder / "report" / "report.html")
    monkeypatch.chdir(tmp_path)
    return found


def kept(folder):
    return [(row.method, row.seed) for row in Results(folder).rows]


def test_without_a_row_all_are_listed(experiments, rows):
    found = experiments("reproduce")
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert lines[0] == "squares: Squares (tiny ViT), a stand-in for the paper's Squares (large ViT)"
    assert lines[1].rstrip() == "    Squares in noise."
    assert lines[2] == "other: Squares (tiny ViT), not in the paper"


def test_reproduce(experiments, rows):
    found = experiments("reproduce", "squares", "--seeds", "0,2")
    assert found.code == 0, found.err
    assert kept("results/squares") == [("mean", 0), ("mc-2", 0), ("mean", 2), ("mc-2", 2)]
    assert load_norms(Results("results/squares"), "synthetic")[0].title == "Σ ~ U(0, 1)"
    for text in ("note: on a CPU this takes many hours", "timing compiled passes", "synthetic inputs", "AURC"):
        assert text in found.out
    assert "report: results/squares/report/report.html" in found.out
    again = experiments("reproduce", "squares", "--seeds", "0,2")
    assert "nothing to do" in again.out
    assert "synthetic" not in again.out
    assert "note" not in again.out
    more = experiments("reproduce", "squares", "--seeds", "0-2")
    assert "note: seeds 0, 2 are done already" in more.out
    assert "training seed 1\n" in more.out
    assert len(kept("results/squares")) == 6


def test_a_trial_is_kept_apart(experiments, rows):
    for option in (("--epochs", "1"), ("--limit", "100")):
        assert experiments("reproduce", "squares", *option).code == 0
    assert {row.config["limit"] for row in Results("results/squares-trial").rows} == {100}
    found = experiments("reproduce", "squares", "--limit", "100", "--out", "mine", "--methods", "mc-2,mean,mc-2")
    assert found.code == 0, found.err
    assert kept("mine") == [("mc-2", 0), ("mean", 0)]
    assert "hours" not in found.out


def test_rows_of_other_settings(experiments, rows):
    experiments("reproduce", "squares", "--seeds", "0,1", "--epochs", "1", "--out", "mine")
    found = experiments("reproduce", "squares", "--seeds", "0", "--epochs", "2", "--out", "mine")
    assert "mine holds rows of seed 0 with other settings (recipe.epochs 1, now 2): each is replaced" in found.out
    assert (
        "mine holds rows of seed 1 with other settings (recipe.epochs 1, now 2): the tables will average" in found.out
    )
    epochs = {row.seed: row.config["recipe"]["epochs"] for row in Results("mine").rows}
    assert epochs == {0: 2, 1: 1}
    rows["squares"] = replace(
        rows["squares"], recipe=replace(RECIPE, batch=8, gradient_clip=2.0, schedule=Schedule(0.5, 0.1))
    )
    text = experiments("reproduce", "squares", "--seeds", "0-1", "--epochs", "2", "--out", "mine").out
    assert "mine holds rows of seeds 0, 1 with other settings" in text
    assert "; 1 more)" in text or "; 2 more)" in text


def test_a_row_that_is_missing(experiments, rows):
    experiments("reproduce", "squares")
    with closing(sqlite3.connect(Results("results/squares").file, isolation_level=None)) as db:
        db.execute("DELETE FROM rows WHERE method = 'mc-2'")
    found = experiments("reproduce", "squares")
    assert found.code == 0, found.err
    assert "seed 0: MC-2" in found.out
    assert "seed 0: mean" not in found.out
    assert kept("results/squares") == [("mean", 0), ("mc-2", 0)]


def test_sources_reach_the_experiment(experiments, rows):
    seen = []

    def remembered(sources, seed):
        seen.append(sources)
        return splits()

    rows["squares"] = replace(rows["squares"], splits=remembered)
    experiments("reproduce", "squares", "--data-dir", "there", "--weights", "w.safetensors", "--epochs", "1")
    assert {(str(each.data), str(each.weights)) for each in seen} == {("there", "w.safetensors")}


def test_options_reach_the_pipeline(experiments, rows, monkeypatch):
    seen = []
    monkeypatch.setattr(program, "device_named", lambda name: name)
    monkeypatch.setattr(program, "_run", lambda pipeline, console: seen.append(pipeline))
    for name in ("show", "report"):
        monkeypatch.setattr(program, name, lambda *_: None)
    options = ("--device", "cuda", "--side-by-side", "3", "--threads", "1")
    assert experiments("reproduce", "squares", "--seeds", "0-9", *options).code == 0
    found = seen[0]
    assert (found.seeds, found.device, found.side_by_side) == (list(range(10)), "cuda", 3)
    assert str(found.folder) == "results/squares"


def test_an_interrupt_says_that_nothing_is_lost(experiments, rows, monkeypatch):
    epoch = training._Loop.epoch

    def interrupted(self):
        if self.done == 2:
            raise KeyboardInterrupt
        return epoch(self)

    with monkeypatch.context() as stopping:
        stopping.setattr(training._Loop, "epoch", interrupted)
        stopping.setattr(training, "SAVE_EVERY", -1.0)
        found = experiments("reproduce", "squares")
        assert found.code == 130
        assert "stopped; what was finished is kept, and the same command goes on from there" in found.err
        assert "Traceback" not in found.err
    done = []
    monkeypatch.setattr(training._Loop, "epoch", lambda self: (done.append(self.done), epoch(self))[1])
    assert experiments("reproduce", "squares").code == 0
    assert done == [2]  # of three


def test_search(experiments, rows):
    plain = replace(RECIPE, epochs=30, ivon={**RECIPE.ivon, "lr": 2.0, "ess": 1e4})  # which learns all there is
    flat = replace(plain, schedule=Schedule(plateau=0.5), ivon={**plain.ivon, "lr": 0.1})
    rows["squares"] = replace(rows["squares"], recipe=plain, candidates={"plain": plain, "flat": flat})
    found = experiments("search", "squares", "--seeds", "0,1")
    assert found.code == 0, found.err
    assert "2 candidates, 2 seeds" in found.out
    trials = json.loads((Results("results/squares").folder / "squares-search.json").read_text())["trials"]
    lines = [line for line in found.out.splitlines() if "plain" in line or "flat" in line]
    averages = {}
    for name in ("plain", "flat"):
        mine = [trial for trial in trials if trial["candidate"] == name]
        averages[name] = 50 * sum(trial["sampled"]["aurc"] for trial in mine)
        line = next(line for line in lines if name in line)
        assert f"{50 * sum(trial['mean']['accuracy'] for trial in mine):.2f}" in line
        assert f"{averages[name]:.2f}" in line
    assert next(line for line in lines if "plain" in line).count("(the row's recipe)") == 1
    assert (lines[0].count("plain") == 1) == (averages["plain"] < averages["flat"])  # the best is on top


def test_rows_of_another_folder_are_added_without_their_scores(tmp_path, experiments, refused):
    results, others = Results(tmp_path / "new"), Results(tmp_path / "all")
    results.add(Row("d", "cvp", 0, 2, {"accuracy": 0.5}), {"confidence": np.ones(2), "correctness": np.ones(2)})
    results.add_examples(np.zeros((200, 2, 2), np.uint8), ["zero"], row="d")
    others.add(Row("e", "cvp", 0, 2, {"accuracy": 0.6}))
    experiments("merge", str(tmp_path / "new"), str(tmp_path / "all"))
    assert [row.row for row in others.rows] == ["e", "d"]
    assert others.scores(others.rows[1]) is None
    assert len(others.examples("d").images) == 120
    assert "all has rows of d with seed 0 already" in refused("merge", str(tmp_path / "new"), str(tmp_path / "all"))
    experiments("merge", str(tmp_path / "new"), str(tmp_path / "all"), "--add-to-seeds", "10")
    assert [(row.row, row.seed) for row in others.rows] == [("e", 0), ("d", 0), ("d", 10)]


# --- wrong uses --------------------------------------------------------------------------------------


def test_unknown_rows(refused):
    for command in ("reproduce", "search"):
        line = refused(command, "cifar10vit")
        assert "there is no row 'cifar10vit' (did you mean cifar10-vit?); there are cifar10-vit, " in line
        assert "did you mean" not in refused(command, "mnist")
    assert "Missing argument 'row'" in refused("search")


def test_rows_that_are_not_pretrained(refused):
    assert "cifar10-vit is not pretrained; rows that are: nlvr-multiway" in refused("pretrain", "cifar10-vit")
    assert "nlvr-multiway starts from trained weights and was given none" in refused("pretrain", "nlvr-multiway")


def test_missing_data(refused, tmp_path):
    for command in ("reproduce", "search"):
        line = refused(command, "cifar10-vit", "--data-dir", tmp_path / "none", "--out", tmp_path / "out")
        assert f"cifar10 is not in {tmp_path / 'none'}" in line
        assert "VARPROP_DATA" in line
    assert not (tmp_path / "out").exists()


def test_too_small_limits(refused, rows, tmp_path):
    line = refused("reproduce", "squares", "--limit", "99")
    assert "'--limit'" in line
    assert "100" in line
    assert list(tmp_path.iterdir()) == []


def test_methods_devices_and_seeds(refused, rows):
    assert "there is no method 'magic'" in refused("reproduce", "squares", "--methods", "magic")
    assert "squares has no candidates to choose from; rows that have: none" in refused("search", "squares")
    rows["squares"] = replace(rows["squares"], candidates={"plain": RECIPE})
    for command in ("reproduce", "search"):
        assert "there is no device 'gpu' here: use --device cpu" in refused(command, "squares", "--device", "gpu")
        assert "seeds are numbers or ranges" in refused(command, "squares", "--seeds", "x")


def test_too_little_memory(experiments, rows, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …")

    monkeypatch.setattr(pipeline, "train", full)
    monkeypatch.setattr(search, "train", full)
    found = experiments("reproduce", "squares", "--epochs", "1")
    assert found.code == 2
    assert found.err.count("\n") == 1
    assert "error: cpu has too little memory (CUDA out of memory); what is finished is kept." in found.err
    rows["squares"] = replace(rows["squares"], candidates={"plain": RECIPE})
    found = experiments("search", "squares", "--seeds", "0-3")
    assert "error: cpu has too little memory for 4 networks side by side" in found.err
    assert "fewer --seeds" in found.err


def test_a_checkpoint_of_another_architecture(refused, rows):
    def other(recipe, sources, seed):
        model = torch.nn.Linear(4, 2)
        fill(model, torch.nn.Linear(5, 2).state_dict(), str(sources.weights))
        return model

    rows["squares"] = replace(rows["squares"], model=other)
    line = refused("reproduce", "squares", "--weights", "w.safetensors", "--epochs", "1")
    assert "w.safetensors does not hold the weights of this Linear, but of another architecture" in line


def test_results_of_another_version(refused, rows):
    folder = Results("results/squares").folder
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / FILE)) as db:
        db.execute("PRAGMA user_version = 99")
    assert "has format 99" in refused("reproduce", "squares")


def test_warnings_stand_above_progress_bars(experiments, rows, monkeypatch):
    def warned(*_, **__):
        for _ in range(3):  # which is told once
            warnings.warn("200 examples are few", stacklevel=1)
        raise DataError("and then an error")

    monkeypatch.setattr(pipeline, "train", warned)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        found = experiments("reproduce", "squares")
    assert found.err.splitlines() == ["warning: 200 examples are few", "error: and then an error"]


def test_shift(experiments, refused, rows, monkeypatch):
    monkeypatch.setattr(shift, "corrupted", lambda images, *_: images)
    found = experiments("shift", "squares", "--mixed")
    assert found.code == 0, found.err
    assert "squares: aurc by strength" in found.out
    data = [row["data"] for row in read_rows(Path("results/squares/shift.jsonl")) if row["method"] == "mc-2"]
    assert data == ["none 0", *(f"mixed {strength}" for strength in range(1, 6))]
    assert "give --damaged, for each kind alone, or --mixed" in refused("shift", "squares", "--mixed", "--damaged", "2")
    assert "no other data set to be told from" in refused("shift", "squares")
