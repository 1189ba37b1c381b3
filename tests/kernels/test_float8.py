"""Variances by 8-bit products: how far off, in what layers, and the kernel where there is a GPU."""

import math

import pytest
import torch

import varprop as vp
from tests.kernels.places import DEVICE, GPU, INTERPRETED, with_triton
from tests.kernels.test_networks import Encoder
from tests.kernels.test_triton_kernels import CHECKS, norm_inputs
from varprop.graph import lift
from varprop.kernels import float8, norm_op
from varprop.rules import linear

PACK = {"random": float8.pack, "uniform": float8.pack_uniform}
kinds = pytest.mark.parametrize("kind", PACK)


def layer(inputs, outputs, tokens=(3, 5), device="cpu", spike=1.0, kind="random"):
    """Moments of features of which one is ``spike`` times as large, and of weights that make up for it; the variance of
    weights may be one number.
    """
    torch.manual_seed(0)
    large = torch.ones(inputs, device=device)
    large[inputs // 3] = spike
    mean, var = torch.randn(*tokens, inputs, device=device) * large, 0.1 * torch.rand(*tokens, inputs, device=device)
    weight = torch.randn(outputs, inputs, device=device) / large
    noise = 1e-3 * torch.rand(outputs, inputs, device=device) / large.square()
    if kind == "uniform":
        noise = torch.full_like(noise, 1e-3 / spike)
    return mean, var * large.square(), weight.square() + noise, noise, torch.rand(outputs, device=device)


def close(result, exact, inputs):
    """As independent errors of 5 % in each term leave it, and the rounding of the result."""
    off = (result.double() - exact) / exact
    found = abs(float(off.mean())), float(off.square().mean().sqrt()), float(off.abs().max())
    expected = math.hypot(0.13 / inputs**0.5, 2e-3)  # a sum is mostly of its largest terms, one in six
    # Triton's interpreter loses carries where it rounds to 8 bits, in 4 % of the entries, which are halved.
    bias, rms, most = (3.5e-2, 3.5e-2, 1e-1) if INTERPRETED else (2.5e-3, expected, 5 * expected)
    assert found[0] < bias and found[1] < rms and found[2] < most, found  # noqa: PT018


WIDTHS = {"random": 1024, "uniform": 512 + float8.SHARES}  # of what 512 features are packed to


def posterior_of(model, kind, std=0.05):
    if kind == "uniform":
        return vp.Posterior.isotropic(model, std=std)
    mean = dict(model.named_parameters())
    return vp.Posterior.from_tensors(mean, {name: std**2 * (0.5 + torch.rand_like(x)) for name, x in mean.items()})


def require_eight_bits():
    if not INTERPRETED and not float8.has_eight_bits(torch.device("cuda", 0)):
        pytest.skip("multiplies no 8-bit numbers")


@kinds
def test_it_is_registered_in_full(kind):
    mean, var, second, noise, bias = (x.double() for x in layer(18, 4, (1, 2), kind=kind))
    packed = PACK[kind](second, noise)
    for added in (bias.requires_grad_(), None):
        arguments = (mean.requires_grad_(), var.requires_grad_(), *packed, added)
        assert torch.autograd.gradcheck(torch.ops.varprop.spread, arguments)
        # Not its schema: torch compares inputs before and after by a product, which 8 bits do not have on a CPU.
        torch.library.opcheck(torch.ops.varprop.spread.default, arguments, test_utils=CHECKS[1:])


@kinds
@pytest.mark.parametrize("spike", [1.0, 1e3])
def test_packed_weights_give_the_variance(spike, kind):
    mean, var, second, noise, bias = (x.double() for x in layer(512, 64, spike=spike, kind=kind))
    exact = linear.spread(mean, var, second, noise, bias)
    close(float8.reference(mean, var, *PACK[kind](second, noise), bias), exact, 512)


@pytest.mark.parametrize("wrong", [1.0, 0.99, 0.85, math.nan])
def test_a_device_that_multiplies_wrongly_is_found_out(monkeypatch, caplog, wrong):
    """1 % is what fast accumulation loses in a layer: of twelve, a sixth."""
    monkeypatch.setattr(float8, "_launch", lambda *arguments: wrong * float8.reference(*arguments))
    assert float8._is_right(torch.device("cpu")) == (wrong == 1)
    assert ("wrong on cpu" in caplog.text) == (wrong != 1)


def test_rounding_alone_is_not_taken_for_an_error(monkeypatch):
    def rounded(mean, var, weights, rows, columns, _):
        """What the kernel does, in PyTorch; the sum of a uniform variance is not rounded."""
        size = mean.shape[1]
        squares, shares = mean.float().square(), float8.shares_of(weights, size)
        rest = (squares.sum(1, keepdim=True) / shares).expand(-1, shares) if shares else squares
        both = torch.cat([var.float(), rest], 1) * columns
        scale = both.amax(1, keepdim=True) / float8.LARGEST
        part = float8._dithered(both / scale).to(float8.EIGHT).float()
        numbers = torch.cat([part[:, :size], (both / scale)[:, size:]], 1) if shares else part
        return (numbers @ weights.float().T * scale * rows.T).to(mean.dtype)

    monkeypatch.setattr(float8, "_launch", rounded)
    assert float8._is_right(torch.device("cpu"))


def test_a_device_that_cannot_multiply_is_found_out(monkeypatch, caplog):
    monkeypatch.setattr(float8, "_launch", lambda *_: torch.empty(0).item())
    assert not float8._is_right(torch.device("cpu"))
    assert "a product of 8-bit numbers has no Triton kernel here" in caplog.text


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e4])
def test_a_variance_of_all_weights_is_not_rounded(size):
    """What it is multiplied by, of outputs as different as these, is a power of two."""
    mean, _, second, _, _ = layer(512, 64)
    second, noise = second * torch.logspace(-4, 4, 64)[:, None] + size, torch.full_like(second, size)
    weights, rows_of, columns = float8.pack_uniform(second, noise)
    assert weights.shape == (64, 512 + float8.SHARES)
    assert (weights[:, 512:].float() * rows_of == 1).all()
    assert (columns[512:] == noise[0, 0]).all()
    assert (weights.float() <= float8.LARGEST).all()
    result = float8.reference(mean, 0 * mean, weights, rows_of, columns, None)
    torch.testing.assert_close(result, (size * mean.square().sum(-1, keepdim=True)).expand_as(result))


