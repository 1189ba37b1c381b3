import numpy as np
import pytest
import torch
from torch import nn

import varprop as vp
from experiments.layernorm import Norm, compare, synthetic, traced
from experiments.paper.norms import MOST
from varprop.errors import InputError
from varprop.moments import Moments

pytestmark = pytest.mark.second


def test_the_rule_follows_sampling_and_the_linearised_one_drifts_away():
    found = synthetic(0, features=96, vectors=24, samples=1000)
    assert [each.title for each in found] == ["Σ ~ U(0, 0.5)", "Σ ~ U(0, 2)", "Σ ~ U(0, 5)", "Σ ~ U(0, 10)"]
    linear = [each.rmse["streamlining"] for each in found]
    for each, other in zip(found, linear, strict=True):
        ours = each.rmse["cvp"]
        assert ours["mean"] < 0.05
        assert ours["var"] < 0.1
        assert other["mean"] > 3 * ours["mean"]
        assert other["var"] > 3 * ours["var"]
        assert each.activations == 96 * 24
        assert each.points["var"].shape == (MOST, 3)
    assert [e["mean"] for e in linear] == sorted(e["mean"] for e in linear)
    assert [e["var"] for e in linear] == sorted(e["var"] for e in linear)


def test_a_seed_gives_the_same_numbers():
    first, second, other = (synthetic(s, widths=(1.0,), features=16, vectors=2, samples=50)[0] for s in (0, 0, 1))
    assert first.rmse == second.rmse != other.rmse
    np.testing.assert_array_equal(first.points["mean"], second.points["mean"])


def test_errors_by_hand():
    """Without variance all three are LayerNorm itself; with little, sampling noise is all there is."""
    x = torch.randn(3, 8, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    still = compare("still", [Norm(Moments(x, torch.zeros_like(x)), (8,), None, None, 1e-5)], 3, generator)
    assert all(abs(error) < 1e-9 for rmse in still.rmse.values() for error in rmse.values())
    np.testing.assert_allclose(still.points["mean"][:, 0], still.points["mean"][:, 1], atol=1e-6)
    with pytest.raises(InputError, match="at least 2 samples"):
        compare("one", [], 1, generator)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 32), nn.LayerNorm(32)
        self.second, self.last = nn.Linear(32, 32), nn.LayerNorm(32, elementwise_affine=False)

    def forward(self, x):
        return self.last(torch.relu(self.second(self.norm(self.first(x)))))


def network(var):
    torch.manual_seed(0)
    model = Block().eval()
    mean = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return vp.propagate(model, vp.Posterior.from_tensors(mean, {n: torch.full_like(w, var) for n, w in mean.items()}))


def test_norms_inside_a_network():
    net, x = network(0.05), torch.randn(40, 6)
    found = traced(net, x, samples=400)
    assert found.title == "Block"
    assert found.activations == 2 * 40 * 32
    assert found.rmse["cvp"]["mean"] < found.rmse["streamlining"]["mean"]
    assert found.rmse["cvp"]["var"] < found.rmse["streamlining"]["var"]
    assert traced(net, x, samples=400).rmse == found.rmse
    # The scale in front of a norm is part of what the norm gets.
    with torch.no_grad():
        for name, log_alpha in net.scale:
            if "norm" in name or "last" in name:
                log_alpha.fill_(2.0)
    assert traced(net, x, samples=400).rmse["streamlining"]["var"] > 2 * found.rmse["streamlining"]["var"]


def test_a_network_without_norms_is_refused():
    model = nn.Linear(2, 2).eval()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    posterior = vp.Posterior.from_tensors(weights, {name: w * 0 + 0.1 for name, w in weights.items()})
    with pytest.raises(InputError, match="no LayerNorm of this network gets a random input"):
        traced(vp.propagate(model, posterior), torch.ones(3, 2))
