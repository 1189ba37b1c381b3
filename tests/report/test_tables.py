"""The paper's tables, of made-up rows."""

import csv
import io
import re

import pytest

from varprop.report import Row, Summary, html, lineup, tables, verdicts
from varprop.report.paper import ablations
from varprop.report.style import styles

SIZES = tuple(f"MC-{2**i}" for i in range(7))
METHODS = ("mean", "temperature", *SIZES, *ablations())
CONFIG = {
    "cifar10-vit": {"title": "CIFAR-10 (ViT)", "paper": "CIFAR-10 (sub-tiny ViT)", "stand_in": False},
    "tiny": {"title": "Tiny ImageNet", "paper": "CIFAR-100 (ViT-Base)", "stand_in": True},
    "sst2": {"title": "SST-2", "paper": None, "stand_in": False},
}


def rows(experiments=tuple(CONFIG), methods=METHODS, seeds=3):
    """AURC grows by 0.001 per method, but for seeds, which all methods share, and some noise."""
    return [
        Row(
            experiment,
            method,
            seed,
            10,
            {
                "accuracy": 0.8,
                "aurc": 0.01 * (1 + e) + 0.001 * METHODS.index(method) + 0.02 * seed + 1e-4 * (seed * m % 3),
                "nll": 0.5,
                "c@2": 0.4,
            },
            cost={"sample": 1.0 + m, "plain": 2.0},
            config=CONFIG[experiment],
        )
        for e, experiment in enumerate(experiments)
        for m, method in enumerate(methods)
        for seed in range(seeds)
    ]


@pytest.fixture(scope="module")
def summary():
    return Summary(rows())


def test_who_is_in_which_table():
    assert lineup.main(METHODS) == ("mean", "temperature", "MC-2", "MC-4", "MC-64", "CVP", "Streamlining")
    assert lineup.main(("mean", "MC-8", "mine")) == ("mean", "MC-8", "mine")
    assert lineup.sampled(METHODS) == ("mean", *SIZES, "CVP")
    assert lineup.sampled(("mean", "CVP")) == ()
    assert lineup.ablated(METHODS) == ablations()
    assert lineup.ablated(("mean", "CVP", "Streamlining")) == ()
    assert lineup.scaled((*METHODS, "mine"))[-3:] == ("CVP", "Streamlining + per layer", "mine")
    assert set(lineup.unvaried(METHODS)) == {"mean", "temperature", *SIZES, "CVP", "Streamlining"}


def test_the_main_table_has_the_papers_numbers_beside_ours(summary):
    main = tables.stacked(summary)["main"]
    names = [table.name for table in main.tables]
    assert names == ["cifar10-vit", "tiny", "sst2", "average", "average"]
    first, second, third, whole, ours = main.tables
    assert first.title.endswith("over 3 seeds; beside the paper's CIFAR-10 (sub-tiny ViT)")
    assert second.title.endswith("stands in for the paper's CIFAR-100 (ViT-Base)")
    assert not third.compared
    assert not whole.compared  # an average with an experiment that the paper lacks
    assert [c.key for c in first.columns] == ["accuracy", "aurc", "nll", "cost.sample"]
    cells = dict(first.lines)
    assert [cell.beside for cell in cells["CVP"]] == ["80.3 ± 0.1", "5.52 ± 0.03", "0.56 ± 0.00", "2.2"]
    assert [cell.beside for cell in cells["MC-64"]] == ["", "", "", ""]
    assert dict(ours.lines)["CVP"][0].beside == "84.2 ± 0.1"  # of 80.3 and 88.1


def test_each_kind_of_file_has_both_numbers(summary):
    main = tables.stacked(summary)["main"]
    lines = main.text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("CVP "))
    assert lines[at + 1].split()[:4] == ["paper", "80.3", "±", "0.1"]
    assert "| *paper* | *80.3 ± 0.1* | *5.52 ± 0.03* |" in main.markdown()
    found = list(csv.DictReader(io.StringIO(main.csv())))
    assert found[5]["experiment"] == "cifar10-vit"
    assert found[5]["method"] == "CVP"
    assert (found[5]["aurc_paper"], found[5]["aurc_paper_sem"]) == ("5.52", "0.03")
    assert float(found[5]["aurc"]) == summary.estimate("cifar10-vit", "CVP", tables.MAIN[1]).mean
    latex = main.latex()
    assert r"\multicolumn{5}{l}{\textit{CIFAR-10 (ViT)" in latex
    assert r"\quad {\scriptsize paper} & {\scriptsize 79.9 $\pm$ 0.1}" in latex
    assert latex.count(r"\begin{tabular}{lrrrr}") == latex.count(r"\end{tabular}") == 1
    bodies = [line for line in latex.splitlines() if " & " in line]
    assert {line.count("&") for line in bodies} == {4}


