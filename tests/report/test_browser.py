"""The page in a real browser: the slider is moved, and what it shows is compared with the library's thresholds."""

import json
import shutil

import numpy as np
import pytest

from varprop.evaluation.thresholds import certify, meet
from varprop.report.summary import Summary

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
FLAGS += ("--disable-component-update", "--disable-sync")

pytestmark = [
    pytest.mark.second,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found: apt-get install chromium"),
]

TABLE = """
Object.fromEntries([...document.querySelectorAll("#points tbody tr")].map((line) => [
  line.dataset.method, [...line.querySelectorAll("td")].map((cell) => cell.textContent.trim())]))
"""
SHOWN = """[...document.querySelectorAll("#gallery-list .image")].map((image) => image.getAttribute("aria-label"))"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield found
        found.close()


@pytest.fixture
def page(browser, report):
    """Nothing is asked of a network, and nothing fails."""
    found = browser.new_page()
    asked, failed = [], []
    found.on("request", lambda request: asked.append(request.url))
    found.on("pageerror", lambda error: failed.append(str(error)))
    found.on("console", lambda message: failed.append(message.text))
    found.goto(report.resolve().as_uri())
    yield found
    found.close()
    assert all(url.startswith(("data:", report.resolve().as_uri())) for url in asked)
    assert failed == []


def expected(scores, budget, find):
    point = find(scores, budget / 100)
    if point is None:
        return None
    examples = len(scores["confidence"])
    mark = " ▲" if 100 * point.risk > budget + 1e-9 else ""
    coverage = f"{100 * point.answered / examples:.1f} %"
    abstained = examples - point.answered
    return [
        f"{point.threshold:.4f}",
        coverage,
        f"{point.errors:.0f}",
        f"{100 * point.risk:.2f} %{mark}",
        str(abstained),
    ]


def close(shown, wanted):
    """Equal but for the last digit of a number halfway between two."""
    for a, b in zip(shown, wanted, strict=True):
        digits = len(b.replace("▲", "").replace("%", "").strip().partition(".")[2])
        one, other = (float(x.replace("▲", "").replace("%", "").replace("none", "-inf")) for x in (a, b))
        if ("▲" in a) != ("▲" in b) or not (one == other or abs(one - other) < 1.01 * 10**-digits * (digits > 0)):
            return False
    return True


def budget_of(page):
    return float(page.text_content("#budget-shown").removesuffix(" %"))


def check(page, made, seed, find):
    budget, table = budget_of(page), page.evaluate(TABLE)
    for row in (row for row in made.rows if row.seed == seed):
        wanted = expected(made.scores(row), budget, find)
        if wanted is None:
            assert table[row.method][0].startswith(("nothing can be promised", "no threshold"))
        else:
            assert close(table[row.method], wanted), (budget, row.method, table[row.method], wanted)
    return table


def test_moving_the_slider_gives_certified_numbers(page, made):
    page.select_option("#seed", "0")
    page.focus("#budget")
    seen = [check(page, made, 0, certify)]
    for key, times in (("ArrowRight", 1), ("ArrowRight", 7), ("ArrowLeft", 3), ("End", 1), ("Home", 1)):
        before = budget_of(page)
        for _ in range(times):
            page.keyboard.press(key)
        assert budget_of(page) != before
        seen.append(check(page, made, 0, certify))
    assert len({table["cvp"][1] for table in seen if len(table["cvp"]) > 1}) > 2


def move(page, budget):
    """To a budget of the slider, in percent."""
    page.eval_on_selector(
        "#budget",
        """(slider, budget) => {
            const { budgets } = JSON.parse(document.getElementById("operating-points").textContent).experiments[0];
            slider.value = budgets.indexOf(budget);
            slider.dispatchEvent(new Event("input", {bubbles: true}));
        }""",
        budget,
    )
    assert budget_of(page) == budget


def test_uncertified_thresholds_are_a_click_away(page, made):
    page.select_option("#seed", "2")
    before = check(page, made, 2, certify)
    page.check("input[value=met]")
    after = check(page, made, 2, meet)
    assert after["cvp"] != before["cvp"]
    assert after["stubborn"] == ["no held-out scores were kept"]
    move(page, 0.3)
    check(page, made, 2, meet)


def test_seeds_are_averaged(page, made):
    move(page, 5)
    points = [certify(made.scores(row), 0.05) for row in made.rows if row.method == "cvp"]
    shares = [point.answered / 400 for point in points]
    shown = page.evaluate(TABLE)["cvp"]
    error = np.std(shares, ddof=1) / np.sqrt(len(shares))
    assert shown[:2] == ["–", f"{100 * np.mean(shares):.1f} ± {100 * error:.1f} %"]
    assert "on average over 3 seeds" in page.text_content("#points-summary")


def test_a_budget_that_cannot_be_met_says_so(page, made):
    page.select_option("#seed", "0")
    page.check("input[value=met]")
    move(page, 0.1)
    assert page.evaluate(TABLE)["stubborn"] == ["no threshold meets it"]
    page.select_option("#gallery-method", "stubborn")
    assert "finds no threshold with a held-out risk of 0.1 %" in page.text_content("#points-summary")
    assert page.text_content("#gallery-summary").startswith("200 of the first 200")


@pytest.mark.parametrize(("method", "budget"), [("cvp", 5), ("mean", 3), ("mc-8", 5)])
def test_the_gallery_shows_who_is_abstained_on(page, made, method, budget):
    page.select_option("#seed", "0")
    move(page, budget)
    page.select_option("#gallery-method", method)
    row = next(row for row in made.rows if (row.method, row.seed) == (method, 0))
    scores = made.scores(row)
    point = certify(scores, budget / 100)
    answered = scores["confidence"][:200] >= (point.threshold if point else np.inf)
    page.eval_on_selector("#gallery-more", "button => button.click()")
    assert (answered.any(), answered.all()) == (True, False)
    assert sorted(page.evaluate(SHOWN)) == sorted(f"test example {i}" for i in np.flatnonzero(~answered))
    page.select_option("#gallery-kind", "wrong")
    wrong = np.flatnonzero(answered & (scores["correctness"][:200] == 0))
    assert sorted(page.evaluate(SHOWN)) == sorted(f"test example {i}" for i in wrong)


def test_thumbnails_name_prediction_and_truth(page, made):
    page.select_option("#seed", "0")
    row = next(row for row in made.rows if (row.method, row.seed) == ("cvp", 0))
    scores, names = made.scores(row), made.examples("digits").names
    first = page.get_attribute("#gallery-list li", "title")
    i = int(first.partition(":")[0].removeprefix("example "))
    assert scores["confidence"][i] == scores["confidence"][:200].min()
    said, is_ = names[scores["label"][i]], names[scores["target"][i]]
    assert f"predicted {said}, true {is_}" in first
    few = page.locator("#gallery-list li").count()
    assert few <= 60


def test_a_click_on_a_heading_sorts(page, made):
    column = """[...document.querySelectorAll("table.all tbody tr")].map(
        (line) => [line.cells[0].textContent, line.cells[2].textContent])"""
    page.evaluate("document.querySelectorAll('details').forEach((folded) => { folded.open = true })")
    before = page.evaluate(column)
    for rising in (True, False):
        page.click("table.all thead th:nth-child(3) button")
        after = page.evaluate(column)
        numbers = [float(text.partition("±")[0]) for _, text in after if text != "–"]
        assert numbers == sorted(numbers, reverse=not rising)
        assert after[-1][0] == "stubborn (1 of 3 seeds)"  # what has no number is last, whichever way
    assert sorted(map(tuple, after)) == sorted(map(tuple, before))
    assert page.get_attribute("table.all thead th:nth-child(3)", "aria-sort") == "descending"


def test_pointing_at_a_point_shows_its_value(page, made):
    image = page.locator("figure.pareto-aurc img")
    image.scroll_into_view_if_needed()
    # Scrolling hides the tip, an animation frame later.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box, tooltips = image.bounding_box(), json.loads(image.get_attribute("data-tooltips"))
    x, y, text = next(tooltip for tooltip in tooltips if tooltip[2].startswith("CVP:"))
    page.mouse.move(box["x"] + box["width"] * x / 100 + 2, box["y"] + box["height"] * y / 100 - 1)
    assert page.is_visible("#tip")
    assert page.text_content("#tip") == text
    value = Summary(made.rows).estimates(("digits",)).mean.at["cvp", "aurc"]
    assert text.startswith(f"CVP: {value:.2f} ± ")
    assert text.endswith(" plain passes")
    page.mouse.move(box["x"] + 1, box["y"] + 1)
    assert page.is_hidden("#tip")


def test_contents_stay_in_sight(page):
    page.set_viewport_size({"width": 390, "height": 800})
    page.evaluate("document.getElementById('runs').scrollIntoView()")
    assert 0 <= page.locator("#contents").bounding_box()["y"] < 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 1400])
def test_the_page_fits_and_follows_the_scheme(browser, report, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(report.resolve().as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colours = page.evaluate("""["color", "backgroundColor"].map((name) =>
        getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3).map(Number))""")
    text, ground = (sum(colour) for colour in colours)
    assert (text < 150 and ground > 700) if scheme == "light" else (text > 600 and ground < 150)
    turned = page.eval_on_selector("figure img", "image => getComputedStyle(image).filter")
    assert ("invert" in turned) == (scheme == "dark")
    assert page.eval_on_selector_all("figure img", "images => images.every((image) => image.naturalWidth > 0)")
    page.close()
