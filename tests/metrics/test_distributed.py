"""Two gloo processes give what one process gives on all examples."""

import pytest
import torch
import torch.distributed
import torch.multiprocessing

from tests.metrics import replicas
from varprop import metrics

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    torch.multiprocessing.spawn(replicas.main, (2, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


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
        values = found[rank]["one rank idle"]
        assert float(values["AURC"]) == pytest.approx(float(metrics.aurc(confidence, correctness)), rel=1e-12)
        assert float(values["Brier"]) == pytest.approx(float(metrics.brier(probs, target)), rel=1e-12)
