import json
import math

import pytest

from varprop.evaluation.ablation import ABLATIONS
from varprop.evaluation.rows import METRICS
from varprop.report import paper
from varprop.report.columns import EXTENDED, MAIN

METHODS = ("mean", "temperature", "MC-2", "MC-4", "Streamlining", "CVP")
KEYS = {*METRICS, "cost.sample"}


@pytest.mark.parametrize(
    ("benchmark", "method", "key", "text"),
    [
        ("CIFAR-10 (sub-tiny ViT)", "mean", "accuracy", "79.9 ± 0.1"),
        ("CIFAR-10 (sub-tiny ViT)", "CVP", "aurc", "5.52 ± 0.03"),
        ("CIFAR-10 (sub-tiny ViT)", "CVP", "cost.sample", "2.2"),
        ("CIFAR-100 (ViT-Base)", "MC-4", "ace", "1.82 ± 0.03"),
        ("CIFAR-100 (ViT-Base)", "Streamlining", "c@0.5", "36.7 ± 1.7"),
        ("ImageNet (ResNet-50)", "temperature", "nll", "0.88 ± 0.00"),
        ("ImageNet (ResNet-50)", "MC-2", "phi@100", "3.8 ± 0.4"),
        ("VQAv2 (BEiT-3-base)", "CVP", "brier", "0.40 ± 0.00"),
        ("NLVR2 (BEiT-3-base)", "mean", "ece", "5.92 ± 0.68"),
        ("VQAv2 (ViLT)", "CVP", "c@5", "38.4 ± 0.3"),
        (paper.AVERAGE, "CVP", "aurc", "6.16 ± 0.02"),
        (paper.AVERAGE, "MC-4", "phi@50", "15.7 ± 0.3"),
    ],
)
def test_numbers_are_those_of_the_tables(benchmark, method, key, text):
    assert paper.published(benchmark, method, key).text == text


def test_the_ablation_is_there():
    assert paper.ablation("CVP, output only", "aurc").text == "6.48 ± 0.03"
    assert paper.ablation("Streamlining + per layer", "phi@10").text == "33.9 ± 0.1"
    assert paper.ablation("CVP - activation", "ece").text == "3.52 ± 0.09"
    assert paper.ablations() == tuple(method.title for method in ABLATIONS.values())
    for method in paper.ablations():
        assert all(paper.ablation(method, key) for key in METRICS)


def test_every_cell_of_every_benchmark_is_there():
    assert len(paper.benchmarks()) == 6
    for benchmark in (*paper.benchmarks(), paper.AVERAGE):
        for method in METHODS:
            assert all(paper.published(benchmark, method, key) for key in KEYS), (benchmark, method)
    assert {c.key for c in MAIN} | {c.key for c in EXTENDED} == KEYS | {"cost.plain"}


def test_the_averages_are_the_averages_of_the_benchmarks():
    """As far as rounding allows: what checks the transcription, cell by cell."""
    for method in METHODS:
        for key in METRICS:
            found = [paper.published(b, method, key) for b in paper.benchmarks()]
            average = paper.published(paper.AVERAGE, method, key)
            unit = 10.0**-average.digits
            assert sum(f.mean for f in found) / 6 == pytest.approx(average.mean, abs=1.01 * unit), (method, key)
            assert math.hypot(*(f.sem for f in found)) / 6 == pytest.approx(average.sem, abs=1.01 * unit), (method, key)


def test_what_is_not_in_the_paper_is_nothing():
    assert paper.published("digits", "CVP", "aurc") is None
    assert paper.published("VQAv2 (ViLT)", "MC-64", "aurc") is None
    assert paper.ablation("mean", "aurc") is None
    assert json.dumps(paper.published("VQAv2 (ViLT)", "CVP", "cost.sample").mean) == "2.2"