def test_other_tables(summary):
    found = tables.stacked(summary)
    assert set(found) == {"main", "extended", "sampling", "ablation"}
    assert [c.key for c in found["extended"].tables[0].columns] == ["c@2", "cost.sample", "cost.plain"]
    assert [name for name, _ in found["sampling"].tables[0].lines] == ["mean", *SIZES, "CVP"]
    assert [name for name, _ in found["ablation"].tables[0].lines] == list(ablations())
    assert not found["ablation"].tables[0].compared  # the paper has it on average only
    average = found["ablation"].tables[-1]
    assert dict(average.lines)["CVP, none"][1].beside == "6.46 ± 0.03"
    assert "six benchmarks" in average.title


def test_an_unknown_row_of_the_paper_is_no_row():
    made = [Row("d", m, 0, 1, {"aurc": 0.5}, config={"paper": "ImageNet-21k"}) for m in ("mean", "CVP")]
    summary = Summary(made)
    assert summary.paper("d") is None
    assert not tables.stacked(summary)["main"].tables[0].compared


def test_verdicts_by_hand():
    values = {"mean": (0.3, 0.5, 0.7), "MC-2": (0.21, 0.39, 0.6), "CVP": (0.2, 0.4, 0.6)}
    made = [Row("d", m, i, 1, {"aurc": v, "accuracy": 0.5}) for m, vs in values.items() for i, v in enumerate(vs)]
    (found,) = verdicts.verdicts(Summary(made)).tables
    assert found.title == "d: CVP against each method: 1 better, 3 no difference"
    assert found.columns == ("Against", "AURC ↓", "Accuracy ↑")
    # Against MC-2 the differences are −1, 1 and 0: their mean is 0, and 0.58 its standard error.
    assert found.lines == (
        ("mean", "better (−10.00 ± 0.00)", "no difference (+0.00 ± 0.00)"),
        ("MC-2", "no difference (+0.00 ± 0.58)", "no difference (+0.00 ± 0.00)"),
    )
    assert r"mean & better ($-$10.00 $\pm$ 0.00) & no difference (+0.00 $\pm$ 0.00) \\" in found.latex()


def test_one_seed_gives_no_verdict():
    (found,) = verdicts.verdicts(Summary(rows(("sst2",), ("mean", "CVP"), seeds=1))).tables
    assert "one seed: not known" in found.lines[0][1]


def test_the_order_of_the_ablation(summary):
    found = verdicts.order(summary)
    assert [table.name for table in found.tables] == [*CONFIG, "average"]
    last = found.tables[-1]
    assert [line[0] for line in last.lines][:3] == ["CVP", "CVP - activation", "CVP - norm"]
    places = {line[0]: int(line[3]) for line in last.lines}
    assert sorted(places, key=places.__getitem__) == list(ablations())  # as made
    theirs = {m: i for i, m in enumerate(line[0] for line in last.lines)}
    pairs = [(a, b) for a in theirs for b in theirs if theirs[a] < theirs[b]]
    pairs.remove(("Streamlining", "Streamlining, none"))  # equal in the paper
    same = sum(places[a] < places[b] for a, b in pairs)
    assert last.title.startswith(f"average: {same} of 27 pairs in the paper's order, ")
    assert all(line[4].startswith("worse (+") for line in last.lines[1:])


def test_the_page_has_the_main_table_first_and_the_rest_folded(summary):
    text = html.page(summary, {}, {"experiments": []}, styles(summary.methods), ())
    first = text.index('<table class="results">')
    assert text.index("Accuracy") < text.index("<details>")
    assert first < text.index("<details>")
    assert text.count('<small class="paper">paper 5.52 ± 0.03</small>') == 2  # main and all sample sizes
    for words in (
        "stands in for the paper&#x27;s CIFAR-100 (ViT-Base)",
        "Ablation",
        "All sample sizes",
        "More metrics",
    ):
        assert words in text
    shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert "CVP - norm" not in shown[: shown.index('<section id="verdicts">')]
    assert "10 variants of these" in text
