"""UCI: scores in the units of the data, gains paired by split, and the page that shows them."""

import math
from pathlib import Path

import pytest
import torch

from experiments import uci
from experiments.row_files import read_rows
from varprop import links
from varprop.moments import Moments

pytestmark = pytest.mark.second
DOCS = Path(__file__).parents[2] / "docs"


def test_scores_are_in_the_units_of_the_data():
    zeros = torch.zeros(4, 1)
    found = uci.score(links.Gaussian(1.0)(Moments(zeros, zeros)), torch.tensor([[1.0], [-1.0], [1.0], [3.0]]), 2.0)
    assert found["rmse"] == pytest.approx(2 * math.sqrt(3))
    assert found["covered"] == 0.75
    assert found["log_likelihood"] == pytest.approx(-0.5 * math.log(2 * math.pi) - 1.5 - math.log(2))
    assert found["width"] == pytest.approx(2 * 2 * 1.96, rel=1e-3)


def test_gains_are_paired_by_split():
    rows = [
        {"set": "a", "split": i, "method": m, "log_likelihood": i + g, "rmse": 1.0, "covered": 1.0, "width": 1.0}
        for i in range(3)
        for m, g in (("noise alone", 0.0), ("CVP", 0.5))
    ]
    found = uci.summary(rows).set_index("method").loc["CVP"]
    assert (found["gain"], found["± s.e."], found["splits"]) == (0.5, 0.0, 3)


def test_the_page_shows_the_stored_rows():
    table = uci.summary(read_rows(DOCS / "results" / "ordinary" / "uci.jsonl"))
    assert table.to_markdown(index=False, floatfmt=".3f") in (DOCS / "ordinary.md").read_text()
