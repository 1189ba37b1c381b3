"""The page in a real browser: the slider is moved, and what it shows is compared with NumPy."""

import numpy as np
import pytest

from tests.report.browser import Browser, find
from varprop.report import Summary

pytestmark = pytest.mark.skipif(find() is None, reason="no Chromium found: apt-get install chromium")

TABLE = """
Object.fromEntries([...document.querySelectorAll("#points tbody tr")].map((line) => [
  line.dataset.method, [...line.querySelectorAll("td")].map((cell) => cell.textContent.trim())]))
"""
SHOWN = """[...document.querySelectorAll("#gallery-list .image")].map((image) => image.getAttribute("aria-label"))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(find(), tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def page(browser, report):
    browser.events.clear()
    browser.open(report)
    return browser


def threshold_of(scores, budget):
    """The definition: the smallest threshold whose held-out risk is within the budget (in percent)."""
    confidence, correctness = scores["held_out_confidence"], scores["held_out_correctness"]
    for t in np.unique(confidence):
        errors, answered = (1 - correctness)[confidence >= t].sum(), (confidence >= t).sum()
        if errors * 100 <= budget * answered * (1 + 1e-9):
            return t
    return None


def expected(scores, budget):
    threshold = threshold_of(scores, budget)
    if threshold is None:
        return None
    answered = scores["confidence"] >= threshold
    count, errors = int(answered.sum()), int((1 - scores["correctness"])[answered].sum())
    risk = 100 * errors / count if count else 0
    mark = " ▲" if risk > budget + 1e-9 else ""
    rate = f"{risk:.2f} %{mark}" if count else "–"
    coverage = f"{100 * count / len(answered):.1f} %"
    return [f"{threshold:.4f}", coverage, str(errors), rate, str(len(answered) - count)]


def close(shown, wanted):
    """Equal but for the last digit of a number halfway between two."""
    for a, b in zip(shown, wanted, strict=True):
        mark_a, mark_b = "▲" in a, "▲" in b
        numbers = [float(x.replace("▲", "").replace("%", "")) if x != "–" else -1.0 for x in (a, b)]
        digits = len(b.replace("▲", "").replace("%", "").strip().partition(".")[2])
        if mark_a != mark_b or abs(numbers[0] - numbers[1]) > 1.01 * 10**-digits * (digits > 0):
            return False
    return True


def check(page, made, seed):
    budget = float(page.js("document.getElementById('budget-number').value"))
    assert page.js("Number(document.getElementById('budget').value)") == pytest.approx(budget)
    table = page.js(TABLE)
    rows = [row for row in made.rows if row.seed == seed]
    for row in rows:
        wanted = expected(made.scores(row), budget)
        if wanted is None:
            assert table[row.method][0].startswith("cannot be met")
        else:
            assert close(table[row.method], wanted), (budget, row.method, table[row.method], wanted)
    return table


def test_moving_the_slider_by_keyboard_gives_the_numbers_of_the_definition(page, made):
    page.js("document.getElementById('budget').focus()")
    seen = [check(page, made, 0)]
    for key, times in (
        ("ArrowRight", 1),
        ("ArrowRight", 7),
        ("ArrowLeft", 3),
        ("End", 1),
        ("Home", 1),
        ("ArrowRight", 2),
    ):
        before = page.js("document.getElementById('budget').value")
        page.press(key, times)
        assert page.js("document.getElementById('budget').value") != before
        seen.append(check(page, made, 0))
    coverages = {table["CVP"][1] for table in seen}
    assert len(coverages) > 3


def test_every_position_of_the_slider(page, made):
    steps = page.js("Math.round(document.getElementById('budget').max / document.getElementById('budget').step)")
    for i in range(0, steps + 1, 7):
        page.js(f"""{{ const s = document.getElementById("budget"); s.value = {i} * s.step;
                       s.dispatchEvent(new Event("input", {{bubbles: true}})); }}""")
        check(page, made, 0)


def type_budget(page, value):
    page.js(f"""{{ const n = document.getElementById("budget-number"); n.value = "{value}";
                   n.dispatchEvent(new Event("input", {{bubbles: true}})); }}""")


def choose(page, select, value):
    page.js(f"""{{ const s = document.getElementById("{select}"); s.value = "{value}";
                   s.dispatchEvent(new Event("change")); }}""")


def test_a_budget_that_cannot_be_met_says_so(page, made):
    type_budget(page, 0.05)
    assert page.js(TABLE)["stubborn"] == ["cannot be met: the lowest held-out risk is 25.00 %"]
    choose(page, "gallery-method", "stubborn")
    assert "cannot keep a risk of 0.05 %" in page.js("document.getElementById('panel-summary').textContent")
    assert page.js("document.getElementById('gallery-summary').textContent").startswith("200 of the first 200")


@pytest.mark.parametrize("value", ["", "-1", "101", "abc"])
def test_a_wrong_budget_is_refused(page, value):
    before = page.js(TABLE)
    type_budget(page, value)
    assert page.js("document.getElementById('budget-error').textContent") == "Give a percentage from 0 to 100."
    assert page.js(TABLE) == before
    type_budget(page, 2)
    assert page.js("document.getElementById('budget-error').textContent") == ""


def test_another_seed_shows_its_own_numbers(page, made):
    before = page.js(TABLE)
    choose(page, "seed", "2")
    table = check(page, made, 2)
    assert table["CVP"] != before["CVP"]
    assert table["stubborn"] == ["no held-out scores were kept"]


@pytest.mark.parametrize(("method", "budget"), [("CVP", 1), ("mean", 3), ("MC-8", 0.5)])
def test_the_gallery_shows_who_is_abstained_on(page, made, method, budget):
    type_budget(page, budget)
    choose(page, "gallery-method", method)
    row = next(row for row in made.rows if (row.method, row.seed) == (method, 0))
    scores = made.scores(row)
    threshold = threshold_of(scores, budget)
    answered = scores["confidence"][:200] >= (np.inf if threshold is None else threshold)
    page.js("document.getElementById('gallery-more').click()")
    assert sorted(page.js(SHOWN)) == sorted(f"test example {i}" for i in np.flatnonzero(~answered))
    choose(page, "gallery-kind", "wrong")
    wrong = np.flatnonzero(answered & (scores["correctness"][:200] == 0))
    assert sorted(page.js(SHOWN)) == sorted(f"test example {i}" for i in wrong)


def test_thumbnails_name_prediction_and_truth(page, made):
    type_budget(page, 1)
    row = next(row for row in made.rows if (row.method, row.seed) == ("CVP", 0))
    scores, names = made.scores(row), made.examples("digits").names
    first = page.js("document.querySelector('#gallery-list li').title")
    i = int(first.partition(":")[0].removeprefix("example "))
    assert scores["confidence"][i] == scores["confidence"][:200].min()
    said, is_ = names[scores["label"][i]], names[scores["target"][i]]
    assert f"predicted {said}, true {is_}" in first
    few = page.js("document.querySelectorAll('#gallery-list li').length")
    assert few <= 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 400, 700, 1400])
def test_the_page_fits_and_is_readable(browser, report, width, scheme):
    browser.open(report, width, 900, scheme)
    assert browser.js("document.documentElement.scrollWidth") <= width
    colours = browser.js("""["svg.figure text", "body"].map((s) => getComputedStyle(document.querySelector(s)))
        .map((style, i) => (i ? style.backgroundColor : style.fill).match(/\\d+/g).slice(0, 3).map(Number))""")
    text, ground = (sum(colour) for colour in colours)
    assert (text < 150 and ground > 700) if scheme == "light" else (text > 600 and ground < 150)
    # Words in figures are at least 8 pixels high on the screen.
    sizes = browser.js("""[...document.querySelectorAll("svg.figure text")].map((text) =>
        parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)""")
    assert min(size for size in sizes if size) > 8


def test_nothing_is_asked_of_a_network_and_nothing_fails(page, report):
    type_budget(page, 3)
    asked = [e["params"]["request"]["url"] for e in page.events if e.get("method") == "Network.requestWillBeSent"]
    assert asked
    assert all(url.startswith(("data:", report.resolve().as_uri())) for url in asked)
    failed = [e for e in page.events if e.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}]
    assert failed == []


def test_labels_in_the_pareto_plots_do_not_overlap(page, made):
    """With the browser's own fonts, not those the labels were placed with."""
    names = [m for m in Summary(made.rows).methods if m != "stubborn"]
    overlaps = page.js(f"""[...document.querySelectorAll("svg.figure[aria-label*='against relative time']")]
      .filter((s) => s.getBoundingClientRect().width).map((s) => {{
        const boxes = [...s.querySelectorAll("text")].filter((t) => {names}.includes(t.textContent))
          .map((t) => t.getBoundingClientRect());
        return [boxes.length, boxes.some((a, i) => boxes.some((b, j) => i < j && a.left < b.right && b.left < a.right
          && a.top < b.bottom - 2 && b.top < a.bottom - 2))];
      }})""")
    assert len(overlaps) == 13
    assert all(count == len(names) and not clash for count, clash in overlaps)
