import csv
import io
import itertools
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from varprop.errors import ResultsError
from varprop.evaluation.results import Results
from varprop.report import Row, Summary, layers, pareto, write_report
from varprop.report.columns import COLUMNS
from varprop.report.labels import overlap, place
from varprop.report.style import PALETTE, drawing_style, figure, samples_of, styles
from varprop.report.svg import svg

KINDS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".csv": b""}
AURC = next(column for column in COLUMNS if column.key == "aurc")


def test_every_figure_is_saved_in_three_kinds(report):
    found = {path.name for path in (report.parent / "figures").iterdir()}
    metrics = [c.key.replace("@", "") for c in COLUMNS if not c.key.startswith("cost.")]
    names = [f"pareto-{key}" for key in metrics]
    names += ["risk-coverage", "reliability", "scales", "fidelity-variance-ratio", "fidelity-mean-error"]
    assert found == {f"{name}{kind}" for name in ["teaser", *(f"digits-{name}" for name in names)] for kind in KINDS}
    for path in (report.parent / "figures").iterdir():
        content = path.read_bytes()
        assert content.startswith(KINDS[path.suffix])
        assert len(content) > 300


def read_csv(report, name):
    return list(csv.DictReader(io.StringIO((report.parent / "figures" / f"digits-{name}.csv").read_text())))


def test_the_data_of_a_pareto_plot_are_the_summary(report, made):
    summary = Summary(made.rows)
    lines = read_csv(report, "pareto-aurc")
    assert [line["method"] for line in lines] == [m for m in summary.methods if m != "stubborn"]  # it has no cost
    for line in lines:
        expected = summary.estimate("digits", line["method"], AURC)
        assert float(line["aurc"]) == expected.mean
        assert float(line["aurc_sem"]) == expected.sem
        assert float(line["relative_time"]) == summary.estimate("digits", line["method"], pareto.TIME).mean


def test_the_data_of_the_layer_figures(report, made):
    alphas = read_csv(report, "scales")
    rows = [row for row in made.rows if row.scales]
    assert len(alphas) == sum(len(row.scales) for row in rows)
    head = [float(line["alpha"]) for line in alphas if line["path"] == "head"]
    assert head == [row.scales["head"] for row in rows]
    geometric = {line["geometric_mean"] for line in alphas if line["path"] == "head"}
    assert [float(value) for value in geometric] == [pytest.approx(float(np.exp(np.log(head).mean())))]
    ratios = read_csv(report, "fidelity-variance-ratio")
    cvp = [row for row in made.rows if row.method == "CVP"]
    expected = np.mean([next(e["variance_ratio"] for e in row.fidelity if e["path"] == "head") for row in cvp])
    found = next(line for line in ratios if line["path"] == "head" and line["method"] == "CVP")
    assert float(found["variance_ratio"]) == pytest.approx(expected)
    errors = read_csv(report, "fidelity-mean-error")
    plain = np.mean([next(e["plain_error"] for e in row.fidelity if e["path"] == "norm") for row in cvp])
    found = next(line for line in errors if line["path"] == "norm" and line["method"] == "CVP")
    assert float(found["plain_error"]) == pytest.approx(plain)


def drawn(text="AURC", **look):
    with drawing_style():
        fig = figure(3, 2)
        axes = fig.subplots()
        axes.plot([0, 1], [0, 1], color=PALETTE["cvp"][0], **look)
        axes.set_xlabel(text)
        return svg(fig, "one", 'an "alt" <text>')


def test_svg_takes_colours_from_the_page():
    text = drawn()
    assert "currentColor" in text
    assert "var(--cvp)" in text
    assert "var(--muted)" in text
    assert not re.search(r"#[0-9a-fA-F]{6}\b", re.sub(r'#one-[^")]+', "", text))  # no colour of its own
    assert "font-family: inherit" in text
    assert ">AURC</text>" in text  # words stay words


def test_svg_leaks_nothing_into_the_page():
    text = drawn()
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == 'an "alt" <text>'
    assert root.get("role") == "img"
    assert "width" not in root.attrib
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert ids
    assert len(ids) == len(set(ids))
    assert all(name.startswith("one-") for name in ids)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    assert used <= set(ids)
    for unwanted in ("<style", "<metadata", "http", "<?xml", "<!DOCTYPE"):
        assert unwanted not in text


