"""CUDA graphs of calls that recur: the same numbers, and no stale ones."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import varprop as vp
from tests.kernels.test_tiles import GPU
from varprop.graph import cuda_graphs


def network(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.GELU(), torch.nn.Linear(32, 3)).eval().to(device)
    return vp.propagate(model, vp.Posterior.isotropic(model, std=0.1))


def recordings(net):
    return sum(len(plan.run.replay._recordings) for plan in net._plans)


def test_without_a_gpu_calls_are_plain():
    net, x = network("cpu"), torch.randn(4, 6)
    results = [net(x) for _ in range(cuda_graphs.WARMUP_CALLS + 2)]
    assert all(torch.equal(result.var, results[0].var) for result in results)
    assert recordings(net) == 0


@GPU
def test_a_recording_gives_the_same_numbers(monkeypatch):
    net, plain = network("cuda"), network("cuda")
    for _ in range(cuda_graphs.WARMUP_CALLS + 3):
        x = torch.randn(4, 6, device="cuda")
        result = net(x)
        monkeypatch.setenv(cuda_graphs.ENV_VARIABLE, "0")
        expected = plain(x)
        monkeypatch.delenv(cuda_graphs.ENV_VARIABLE)
        for got, wanted in zip(result, expected, strict=True):
            assert torch.equal(got, wanted)
    assert recordings(net) == 1
    assert recordings(plain) == 0


@GPU
def test_results_are_the_callers_own():
    net, x, y = network("cuda"), torch.randn(4, 6, device="cuda"), torch.randn(4, 6, device="cuda")
    for _ in range(cuda_graphs.WARMUP_CALLS):
        net(x)
    first = net(x)
    kept = first.mean.clone()
    net(y)
    assert recordings(net) == 1
    assert torch.equal(first.mean, kept)


@GPU
def test_changed_and_replaced_tensors_are_seen():
    net, x = network("cuda"), torch.randn(4, 6, device="cuda")
    for _ in range(cuda_graphs.WARMUP_CALLS + 1):
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
    for _ in range(cuda_graphs.WARMUP_CALLS + 2):
        torch.testing.assert_close(net(x).mean, inside.mean + 2)


@GPU
def test_what_autograd_needs_is_not_recorded():
    net, x = network("cuda"), torch.randn(4, 6, device="cuda", requires_grad=True)
    for _ in range(cuda_graphs.WARMUP_CALLS + 2):
        net(x).var.sum().backward()
    assert recordings(net) == 0
    assert x.grad.abs().sum() > 0


@GPU
def test_only_so_many_sizes_are_kept():
    net = network("cuda")
    for batch in range(2, cuda_graphs.MAX_RECORDINGS + 6):
        for _ in range(cuda_graphs.WARMUP_CALLS + 1):
            net(torch.randn(batch, 6, device="cuda"))
    assert recordings(net) == cuda_graphs.MAX_RECORDINGS


@GPU
def test_an_op_that_cannot_be_recorded_is_run(monkeypatch, caplog):
    net, x = network("cuda"), torch.randn(4, 6, device="cuda")
    first = net(x)
    function = net._plans[0].run.replay.function

    def waits(*tensors):
        torch.cuda.synchronize()
        return function(*tensors)

    net._plans[0].run.replay.function = waits
    stream = torch.cuda.current_stream()
    for _ in range(cuda_graphs.WARMUP_CALLS + 2):
        torch.testing.assert_close(net(x).var, first.var)
    assert recordings(net) == 0
    assert "CUDA graph" in caplog.text
    assert torch.cuda.current_stream() == stream
    assert torch.rand(3, device="cuda").isfinite().all()


@GPU
@pytest.mark.parametrize("threads", [3])
def test_threads_share_a_network(threads):
    from concurrent.futures import ThreadPoolExecutor

    net = network("cuda")
    inputs = [torch.randn(4, 6, device="cuda") for _ in range(30)]
    expected = [net(x).var.clone() for x in inputs]
    with ThreadPoolExecutor(threads) as pool:
        for got, wanted in zip(pool.map(lambda x: net(x).var, inputs), expected, strict=True):
            torch.testing.assert_close(got, wanted)


def test_a_graph_that_reads_values_is_known():
    def count(x):
        return (x.nonzero(),)

    traced = make_fx(count, tracing_mode="fake")(torch.randn(4))
    assert cuda_graphs._reads_values(traced)
    assert not cuda_graphs._reads_values(make_fx(torch.relu)(torch.randn(4)))
