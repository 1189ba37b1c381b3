import json
import math

import pytest

from experiments.paper import published as paper
from varprop.evaluation.methods import ABLATIONS
from varprop.evaluation.results import ONE_LABEL

pytestmark = pytest.mark.second

METHODS = ("mean", "temperature", "mc-2", "mc-4", "streamlining", "cvp")
KEYS = {*ONE_LABEL, "cost.sample"}


@pytest.mark.parametrize(
    ("benchmark", "method", "key", "text"),
    [
        ("CIFAR-10 (sub-tiny ViT)", "mean", "accuracy", "79.9 ± 0.1"),
        ("CIFAR-10 (sub-tiny ViT)", "cvp", "aurc", "5.52 ± 0.03"),
        ("CIFAR-10 (sub-tiny ViT)", "cvp", "cost.sample", "2.2"),
        ("CIFAR-100 (ViT-Base)", "mc-4", "ace", "1.82 ± 0.03"),
        ("CIFAR-100 (ViT-Base)", "streamlining", "c@0.5", "36.7 ± 1.7"),
        ("ImageNet (ResNet-50)", "temperature", "nll", "0.88 ± 0.00"),
        ("ImageNet (ResNet-50)", "mc-2", "phi@100", "3.8 ± 0.4"),
        ("VQAv2 (BEiT-3-base)", "cvp", "brier", "0.40 ± 0.00"),
        ("NLVR2 (BEiT-3-base)", "mean", "ece", "5.92 ± 0.68"),
        ("VQAv2 (ViLT)", "cvp", "c@5", "38.4 ± 0.3"),
        (paper.AVERAGE, "cvp", "aurc", "6.16 ± 0.02"),
        (paper.AVERAGE, "mc-4", "phi@50", "15.7 ± 0.3"),
    ],
)
def test_numbers_are_those_of_the_tables(benchmark, method, key, text):
    assert paper.published(benchmark, method, key).text == text


def test_the_ablation_is_there():
    assert paper.ablation("cvp-output-only", "aurc").text == "6.48 ± 0.03"
    assert paper.ablation("streamlining-per-layer", "phi@10").text == "33.9 ± 0.1"
    assert paper.ablation("cvp-minus-activation", "ece").text == "3.52 ± 0.09"
    for method in ABLATIONS:
        assert all(paper.ablation(method, key) for key in ONE_LABEL)


def test_every_cell_of_every_benchmark_is_there():
    assert len(paper.benchmarks()) == 6
    for benchmark in (*paper.benchmarks(), paper.AVERAGE):
        for method in METHODS:
            assert all(paper.published(benchmark, method, key) for key in KEYS), (benchmark, method)


def test_the_averages_are_the_averages_of_the_benchmarks():
    """As far as rounding allows: what checks the transcription, cell by cell."""
    for method in METHODS:
        for key in ONE_LABEL:
            found = [paper.published(b, method, key) for b in paper.benchmarks()]
            average = paper.published(paper.AVERAGE, method, key)
            unit = 10.0**-average.digits
            assert sum(f.mean for f in found) / 6 == pytest.approx(average.mean, abs=1.01 * unit), (method, key)
            assert math.hypot(*(f.sem for f in found)) / 6 == pytest.approx(average.sem, abs=1.01 * unit), (method, key)


def test_what_is_not_in_the_paper_is_nothing():
    assert paper.published("digits", "cvp", "aurc") is None
    assert paper.published("VQAv2 (ViLT)", "mc-64", "aurc") is None
    assert paper.ablation("mean", "aurc") is None
    assert json.dumps(paper.published("VQAv2 (ViLT)", "cvp", "cost.sample").mean) == "2.2"