def test_the_same_figure_is_the_same_svg():
    assert drawn() == drawn()


def test_drawing_leaves_the_users_settings_alone():
    mpl = pytest.importorskip("matplotlib")
    with mpl.rc_context({"font.size": 31.0, "svg.fonttype": "path"}):
        text = drawn()
        assert mpl.rcParams["font.size"] == 31.0
        assert "31px" not in text
        assert "<text" in text


def test_labels_do_not_cover_points_or_each_other():
    points = [(1, 5), (1, 5.02), (1.1, 5.01), (2, 4.9), (2.02, 4.9), (2, 5.1), (8, 5), (64, 5)]
    names = ["mean", "temperature", "Streamlining", "CVP", "MC-2", "MC-4", "MC-8", "MC-64"]
    with drawing_style():
        axes = figure(3.9, 3.1).subplots()
        axes.set(xscale="log", xlim=(0.5, 100), ylim=(4, 6))

        def markers():
            at = axes.transData.transform(points) * 72 / axes.figure.dpi
            return [(x - 4, y - 4, x + 4, y + 4) for x, y in at]

        boxes = place(axes, names, points, markers, fontsize=8)
        frame = axes.get_window_extent()
    for a, b in itertools.combinations([*boxes, *markers()], 2):
        if a in boxes or b in boxes:
            assert overlap(np.array([a]), np.array([b]))[0, 0] == 0
    scale = 72 / axes.figure.dpi
    for x0, y0, x1, y1 in boxes:
        assert frame.x0 * scale <= x0 <= x1 <= frame.x1 * scale
        assert frame.y0 * scale <= y0 <= y1 <= frame.y1 * scale


def test_methods_keep_their_colours_and_are_told_apart():
    methods = ["mean", "temperature", "MC-2", "MC-4", "MC-8", "MC-64", "Streamlining", "CVP", "mine", "yours"]
    found = styles(methods)
    looks = {(style.role, style.marker, str(style.dashes)) for style in found.values()}
    assert len(looks) == len(methods)
    shown = styles([f"MC-{2**i}" for i in range(7)])
    assert len({shown[m] for m in ("MC-2", "MC-4", "MC-64")}) == 3
    assert found["CVP"] == styles(["CVP"])["CVP"]
    assert found["MC-64"].role == styles(["MC-64"])["MC-64"].role == "mc4"
    assert [samples_of(m) for m in ("MC-8", "MC 8", "mc8", "CVP", "MC")] == [8, 8, 8, None, None]


def test_rows_without_numbers_give_no_figures():
    rows = [Row("d", m, 0, 4, {"accuracy": 0.5, "nll": math.inf}) for m in ("mean", "CVP")]
    summary = Summary(rows)
    look = styles(summary.methods)
    assert pareto.pareto(summary, "d", AURC, look) is None  # no cost, no AURC
    assert layers.scales(rows, look) is None
    assert layers.fidelity(rows, look) == []


def test_a_deep_network_with_long_paths_is_drawn_small_enough():
    paths = [f"vision_model.encoder.layers.{i}.self_attention.projection" for i in range(200)]
    rows = [Row("d", "CVP", 0, 4, {"accuracy": 0.5}, scales=dict.fromkeys(paths, 2.0))]
    with drawing_style():
        drawing = layers.scales(rows, styles(["CVP"]))
        width, height = drawing.whole.get_size_inches()
        labels = [label.get_text() for label in drawing.whole.axes[0].get_yticklabels()]
    assert height < 16
    assert width < 5
    assert max(map(len, labels)) <= 34
    assert 40 < len(labels) < 110
    assert len(drawing.cells) == 200


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    Results(tmp_path).add(Row("d", "CVP", 0, 4, {"accuracy": 0.5}))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ResultsError, match=r"pip install 'varprop\[report\]'"):
        write_report(tmp_path)


def test_importing_the_report_does_not_import_matplotlib():
    code = "import sys, varprop.report; assert 'matplotlib' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