@pytest.mark.parametrize("value", [1.03, 0.97, 17.0])
def test_weights_that_are_alike_are_not_all_off_to_the_same_side(value):
    """A step of 8 bits is 6 to 12 %."""
    noise = torch.ones(64, 512)
    noise[::2] = value
    weights, rows_of, columns = float8.pack(noise, noise)
    found = (weights.double() * rows_of * columns)[:, 512:].mean(1)
    torch.testing.assert_close(found, noise[:, 0].double(), rtol=1.5e-3, atol=0)


@kinds
def test_weights_of_zero_stay_zero(kind):
    mean, var, second, noise, _ = layer(32, 16)
    noise *= kind == "random"
    second[:, 3] = noise[:, 3] = second[5] = noise[5] = 0
    result = float8.reference(mean, var, *PACK[kind](second, noise), None)
    assert result.isfinite().all()
    assert (result[..., 5] == 0).all()
    assert (result[..., 4] > 0).all()


@kinds
def test_wide_layers_of_bfloat16_use_it(monkeypatch, kind):
    for module in (lift, float8):
        monkeypatch.setattr(module, "runs_on", lambda _: True)
    monkeypatch.setattr(float8, "has_eight_bits", lambda _: True)
    torch.manual_seed(0)
    wide = torch.nn.Sequential(
        torch.nn.Linear(40, 512), torch.nn.ReLU(), torch.nn.Linear(512, 48), torch.nn.Linear(48, 7)
    )
    model, x = wide.bfloat16().eval(), torch.randn(9, 40, dtype=torch.bfloat16)
    posterior = posterior_of(model, kind)
    net = vp.propagate(model, posterior)
    result = net(x)
    (call,) = net.plan((x,), {})[0].module.graph.find_nodes(op="call_function", target=float8.spread)
    # The first layer's input is certain, the last is narrow.
    assert net.get_buffer(call.args[2].target).shape == (48, WIDTHS[kind])
    monkeypatch.setattr(float8, "has_eight_bits", lambda _: False)
    written = vp.propagate(model, posterior)(x)
    assert torch.equal(result.mean, written.mean)
    torch.testing.assert_close(result.var, written.var, rtol=3e-2, atol=0)


@pytest.mark.parametrize("kinds", [("uniform", "random"), ("random", "uniform"), ("uniform", "uniform")])
def test_weights_that_are_loaded_are_packed_anew(monkeypatch, kinds):
    for module in (lift, float8):
        monkeypatch.setattr(module, "runs_on", lambda _: True)
    monkeypatch.setattr(float8, "has_eight_bits", lambda _: True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 512), torch.nn.ReLU(), torch.nn.Linear(512, 48)).bfloat16().eval()
    x = torch.randn(9, 40, dtype=torch.bfloat16)
    posteriors = [posterior_of(model, kind, std) for kind, std in zip(kinds, (0.05, 0.1), strict=True)]
    net, expected = (vp.propagate(model, posterior) for posterior in posteriors)
    before, after = net(x), expected(x)
    net.load_state_dict(expected.state_dict())
    result = net(x)
    torch.testing.assert_close(tuple(result), tuple(after), rtol=2e-2, atol=0)
    assert (before.var < 0.5 * result.var).all()


