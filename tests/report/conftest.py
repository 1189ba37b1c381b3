import numpy as np
import pytest

from tests.report.synthetic_results import make
from varprop.evaluation.results import Row
from varprop.report import write_report


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Results of several methods and seeds, one of which can meet no small budget: its surest answers are wrong."""
    results = make(tmp_path_factory.mktemp("results"), seeds=3, held_out=1500)
    kept = results.scores(results.rows[0])
    confidence = np.linspace(0.5, 0.9, 300)
    wrong = {"held_out_confidence": confidence, "held_out_correctness": (confidence < 0.8).astype(float)}
    results.add(Row("digits", "stubborn", 0, 400, {"accuracy": 0.75}), kept | wrong)
    return results


@pytest.fixture(scope="session")
def report(made, tmp_path_factory):
    """The path of its report."""
    return write_report(made.folder, tmp_path_factory.mktemp("report"))
