"""The paper's numbers beside ours, and verdicts, of synthetic rows; and the stored tables, drawn again."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.paper import paper_report
from experiments.paper.published import benchmarks, compared, published
from experiments.paper.verdicts import agreement, order, verdict
from varprop.evaluation.methods import ABLATIONS
from varprop.evaluation.results import Row, read_results
from varprop.report import tables
from varprop.report.sections import certified, outcomes
from varprop.report.style import drawing_style
from varprop.report.summary import Summary

pytestmark = pytest.mark.second

STORED = Path(__file__).parents[3] / "docs/results/reproduction"
METHODS = ("mean", "mc-2", "mc-64", *ABLATIONS)
CONFIG = {
    "cifar10-vit": {"title": "CIFAR-10 (ViT)", "paper": "CIFAR-10 (sub-tiny ViT)", "stand_in": False},
    "tiny": {"title": "Tiny ImageNet", "paper": "CIFAR-100 (ViT-Base)", "stand_in": True},
    "sst2": {"title": "SST-2", "paper": None, "stand_in": False},
}


@pytest.fixture(scope="module")
def summary():
    """AURC grows by 0.001 per method, but for seeds, which all methods share, and some noise."""
    rows = [
        Row(
            experiment,
            method,
            seed,
            10,
            {"accuracy": 0.8, "aurc": 0.01 * (1 + e) + 0.001 * m + 0.02 * seed + 1e-4 * (seed * m % 3), "nll": 0.5},
            cost={"sample": 1.0 + m, "plain": 2.0},
            config=config,
        )
        for e, (experiment, config) in enumerate(CONFIG.items())
        for m, method in enumerate(METHODS)
        for seed in range(3)
    ]
    return Summary(rows)


def found(summary, scope, kind):
    return compared(summary, scope, next(t for t in tables.kinds(summary, scope) if t.kind == kind))


def test_the_papers_numbers_stand_below_ours(summary):
    main = found(summary, ("cifar10-vit",), "main")
    assert main.title.endswith("over 3 seeds; beside the paper's CIFAR-10 (sub-tiny ViT)")
    lines = main.cells.to_numpy().tolist()
    at = next(i for i, line in enumerate(lines) if line[0] == "CVP")
    assert lines[at + 1] == ["paper", "80.3 ± 0.1", "5.52 ± 0.03", "0.56 ± 0.00", ""]
    assert set(main.marks.iloc[at + 1]) == {"aside"}
    assert "| *5.52 ± 0.03* |" in " ".join(main.markdown().split())
    ours = main.numbers.set_index("method")
    assert ours.loc["cvp", ["aurc_paper", "aurc_paper_sem"]].tolist() == [5.52, 0.03]
    assert ours["aurc_paper"].isna()["mc-64"]
    extended = found(summary, ("cifar10-vit",), "extended").numbers.set_index("method")
    assert extended.at["cvp", "cost.sample_paper"] == 2.2  # the paper's unit of time
    other = found(summary, ("tiny",), "main")
    assert other.title.endswith("a stand-in for the paper's CIFAR-100 (ViT-Base)")
    for table in (other, found(summary, ("sst2",), "main")):
        assert "paper" not in set(table.cells["Method"])


def test_averages_beside_the_paper(summary):
    assert paper_report.scopes(summary)[-1] == tuple(CONFIG)
    for kind in ("main", "ablation"):  # an average with experiments that the paper lacks
        assert "paper" not in set(found(summary, tuple(CONFIG), kind).cells["Method"])
    theirs = [replace(row, config=row.config | {"stand_in": False}) for row in summary.rows]
    pair = found(Summary(theirs), ("cifar10-vit", "tiny"), "main")
    assert paper_report.scopes(Summary(theirs))[-1] == ("cifar10-vit", "tiny")
    assert pair.numbers.set_index("method").at["cvp", "accuracy_paper"] == pytest.approx((80.3 + 88.1) / 2)
    six = [
        replace(row, row=f"{row.row}-{benchmark}", config={"paper": benchmark})
        for row in summary.rows
        if row.row == "sst2"
        for benchmark in benchmarks()
    ]
    ablation = found(Summary(six), Summary(six).experiments, "ablation")
    assert ablation.numbers.set_index("method").at["cvp-none", "aurc_paper"] == 6.46
    assert "six benchmarks" in ablation.title


def test_verdicts_by_hand():
    values = {"mean": (0.3, 0.5, 0.7), "mc-2": (0.21, 0.39, 0.6), "cvp": (0.2, 0.4, 0.6)}
    made = [Row("d", m, i, 1, {"aurc": v, "accuracy": 0.5}) for m, vs in values.items() for i, v in enumerate(vs)]
    table = verdict(Summary(made), ("d",))
    assert table.title == "d: CVP against each method: 1 better, 3 no difference"
    assert list(table.cells.columns) == ["Against", "AURC ↓", "Accuracy ↑"]
    # Against MC-2 the differences are −1, 1 and 0: their mean is 0, and 0.58 its standard error.
    assert table.cells.to_numpy().tolist() == [
        ["mean", "better (−10.00 ± 0.00)", "no difference (+0.00 ± 0.00)"],
        ["MC-2", "no difference (+0.00 ± 0.58)", "no difference (+0.00 ± 0.00)"],
    ]
    assert table.marks.to_numpy().tolist() == [["", "better", ""], ["", "", ""]]
    alone = verdict(Summary([row for row in made if row.seed == 0]), ("d",))
    assert alone is None  # one seed cannot tell


def test_the_order_of_the_ablation(summary):
    table = order(summary, ("cifar10-vit",))
    assert table.methods[:3] == ("cvp", "cvp-minus-activation", "cvp-minus-norm")
    places = dict(zip(table.methods, map(int, table.cells["Place here"]), strict=True))
    assert sorted(places, key=places.__getitem__) == list(ABLATIONS)  # as made
    pairs = [(a, b) for i, a in enumerate(table.methods) for b in table.methods[i + 1 :]]
    pairs.remove(("streamlining", "streamlining-none"))  # equal in the paper
    same = sum(places[a] < places[b] for a, b in pairs)
    assert table.title.startswith(f"CIFAR-10 (ViT): {same} of 27 pairs in the paper's order, ")
    assert all(text.startswith("worse (+") for text in table.cells["Against CVP here"][1:])
    assert order(summary, ("tiny",)) is None  # not the paper's
    assert order(Summary([Row("d", "cvp", 0, 1, {"aurc": 0.5})]), ("d",)) is None


def test_stored_tables_are_drawn_again_the_same(tmp_path):
    results = read_results(STORED)
    summary = Summary(results.rows)
    with drawing_style():
        made = paper_report.outcomes, paper_report.macro, paper_report.verdicts, paper_report.inside
        sections = [make(results, summary) for make in made]
    tables.write([t for section in sections for group in section.parts for t in group.tables], tmp_path)
    stored = sorted((STORED / "tables").iterdir())
    assert len(stored) == 16
    assert [path.name for path in stored if path.read_text() != (tmp_path / path.name).read_text()] == []


def test_stored_results_are_small():
    files = [path for path in STORED.parent.rglob("*") if path.is_file() and "report" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 3e6


def test_the_papers_tables_take_the_place_of_the_plain_ones():
    assert paper_report.PAPER_SECTIONS[0] is certified
    assert outcomes not in paper_report.PAPER_SECTIONS


@pytest.mark.slow
def test_a_page_of_seven_experiments_is_small(tmp_path):
    page = paper_report.write_paper_report(STORED, tmp_path)
    assert page.stat().st_size < 3e6
    assert page.read_text().count("<h2>") == len(paper_report.PAPER_SECTIONS)


def test_orders_are_compared_by_kendalls_tau(summary):
    """AURC grows in the order of METHODS here."""
    table = agreement(summary, ("cifar10-vit",))
    assert table.title == "CIFAR-10 (ViT): the paper's order of the methods and ours"
    lines = {line[0]: line[1:] for line in table.cells.to_numpy().tolist()}
    theirs = {m: published("CIFAR-10 (sub-tiny ViT)", m, "aurc").mean for m in ("mean", "mc-2", "cvp", "streamlining")}
    pairs = list(itertools.combinations(theirs, 2))  # in our order
    same = sum(theirs[a] < theirs[b] for a, b in pairs)
    assert lines["AURC ↓"] == [f"{(2 * same - 6) / 6:.2f}", str(same), str(6 - same), "4"]
    assert lines["Accuracy ↑"][0] == "–", "all methods have the same here"
    assert agreement(summary, ("tiny",)).title.endswith("; a stand-in for CIFAR-100 (ViT-Base)")
    assert agreement(summary, ("sst2",)) is None
    assert agreement(summary, tuple(CONFIG)) is None
