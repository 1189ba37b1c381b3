"""Variances by 8-bit products: how far off, in what layers, and the kernel where there is a GPU."""

import math

import pytest
import torch

import varprop as vp
from tests.kernels.places import DEVICE, INTERPRETED, with_triton
from tests.kernels.test_triton_kernels import CHECKS, norm_inputs
from varprop.graph import lift
from varprop.kernels import float8, norm_op
from varprop.rules import linear


def layer(inputs, outputs, tokens=(3, 5), device="cpu", spike=1.0):
    """Moments of features of which one is ``spike`` times as large, and of weights that make up for it."""
    torch.manual_seed(0)
    large = torch.ones(inputs, device=device)
    large[inputs // 3] = spike
    mean, var = torch.randn(*tokens, inputs, device=device) * large, 0.1 * torch.rand(*tokens, inputs, device=device)
    weight = torch.randn(outputs, inputs, device=device) / large
    noise = 1e-3 * torch.rand(outputs, inputs, device=device) / large.square()
    return mean, var * large.square(), weight.square() + noise, noise, torch.rand(outputs, device=device)


def close(result, exact, inputs):
    """As independent errors of 5 % in each term leave it, and the rounding of the result."""
    off = (result.double() - exact) / exact
    found = abs(float(off.mean())), float(off.square().mean().sqrt()), float(off.abs().max())
    expected = math.hypot(0.13 / inputs**0.5, 2e-3)  # a sum is mostly of its largest terms, one in six
    # Triton's interpreter loses carries where it rounds to 8 bits, in 4 % of the entries.
    bias, rms, most = (1.5e-2, 2e-2, 6e-2) if INTERPRETED else (2.5e-3, expected, 5 * expected)
    assert found[0] < bias and found[1] < rms and found[2] < most, found  # noqa: PT018


def require_eight_bits():
    if not INTERPRETED and not float8.has_eight_bits(torch.device("cuda", 0)):
        pytest.skip("multiplies no 8-bit numbers")


def test_it_is_registered_in_full():
    mean, var, second, noise, bias = (x.double() for x in layer(6, 4))
    packed = float8.pack(second, noise)
    for added in (bias.requires_grad_(), None):
        arguments = (mean.requires_grad_(), var.requires_grad_(), *packed, added)
        assert torch.autograd.gradcheck(torch.ops.varprop.spread, arguments)
        # Not its schema: torch compares inputs before and after by a product, which 8 bits do not have on a CPU.
        torch.library.opcheck(torch.ops.varprop.spread.default, arguments, test_utils=CHECKS[1:])


@pytest.mark.parametrize("spike", [1.0, 1e3])
def test_packed_weights_give_the_variance(spike):
    mean, var, second, noise, bias = (x.double() for x in layer(512, 64, spike=spike))
    exact = linear.spread(mean, var, second, noise, bias)
    close(float8.reference(mean, var, *float8.pack(second, noise), bias), exact, 512)


@pytest.mark.parametrize("value", [1.03, 0.97, 17.0])
def test_weights_that_are_alike_are_not_all_off_to_the_same_side(value):
    """As those of an isotropic posterior; a step of 8 bits is 6 to 12 %."""
    noise = torch.ones(64, 512)
    noise[::2] = value
    weights, rows_of, columns = float8.pack(noise, noise)
    found = (weights.double() * rows_of * columns)[:, 512:].mean(1)
    torch.testing.assert_close(found, noise[:, 0].double(), rtol=1.5e-3, atol=0)


def test_weights_of_zero_stay_zero():
    mean, var, second, noise, _ = layer(32, 16)
    second[:, 3] = noise[:, 3] = second[5] = noise[5] = 0
    result = float8.reference(mean, var, *float8.pack(second, noise), None)
    assert result.isfinite().all()
    assert (result[..., 5] == 0).all()
    assert (result[..., 4] > 0).all()


def test_wide_layers_of_bfloat16_use_it(monkeypatch):
    for module in (lift, float8):
        monkeypatch.setattr(module, "runs_on", lambda _: True)
    monkeypatch.setattr(float8, "has_eight_bits", lambda _: True)
    torch.manual_seed(0)
    wide = torch.nn.Sequential(
        torch.nn.Linear(40, 512), torch.nn.ReLU(), torch.nn.Linear(512, 48), torch.nn.Linear(48, 7)
    )
    model, x = wide.bfloat16().eval(), torch.randn(9, 40, dtype=torch.bfloat16)
    posterior = vp.Posterior.isotropic(model, std=0.05)
    net = vp.propagate(model, posterior)
    result = net(x)
    calls = [node.target for node in net.plan((x,), {})[0].module.graph.nodes]
    assert calls.count(float8.spread) == 1  # the first layer's input is certain, the last is narrow
    monkeypatch.setattr(float8, "has_eight_bits", lambda _: False)
    written = vp.propagate(model, posterior)(x)
    assert torch.equal(result.mean, written.mean)
    torch.testing.assert_close(result.var, written.var, rtol=3e-2, atol=0)


def behind_a_norm(size, outputs, kept, device="cpu", dtype=torch.float64):
    """The arguments of a norm and of the layer behind it."""
    tensors = [x.to(dtype) for x in norm_inputs(size, device)]
    _, _, second, noise, added = layer(size, outputs, device=device)
    return (*tensors, 1e-5, True, True, None, None, *float8.pack(second, noise), added.to(dtype), kept)


@pytest.mark.parametrize("kept", [True, False])
def test_a_norm_with_a_layer_is_registered_in_full(kept):
    *arguments, weights, rows_of, columns, added, _ = behind_a_norm(6, 4, kept)
    given = [x.requires_grad_() if isinstance(x, torch.Tensor) else x for x in arguments]
    arguments = (*given, weights, rows_of.double(), columns.double(), added.requires_grad_(), kept)
    assert torch.autograd.gradcheck(torch.ops.varprop.norm, arguments, fast_mode=True)
    torch.library.opcheck(torch.ops.varprop.norm.default, arguments, test_utils=CHECKS[1:])


@pytest.mark.parametrize("after", [False, True])
def test_a_norm_writes_what_the_layer_behind_it_takes(monkeypatch, after):
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
    posterior = vp.Posterior.isotropic(model, std=0.05)
    for module in (lift, float8):
        monkeypatch.setattr(module, "runs_on", lambda _: True)
    for answer in (False, True):
        monkeypatch.setattr(float8, "has_eight_bits", lambda _, answer=answer: answer)
        net = vp.propagate(model, posterior)
        found[answer] = net(x)
    norm = next(node for node in net.plan((x,), {})[0].module.graph.nodes if node.target is norm_op.normalize)
    assert norm.args[12] is not None
    assert norm.args[-1] is after
    torch.testing.assert_close(found[True].mean, found[False].mean, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found[True].var, found[False].var, rtol=3e-2, atol=0)


@with_triton
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("size", [768, 528, 3072])
def test_a_norm_with_a_layer_by_triton(size, kept):
    require_eight_bits()
    arguments = behind_a_norm(size, 64, kept, DEVICE, torch.bfloat16)
    alone = norm_op._launch(*arguments[:12], None, None, None, None, True)
    results = norm_op._launch(*arguments)
    assert torch.equal(results.mean, alone.mean)
    assert torch.equal(results.var, alone.var if kept else alone.var[:0, 0, 0])
    apart = float8._launch(alone.mean, alone.var, *arguments[12:16])
    assert torch.equal(results.spread, apart)


@with_triton
@pytest.mark.parametrize("spike", [1.0, 1e3])
@pytest.mark.parametrize(("inputs", "outputs"), [(768, 3072), (3072, 768), (528, 16)])
def test_by_triton(inputs, outputs, spike):
    require_eight_bits()
    rounded = [x.bfloat16() for x in layer(inputs, outputs, (7, 31), DEVICE, spike)]
    exact = linear.spread(*(x.double() for x in rounded))
    mean, var, second, noise, bias = rounded
    packed = float8.pack(second, noise)
    for tensors in ((mean, var), (mean.mT.contiguous().mT, var)):
        close(float8._launch(*tensors, *packed, bias), exact, inputs)
    close(float8._launch(mean[:1, :1], var[:1, :1], *packed, bias), exact[:1, :1], inputs)
    zero = float8._launch(0 * mean, 0 * var, *packed, None)
    assert (zero == 0).all()
    alone = float8._launch(mean, var, *packed, None)
    close(alone, exact - bias.double(), inputs)