def behind_a_norm(size, outputs, kept, kind, device="cpu", dtype=torch.float64):
    """The arguments of a norm and of the layer behind it."""
    tensors = [x.to(dtype) for x in norm_inputs(size, device)]
    _, _, second, noise, added = layer(size, outputs, device=device, kind=kind)
    return (*tensors, 1e-5, True, True, None, None, *PACK[kind](second, noise), added.to(dtype), kept)


@kinds
@pytest.mark.parametrize("kept", [True, False])
def test_a_norm_with_a_layer_is_registered_in_full(kept, kind):
    *arguments, weights, rows_of, columns, added, _ = behind_a_norm(18, 4, kept, kind)
    given = [x.requires_grad_() if isinstance(x, torch.Tensor) else x for x in arguments]
    arguments = (*given, weights, rows_of.double(), columns.double(), added.requires_grad_(), kept)
    assert torch.autograd.gradcheck(torch.ops.varprop.norm, arguments, fast_mode=True)
    torch.library.opcheck(torch.ops.varprop.norm.default, arguments, test_utils=CHECKS[1:])


@kinds
@pytest.mark.parametrize("after", [False, True])
def test_a_norm_writes_what_the_layer_behind_it_takes(monkeypatch, after, kind):
    """Its own variance too, if it is added to what comes out, as after a block of a transformer."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = torch.nn.Linear(40, 512), torch.nn.LayerNorm(512)
            self.second, self.third = torch.nn.Linear(512, 512), torch.nn.Linear(512, 16)

        def forward(self, x):
            y = self.norm(self.first(x))
            z = self.second(y).relu()
            return self.third(z + y if after else z)

    found = {}
    torch.manual_seed(0)
    model, x = Block().bfloat16().eval(), torch.randn(9, 40, dtype=torch.bfloat16)
    posterior = posterior_of(model, kind)
    for module in (lift, float8):
        monkeypatch.setattr(module, "runs_on", lambda _: True)
    for answer in (False, True):
        monkeypatch.setattr(float8, "has_eight_bits", lambda _, answer=answer: answer)
        net = vp.propagate(model, posterior)
        found[answer] = net(x)
    norm = next(node for node in net.plan((x,), {})[0].module.graph.nodes if node.target is norm_op.normalize)
    assert net.get_buffer(norm.args[12].target).shape == (512, WIDTHS[kind])
    assert norm.args[-1] is after
    torch.testing.assert_close(found[True].mean, found[False].mean, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found[True].var, found[False].var, rtol=3e-2, atol=0)


@with_triton
@kinds
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("size", [768, 528, 3072])
def test_a_norm_with_a_layer_by_triton(size, kept, kind):
    require_eight_bits()
    arguments = behind_a_norm(size, 64, kept, kind, DEVICE, torch.bfloat16)
    alone = norm_op._launch(*arguments[:12], None, None, None, None, True)
    results = norm_op._launch(*arguments)
    assert torch.equal(results.mean, alone.mean)
    assert torch.equal(results.var, alone.var if kept else alone.var[:0, 0, 0])
    apart = float8._launch(alone.mean, alone.var, *arguments[12:16])
    assert torch.equal(results.spread, apart)


@with_triton
@kinds
@pytest.mark.parametrize("spike", [1.0, 1e3])
@pytest.mark.parametrize(("inputs", "outputs"), [(768, 3072), (3072, 768), (528, 16)])
def test_by_triton(inputs, outputs, spike, kind):
    require_eight_bits()
    rounded = [x.bfloat16() for x in layer(inputs, outputs, (7, 31), DEVICE, spike, kind)]
    exact = linear.spread(*(x.double() for x in rounded))
    mean, var, second, noise, bias = rounded
    packed = PACK[kind](second, noise)
    for tensors in ((mean, var), (mean.mT.contiguous().mT, var)):
        close(float8._launch(*tensors, *packed, bias), exact, inputs)
    close(float8._launch(mean[:1, :1], var[:1, :1], *packed, bias), exact[:1, :1], inputs)
    zero = float8._launch(0 * mean, 0 * var, *packed, None)
    assert (zero == 0).all()
    alone = float8._launch(mean, var, *packed, None)
    close(alone, exact - bias.double(), inputs)


def numbers_of(mean, var, columns):
    """What the kernel makes of moments with uniform weights, by torch."""
    size, x, copies = mean.shape[-1], mean.float().flatten(0, -2), float8.SHARES // 4
    v, left = var.float().flatten(0, -2) * columns[:size], x.square().sum(-1, keepdim=True) * columns[size]
    scales = (torch.maximum(v.amax(-1, keepdim=True), left / copies) / float8.LARGEST).clamp_min(1e-30)
    v, left = v * (1 / scales), left * (1 / scales)
    part = ((torch.arange(size, device=x.device, dtype=torch.int32) * 648055) & 0xFFFFF) - 0x80000
    normal = v.clamp_min(float8.NORMAL)
    parts = [(v + ((normal.view(torch.int32) + part).view(torch.float32) - normal)).clamp(0, float8.LARGEST)]
    for _ in range(4):
        digit = ((left / copies).view(torch.int32) & -0x100000).view(torch.float32)
        parts.append(digit.expand(-1, copies))
        left = left - copies * digit
    return float8.Numbers(torch.cat(parts, -1).to(float8.EIGHT), scales)


@pytest.mark.parametrize("size", [1e-8, 1e-4, 1e-2, 1.0, 1e2])
@pytest.mark.parametrize("inputs", [512, 528, 768, 3072])
def test_rounded_numbers_of_uniform_weights_give_the_variance(inputs, size):
    """Wherever the variance comes from: inputs, weights, or both."""
    mean, var, second, _, _ = (x.bfloat16() for x in layer(inputs, 48))
    noise = torch.full_like(second, size)
    second = second + noise
    weights, rows_of, columns = float8.pack_uniform(second, noise)
    for factor in (0, 1e-7, 1e-3, 1, 1e3):
        scaled = factor * var
        both, scales = numbers_of(mean, scaled, columns)
        found = both.double() @ weights.double().t() * scales * rows_of.t()
        exact = linear.spread(*(x.double() for x in (mean, scaled, second, noise)), None).flatten(0, -2)
        close(found, exact, inputs)
        if factor == 0:
            torch.testing.assert_close(found, exact, rtol=3e-4, atol=0)


@with_triton
@pytest.mark.parametrize("size", [1e-8, 1e-2, 1e2])
@pytest.mark.parametrize("inputs", [512, 528, 768, 3072])
def test_uniform_weights_by_triton(inputs, size):
    """Numbers as torch makes them, the sum of squares with all its digits, alone or beside the variance of inputs."""
    require_eight_bits()
    mean, var, second, _, _ = (x.bfloat16() for x in layer(inputs, 32, (3, 7), DEVICE))
    noise = torch.full_like(second, size)
    second = second + noise
    packed = weights, _, columns = float8.pack_uniform(second, noise)
    for factor in (0, 1e-6, 1e-2, 1e2):
        scaled = factor * var
        exact = linear.spread(*(x.double() for x in (mean, scaled, second, noise)), None)
        result = float8._launch(mean, scaled, *packed, None)
        close(result, exact, inputs)
        if factor == 0:
            torch.testing.assert_close(result.double(), exact, rtol=8e-3 if INTERPRETED else 4.5e-3, atol=0)
        expected, found = numbers_of(mean, scaled, columns), float8.quantized(mean, scaled, weights, columns)
        torch.testing.assert_close(found.scales, expected.scales)
        sums = [x.both[:, inputs:].float().sum(-1) for x in (found, expected)]
        torch.testing.assert_close(*sums, rtol=1e-3, atol=1e-3 * float8.SHARES)
        if not INTERPRETED:  # in another order, a sum may be another in its last digit
            same = found.both[:, :inputs].float() == expected.both[:, :inputs].float()
            assert same.float().mean() > 0.99


@GPU
@kinds
def test_a_network_of_bfloat16(kind, monkeypatch):
    """As without 8 bits, and again when it has become a CUDA graph."""
    require_eight_bits()
    torch.manual_seed(0)
    model, x = Encoder(512, 8).bfloat16().eval().to(DEVICE), torch.randn(3, 19, 7, device=DEVICE).bfloat16()
    posterior, found = posterior_of(model, kind, std=1e-3), []
    for answer in (True, False):
        monkeypatch.setattr(float8, "has_eight_bits", lambda _, answer=answer: answer)
        net = vp.propagate(model, posterior)
        with torch.no_grad():
            found.append([net(x) for _ in range(6)])
        calls = net.plan((x,), {})[0].module.graph.find_nodes(op="call_function", target=float8.spread)
        assert bool(calls) is answer
    for result in found[0]:
        torch.testing.assert_close(result.var, found[1][0].var, rtol=3e-2, atol=0)
        torch.testing.assert_close(tuple(result), tuple(found[0][0]), rtol=1e-2, atol=1e-2)
