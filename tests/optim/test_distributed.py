"""Two gloo processes: DistributedDataParallel with each rank its own noise, and parameters sharded by FSDP2."""

import pytest
import torch

from tests.optim import replicas
from tests.optim.reference import Reference
from tests.ranks import needs_gloo, results
from varprop.posterior import Posterior

pytestmark = [needs_gloo, pytest.mark.second]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return results(tmp_path_factory.mktemp("ranks"), replicas.ALL)


@pytest.mark.parametrize("how", ["ddp_blocks", "ddp_plain_loop_with_accumulation"])
def test_ddp_curvature(ranks, how):
    first, second = (found[how] for found in ranks)
    assert first["curvature"] == pytest.approx(1.0, abs=0.08)
    assert torch.equal(first["hess"], second["hess"])
    assert torch.equal(first["weights"], second["weights"])


def test_ddp_equals_the_published_algorithm_with_a_draw_per_rank(ranks):
    """Gradients were scaled by 8 and clipped to a norm after the draws: both enter ĝ and ĥ."""
    settings = dict(replicas.SETTLING) | {"clip_radius": 0.3}
    first, second = (found["ddp_draws"] for found in ranks)
    assert not torch.equal(first["draws"][0][1], second["draws"][0][1]), "each rank has noise of its own"
    reference = Reference(torch.ones(replicas.SIZE), **settings)
    for step, (mean, hess, norm) in enumerate(first["after"]):
        factor = 8 * min(1.0, 40.0 / (float(norm) + 1e-6))
        for found in (first, second):
            for number, sample, gradient in found["draws"]:
                if number == step:
                    reference.take(factor * gradient, sample.double() - reference.mean)
        reference.step()
        assert torch.allclose(mean.double(), reference.mean, rtol=1e-5, atol=1e-6)
        assert torch.allclose(hess.double(), reference.h, rtol=1e-3)
        reference.mean = mean.double()  # rounding of the sample minus the mean is not what is tested
        assert torch.equal(hess, second["after"][step][1])


def test_ddp_resumes_from_the_checkpoint_of_rank_zero(ranks):
    assert all(found["ddp_resumed"]["equal"] for found in ranks)


def test_ddp_wrong_ways_are_refused(ranks):
    for found in (found["ddp_refusals"] for found in ranks):
        for case in ("unattached block", "unattached loop"):
            assert "there are 2 processes" in found[case]
            assert "optimizer.attach(model)" in found[case]
        assert "takes the DistributedDataParallel model, not Bowl" in found["plain model"]
        assert "not in this model" in found["foreign"]
        assert "averaged over ranks more than once" in found["averaged twice"]
        assert "model.no_sync()" in found["averaged twice"]
        assert "was not averaged over ranks" in found["never averaged"]
        assert found["after a skipped step"] == found["alone"] == ""
    assert torch.equal(*(found["ddp_refusals"]["means"] for found in ranks))


def test_fsdp(ranks):
    first, second = (found["fsdp"] for found in ranks)
    assert first["curvature"] == pytest.approx(1.0, abs=0.08)
    assert torch.equal(first["weights"], second["weights"])
    assert torch.equal(first["sample"], second["sample"])
    halves = (first["sample"][: replicas.SIZE] - 1).chunk(2)
    assert not torch.allclose(*halves), "shards have noise of their own"
    assert first["resumed"]


def test_fsdp_posterior_from_the_full_state_dict(ranks):
    saved = ranks[0]["fsdp"]["saved"]
    posterior = Posterior.from_ivon(replicas.Bowl(), saved)
    hess = saved["state"]["first"]["hess"]
    assert torch.allclose(posterior["first"].var, 1 / (1000.0 * (hess + 1e-3)))


def test_copies_of_a_shard_share_their_noise(ranks):
    first, second = (found["hsdp"] for found in ranks)
    assert torch.equal(first["weights"], second["weights"])
    assert torch.equal(first["hess"], second["hess"])
