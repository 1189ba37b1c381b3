"""Calls that recur as CUDA graphs, with the same numbers and no stale ones; graphs whose tensors are elsewhere."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import varprop as vp
from tests.kernels.places import GPU
from tests.models import make, posterior_of
from varprop.graph import runner


def network(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 3)).eval().to(device)
    return vp.propagate(model, vp.Posterior.isotropic(model, std=0.1))


def recordings(net):
    return sum(len(plan.run._recordings) for plan in net._plans)


def test_without_a_gpu_calls_are_plain():
    net, x = network("cpu"), torch.randn(4, 6)
    results = [net(x) for _ in range(runner.WARMUP_CALLS + 2)]
    assert all(torch.equal(result.var, results[0].var) for result in results)
    assert recordings(net) == 0


@GPU
def test_a_recording_gives_the_same_numbers(monkeypatch):
    net, plain = network("cuda"), network("cuda")
    for _ in range(runner.WARMUP_CALLS + 3):
        x = torch.randn(4, 6, device="cuda")
        result = net(x)
        monkeypatch.setenv(runner.ENV_VARIABLE, "0")
        expected = plain(x)
        monkeypatch.delenv(runner.ENV_VARIABLE)
        for got, wanted in zip(result, expected, strict=True):
            assert torch.equal(got, wanted)
    assert recordings(net) == 1
    assert recordings(plain) == 0


@GPU
def test_results_are_the_callers_own():
    net, x, y = network("cuda"), torch.randn(4, 6, device="cuda"), torch.randn(4, 6, device="cuda")
    for _ in range(runner.WARMUP_CALLS):
        net(x)
    first = net(x)
    kept = first.mean.clone()
    net(y)
    assert recordings(net) == 1
    assert torch.equal(first.mean, kept)


@GPU
def test_changed_and_replaced_tensors_are_seen():
    net, x = network("cuda"), torch.randn(4, 6, device="cuda")
    for _ in range(runner.WARMUP_CALLS + 1):
        before = net(x)
    with torch.no_grad():
        net.scale["1.log_alpha"].add_(1.0)
    assert recordings(net) == 1
    inside = net(x)
    assert (inside.var > before.var).all()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    state["mean.2.bias"] += 1
    net.load_state_dict(state)
    torch.testing.assert_close(net(x).mean, inside.mean + 1)
    with torch.no_grad():
        owner = net.mean.get_submodule("2")
        owner._buffers["bias"] = owner._buffers["bias"] + 1
    for _ in range(runner.WARMUP_CALLS + 2):
        torch.testing.assert_close(net(x).mean, inside.mean + 2)


@GPU
def test_what_autograd_needs_is_not_recorded():
    net, x = network("cuda"), torch.randn(4, 6, device="cuda", requires_grad=True)
    for _ in range(runner.WARMUP_CALLS + 2):
        net(x).var.sum().backward()
    assert recordings(net) == 0
    assert x.grad.abs().sum() > 0


@GPU
def test_only_so_many_sizes_are_kept():
    net = network("cuda")
    for batch in range(2, runner.MAX_RECORDINGS + 6):
        for _ in range(runner.WARMUP_CALLS + 1):
            net(torch.randn(batch, 6, device="cuda"))
    assert recordings(net) == runner.MAX_RECORDINGS


@GPU
def test_an_op_that_cannot_be_recorded_is_run(monkeypatch, caplog):
    net, x = network("cuda"), torch.randn(4, 6, device="cuda")
    first = net(x)
    function = net._plans[0].run.function

    def waits(*tensors):
        torch.cuda.synchronize()
        return function(*tensors)

    net._plans[0].run.function = waits
    stream = torch.cuda.current_stream()
    for _ in range(runner.WARMUP_CALLS + 2):
        torch.testing.assert_close(net(x).var, first.var)
    assert recordings(net) == 0
    assert "CUDA graph" in caplog.text
    assert torch.cuda.current_stream() == stream
    assert torch.rand(3, device="cuda").isfinite().all()


@GPU
def test_threads_share_a_network():
    net = network("cuda")
    inputs = [torch.randn(4, 6, device="cuda") for _ in range(30)]
    expected = [net(x).var.clone() for x in inputs]
    with ThreadPoolExecutor(3) as pool:
        for got, wanted in zip(pool.map(lambda x: net(x).var, inputs), expected, strict=True):
            torch.testing.assert_close(got, wanted)


def test_a_graph_that_reads_values_is_known():
    def count(x):
        return (x.nonzero(),)

    traced = make_fx(count, tracing_mode="fake")(torch.randn(4))
    assert runner._reads_values(traced)
    assert not runner._reads_values(make_fx(torch.relu)(torch.randn(4)))


# --- tensors elsewhere -----------------------------------------------------------------------------------


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


@GPU
def test_on_a_gpu_that_has_no_room():
    model = nn.Sequential(*(layer for _ in range(16) for layer in (nn.Linear(1024, 1024), nn.GELU()))).eval()
    net = vp.propagate(model, vp.Posterior.isotropic(model))
    x = torch.randn(4, 1024)
    expected = net(x)
    net.accelerator = torch.device("cuda")
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")  # cuBLAS takes 32 MiB for itself and keeps it
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.testing.assert_close(net(x), expected, rtol=1e-3, atol=1e-4)
    assert torch.cuda.max_memory_allocated() - before < sum(tensor.nbytes for _, tensor in net.mean) / 2
