"""Two gloo processes give what one process gives on all examples."""

import pytest
import torch

from tests.metrics import replicas
from tests.ranks import needs_gloo, results
from varprop import metrics

pytestmark = [needs_gloo, pytest.mark.second]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results(tmp_path_factory.mktemp("metrics"), [replicas.shared, replicas.one_rank_idle])


def test_both_ranks_get_the_metric_of_all_examples(found):
    first, second = replicas.shard(0), replicas.shard(1)
    confidence, correctness, probs, target = (torch.cat(pair) for pair in zip(first, second, strict=True))
    more = [torch.cat([whole, a[:5], b[:5]]) for whole, a, b in zip((confidence, correctness), first, second)]  # noqa: B905
    expected = {
        "AURC": metrics.aurc(confidence, correctness),
        "CoverageAtRisk": metrics.coverage_at_risk(confidence, correctness, 0.5),
        "ECE": metrics.ece(confidence, correctness),
        "ACE": metrics.ace(confidence, correctness, 4),
        "Brier": metrics.brier(probs, target),
        "AURC after five more": metrics.aurc(*more),
    }
    for rank in range(2):
        values = {name: float(value) for name, value in found[rank]["shared"].items()}
        assert values == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-12)


def test_a_rank_without_data(found):
    confidence, correctness, probs, target = replicas.shard(0)
    for rank in range(2):
        values = found[rank]["one_rank_idle"]
        assert float(values["AURC"]) == pytest.approx(float(metrics.aurc(confidence, correctness)), rel=1e-12)
        assert float(values["Brier"]) == pytest.approx(float(metrics.brier(probs, target)), rel=1e-12)
