"""Graphs whose tensors are elsewhere."""

import weakref

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import make, posterior_of
from varprop.graph import runner


@pytest.mark.second
@pytest.mark.parametrize(
    ("name", "rules"), [("bert", "CVP"), pytest.param("llama", "FACTORED", marks=pytest.mark.slow)]
)
def test_everything_is_brought_to_the_device(name, rules):
    """On the meta device, which no op takes together with another."""
    model, batch = make(name)
    net = vp.propagate(model, posterior_of(model), getattr(vp, rules))
    plan, leaves = net.plan((), batch)
    found = runner.offload(plan.module, torch.device("meta"))(*leaves)
    assert [x.is_meta for x in found] == [True, True]
    net.accelerator = torch.device("cpu")
    streamed = net(**batch)
    net.accelerator = None
    torch.testing.assert_close(streamed, net(**batch), rtol=0, atol=0)


@pytest.mark.parametrize("rules", [vp.CVP, vp.FACTORED])
def test_a_layer_at_a_time(monkeypatch, rules):
    layers = [layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.Tanh())]
    model = nn.Sequential(*layers).eval()
    net = vp.propagate(model, vp.Posterior.isotropic(model), rules)
    x = torch.randn(4, 32)
    expected, alive, most = net(x), 0, []

    def copied(tensor, device):
        nonlocal alive

        def gone():
            nonlocal alive
            alive -= tensor.numel()

        found = tensor.to(device, copy=True)
        weakref.finalize(found, gone)
        alive += tensor.numel()
        most.append(alive)
        return found

    monkeypatch.setattr(runner, "fetch", copied)
    net.accelerator = torch.device("cpu")
    torch.testing.assert_close(net(x), expected)
    assert len(most) > 8 * 3
    assert max(most) <= 4 * 32 * 33 + 2 * x.numel()  # mean, variance and what is folded from them, of 8 layers
    assert alive == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_that_has_no_room():
    model = nn.Sequential(*(layer for _ in range(16) for layer in (nn.Linear(1024, 1024), nn.GELU()))).eval()
    net = vp.propagate(model, vp.Posterior.isotropic(model))
    x = torch.randn(4, 1024)
    expected = net(x)
    net.accelerator = torch.device("cuda")
    torch.cuda.reset_peak_memory_stats()
    torch.testing.assert_close(net(x), expected, rtol=1e-3, atol=1e-4)
    assert torch.cuda.max_memory_allocated() < sum(tensor.nbytes for _, tensor in net.mean) / 2
