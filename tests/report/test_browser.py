"""The page in a real browser: the slider is moved, and what it shows is compared with NumPy."""

import shutil

import numpy as np
import pytest

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
    budget = float(page.input_value("#budget-number"))
    assert float(page.input_value("#budget")) == pytest.approx(budget)
    table = page.evaluate(TABLE)
    rows = [row for row in made.rows if row.seed == seed]
    for row in rows:
        wanted = expected(made.scores(row), budget)
        if wanted is None:
            assert table[row.method][0].startswith("cannot be met")
        else:
            assert close(table[row.method], wanted), (budget, row.method, table[row.method], wanted)
    return table


def test_moving_the_slider_by_keyboard_gives_the_numbers_of_the_definition(page, made):
    page.focus("#budget")
    seen = [check(page, made, 0)]
    for key, times in (
        ("ArrowRight", 1),
        ("ArrowRight", 7),
        ("ArrowLeft", 3),
        ("End", 1),
        ("Home", 1),
        ("ArrowRight", 2),
    ):
        before = page.input_value("#budget")
        for _ in range(times):
            page.keyboard.press(key)
        assert page.input_value("#budget") != before
        seen.append(check(page, made, 0))
    coverages = {table["cvp"][1] for table in seen}
    assert len(coverages) > 3


def test_every_position_of_the_slider(page, made):
    steps = page.evaluate("Math.round(document.getElementById('budget').max / document.getElementById('budget').step)")
    for i in range(0, steps + 1, 17):
        page.eval_on_selector(
            "#budget", "(s, i) => { s.value = i * s.step; s.dispatchEvent(new Event('input', {bubbles: true})); }", i
        )
        check(page, made, 0)


def type_budget(page, value):
    page.eval_on_selector(
        "#budget-number", "(n, v) => { n.value = v; n.dispatchEvent(new Event('input', {bubbles: true})); }", str(value)
    )


def test_a_budget_that_cannot_be_met_says_so(page, made):
    type_budget(page, 0.05)
    assert page.evaluate(TABLE)["stubborn"] == ["cannot be met: the lowest held-out risk is 25.00 %"]
    page.select_option("#gallery-method", "stubborn")
    assert "cannot keep a risk of 0.05 %" in page.text_content("#panel-summary")
    assert page.text_content("#gallery-summary").startswith("200 of the first 200")


@pytest.mark.parametrize("value", ["", "-1", "101"])
def test_a_wrong_budget_is_refused(page, value):
    before = page.evaluate(TABLE)
    type_budget(page, value)
    assert page.text_content("#budget-error") == "Give a percentage from 0 to 100."
    assert page.evaluate(TABLE) == before
    type_budget(page, 2)
    assert page.text_content("#budget-error") == ""


def test_another_seed_shows_its_own_numbers(page, made):
    before = page.evaluate(TABLE)
    page.select_option("#seed", "2")
    table = check(page, made, 2)
    assert table["cvp"] != before["cvp"]
    assert table["stubborn"] == ["no held-out scores were kept"]


@pytest.mark.parametrize(("method", "budget"), [("cvp", 1), ("mean", 3), ("mc-8", 0.5)])
def test_the_gallery_shows_who_is_abstained_on(page, made, method, budget):
    type_budget(page, budget)
    page.select_option("#gallery-method", method)
    row = next(row for row in made.rows if (row.method, row.seed) == (method, 0))
    scores = made.scores(row)
    threshold = threshold_of(scores, budget)
    answered = scores["confidence"][:200] >= (np.inf if threshold is None else threshold)
    page.eval_on_selector("#gallery-more", "button => button.click()")
    assert sorted(page.evaluate(SHOWN)) == sorted(f"test example {i}" for i in np.flatnonzero(~answered))
    page.select_option("#gallery-kind", "wrong")
    wrong = np.flatnonzero(answered & (scores["correctness"][:200] == 0))
    assert sorted(page.evaluate(SHOWN)) == sorted(f"test example {i}" for i in wrong)


def test_thumbnails_name_prediction_and_truth(page, made):
    type_budget(page, 1)
    row = next(row for row in made.rows if (row.method, row.seed) == ("cvp", 0))
    scores, names = made.scores(row), made.examples("digits").names
    first = page.get_attribute("#gallery-list li", "title")
    i = int(first.partition(":")[0].removeprefix("example "))
    assert scores["confidence"][i] == scores["confidence"][:200].min()
    said, is_ = names[scores["label"][i]], names[scores["target"][i]]
    assert f"predicted {said}, true {is_}" in first
    few = page.locator("#gallery-list li").count()
    assert few <= 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 700, 1400])
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
