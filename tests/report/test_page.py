"""The page as a file: whole, alone, and with the numbers of the rows."""

import base64
import io
import json
import math
import re
import sys
import urllib.parse
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.report.synthetic_results import make
from varprop.errors import ResultsError
from varprop.evaluation.results import Results, Row
from varprop.evaluation.thresholds import certify
from varprop.report import write_report
from varprop.report.certified import certified_coverage
from varprop.report.figures import Drawing
from varprop.report.page import _image
from varprop.report.risk_slider import MOST_EXAMPLES
from varprop.report.style import drawing_style, figure
from varprop.report.summary import Summary

pytestmark = pytest.mark.second


class Page(HTMLParser):
    """Elements, in order, and whether they are closed in the right order."""

    VOID = frozenset({"meta", "input", "br", "link", "img"})

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)


def data_of(text):
    return json.loads(re.search(r'id="operating-points">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_is_whole_and_stands_alone(report):
    text = report.read_text()
    page = Page(text)
    assert page.open == []
    assert "http:" not in text.replace("xmlns='http://www.w3.org/2000/svg'", "")  # a name, not an address
    assert "https:" not in text
    assert "default-src 'none'" in text
    for tag, attributes in page.elements:
        assert tag not in {"link", "iframe", "object", "embed"}
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_pictures_show_what_was_drawn():
    """Their text is shortened, labels are not: 0.525 between 0.500 and 0.550 stays what it is."""
    with drawing_style():
        fig = figure(3, 2)
        axes = fig.subplots()
        axes.plot([0.5, 0.525, 0.55], [0, 1, 0], "o", rasterized=True)
        axes.set(xticks=[0.5, 0.525, 0.55], title='"a" < b\'s c')
        uri, _ = _image(Drawing("d", "n", "t", "alt", fig, pd.DataFrame()))
    svg = ElementTree.fromstring(urllib.parse.unquote(uri.removeprefix("data:image/svg+xml,")))
    words = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0.500", "0.525", "0.550", '"a" < b\'s c'} <= set(words)
    (image,) = svg.iter("{http://www.w3.org/2000/svg}image")
    kind, _, data = image.get("href").partition(",")
    assert kind == "data:image/png;base64"
    assert np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).any()
    assert '"' not in uri


def test_figures_have_words_and_tables_have_headers(report):
    page = Page(report.read_text())
    figures = [attributes for tag, attributes in page.elements if tag == "img"]
    assert len(figures) == 1 + 13 + 2 + 1 + 3  # certified, metrics, curves, diagrams, layers
    assert all(len(attributes["alt"]) > 20 for attributes in figures)
    cells = [attributes for tag, attributes in page.elements if tag == "th"]
    assert all(attributes.get("scope") in {"row", "col"} for attributes in cells)
    assert sum(tag == "caption" for tag, _ in page.elements) == sum(tag == "table" for tag, _ in page.elements)


def test_the_table_shows_means_errors_and_the_best(report, made):
    text = report.read_text()
    found = Summary(made.rows).estimates(("digits",))
    mean, sem = found.mean.at["cvp", "accuracy"], found.sem.at["cvp", "accuracy"]
    assert re.search(rf">CVP</th>\s*<td( class=\"best\")?>{mean:.2f}<small>± {sem:.2f}</small>", text)
    words = " ".join("".join(Page(text).words).split())
    assert "Paired differences to CVP" in words
    assert "mean, MC-4, MC-8, Streamlining, CVP and stubborn; 3 seeds each" in words


def test_the_slider_looks_up_few_numbers(report, made):
    experiment = data_of(report.read_text())["experiments"][0]
    assert experiment["seeds"] == ["0", "1", "2"]
    assert set(experiment["runs"]["0"]) == {"mean", "mc-4", "mc-8", "streamlining", "cvp", "stubborn"}
    assert set(experiment["runs"]["1"]) == {"mean", "mc-4", "mc-8", "streamlining", "cvp"}
    run = experiment["runs"]["1"]["cvp"]
    assert len(run["certified"]) == len(run["met"]) == len(experiment["budgets"]) < 60
    assert experiment["sheet"]["count"] == len(run["rank"]) == 200
    assert experiment["names"][3] == "three"
    assert run["met"][-1][1] > 0.99 * run["examples"]  # the largest budget answers all, or all but the least sure


def test_names_cannot_break_the_page(tmp_path):
    evil = '</script><b onclick="x">&'
    results = Results(tmp_path)
    rng = np.random.default_rng(0)
    arrays = {"confidence": rng.random(50), "correctness": np.ones(50)}
    held_out = {f"held_out_{name}": value for name, value in arrays.items()}
    extra = {"label": np.zeros(50, int), "target": np.zeros(50, int)}
    for method in (evil, "cvp"):
        row = Row(evil, method, 0, 50, {"accuracy": 0.5, "aurc": 0.1}, cost={"sample": 1.0}, scales={evil: 2.0})
        results.add(row, arrays | held_out | extra)
    results.add_examples(np.zeros((3, 2, 2, 3), np.uint8), [evil], row=evil)
    out = write_report(tmp_path)
    text = out.read_text()
    page = Page(text)
    assert page.open == []
    assert not any("onclick" in attributes for _, attributes in page.elements)
    assert data_of(text)["experiments"][0]["name"] == evil
    assert out.parent == tmp_path / "report"


def test_odd_rows_give_a_report(tmp_path):
    """Scales and times no logarithm can show, fidelity that was not measured, names that come to one file name."""
    results, curve, metrics = Results(tmp_path), (0.1,) * 100, {"accuracy": 0.5}
    names = ("a/b", "a_b", "A_b", "n" * 200, "n" * 199 + "m")
    scales = {"zero": 0.0, "one": 1.0, "much": math.inf, "tiny": 1e-300, "huge": 1e300, "none": math.nan}
    entry = {"path": "x", "variance_ratio": None, "mean_error": None}
    for name in names:
        for method, time in (("cvp", 0.0), ("mean", 1.0), ("mc-8", 8.0)):
            cost = {"plain": time, "sample": time}
            row = Row(name, method, 0, 4, metrics, curve=curve, cost=cost, scales=scales, fidelity=(entry,))
            results.add(row)
    out = write_report(tmp_path)
    assert Page(out.read_text()).open == []
    curves = [path.name for path in (out.parent / "figures").glob("*risk-coverage.csv")]
    assert len({name.lower() for name in curves}) == len(names)
    assert "a_b-risk-coverage.csv" in curves
    markdown = (out.parent / "tables" / "main.md").read_text()
    assert all(name in markdown for name in names)


def test_a_single_row_without_scores_gives_a_report(tmp_path):
    Results(tmp_path).add(Row("digits", "cvp", 0, 4, {"accuracy": 0.5}))
    text = write_report(tmp_path, tmp_path / "deep" / "mine.html").read_text()
    assert Page(text).open == []
    assert "one seed" in text
    assert "not known" not in text
    assert '<section id="operating-point"' not in text
    assert (tmp_path / "deep" / "tables" / "main.md").is_file()


def test_several_experiments_are_averaged(tmp_path):
    make(tmp_path, ("digits", "clothes"), methods=("mean", "cvp"), seeds=2, examples=60, held_out=60, thumbnails=4)
    out = write_report(tmp_path, tmp_path / "out")
    text = out.read_text()
    assert "<h3>Average</h3>" in text
    names = {"main", "extended", "all", "differences", "runs"}
    assert {path.name for path in (out.parent / "tables").glob("*.csv")} == {f"{name}.csv" for name in names}
    found = data_of(text)["experiments"]
    assert [experiment["name"] for experiment in found] == ["digits", "clothes"]
    assert all(experiment["sheet"]["count"] == 4 for experiment in found)


def test_many_thumbnails_are_limited(tmp_path):
    size = MOST_EXAMPLES + 50
    make(tmp_path, methods=("cvp",), seeds=1, examples=size, held_out=60, thumbnails=size)
    experiment = data_of(write_report(tmp_path).read_text())["experiments"][0]
    assert experiment["sheet"]["count"] == len(experiment["runs"]["0"]["cvp"]["rank"]) == MOST_EXAMPLES


def test_the_report_begins_with_what_is_certified(report, made):
    """The sentence, by hand; and nothing is claimed that lies within noise."""
    words = " ".join("".join(Page(report.read_text()).words).split())
    risk = float(re.search(r"At most (\d+) % errors, certified", words)[1]) / 100
    shares = {}
    for row in made.rows:
        if row.method != "stubborn":  # it has one seed only
            point = certify(made.scores(row), risk)
            shares.setdefault(row.method, []).append(100 * point.answered / row.examples if point else 0)
    said = re.search(r"CVP answers ([\d.]+) %, MC-8 ([\d.]+) %\.", words)
    assert [float(said[1]), float(said[2])] == pytest.approx([np.mean(shares[m]) for m in ("cvp", "mc-8")], abs=0.051)
    assert max(map(np.mean, shares.values())) >= 20
    rival = max(shares.keys() - {"cvp"}, key=lambda method: np.mean(shares[method]))
    gaps = np.subtract(shares["cvp"], shares[rival])
    clear = abs(gaps.mean()) > 2 * gaps.std(ddof=1) / math.sqrt(3)
    assert ("within noise" in words) == (not clear)
    assert "on the same held-out examples" in words  # the promise does not hold to the letter


def test_texts_are_shown_where_data_are_text(tmp_path):
    results = make(tmp_path, methods=("mean", "cvp"), seeds=1, examples=60, held_out=60, thumbnails=0)
    results.add_examples(["a <b>fine</b> film", "dull"], ["good", "bad"], row="digits")
    text = write_report(tmp_path).read_text()
    experiment = data_of(text)["experiments"][0]
    assert experiment["texts"] == ["a <b>fine</b> film", "dull"]
    assert experiment["sheet"] is None
    assert len(experiment["runs"]["0"]["cvp"]["rank"]) == 2
    assert "<b>fine" not in text


def test_an_unwritable_place_is_named(tmp_path):
    Results(tmp_path / "results").add(Row("digits", "cvp", 0, 4, {"accuracy": 0.5}))
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="cannot write .*choose another folder"):
        write_report(tmp_path / "results", tmp_path / "file" / "report")
    with pytest.raises(ResultsError, match="there is no folder"):
        write_report(tmp_path / "nowhere")


def test_without_a_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("varprop.report.")]:
        package, _, leaf = name.rpartition(".")
        monkeypatch.setattr(sys.modules[package], leaf, sys.modules[name])  # comes back, as what is in sys.modules does
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ResultsError, match=r"a report needs jinja2: pip install 'varprop\[report\]'"):
        write_report(tmp_path)


@pytest.mark.parametrize(("often", "risk"), [(0, 0.01), (40, 0.05), (2, 0.01)], ids=["never", "at times", "half"])
def test_the_headline_has_a_risk_at_which_all_answer(tmp_path, often, risk):
    """Temperature scaling is certified at any; of CVP every so many answers are wrong. If it is at none, another is."""
    results, index = Results(tmp_path), np.arange(2000)
    for method, wrong in (("temperature", index < 0), ("cvp", index % often == 0 if often else index < 0)):
        right, confidence = (~wrong).astype(float), np.linspace(0.1, 1, 2000)
        arrays = {"confidence": confidence, "correctness": right}
        arrays |= {"held_out_confidence": confidence, "held_out_correctness": right}
        results.add(Row("d", method, 0, 2000, {"accuracy": float(right.mean())}), arrays)
    assert certified_coverage(results, Summary(results.rows), "d").risk == risk
