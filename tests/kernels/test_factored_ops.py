"""Factored variances as kernels: the same numbers as written out, and the Triton kernels where there is a GPU."""

import pytest
import torch

import varprop as vp
from tests.kernels.places import DEVICE, DTYPES, with_triton
from tests.kernels.test_triton_kernels import CHECKS, close
from tests.rules.test_factored import Block
from varprop.graph import lift
from varprop.kernels import activations, factored_ops, pointwise
from varprop.rules.gelu import gelu

WIDE = torch.float64


def contract_inputs(size, width, rank=1, device="cpu", dtype=WIDE):
    torch.manual_seed(0)
    shapes = (3, 5, size), (3, 5, width), (rank, width), (rank, size)
    return [torch.rand(shape, device=device, dtype=dtype) for shape in shapes]


def norm_inputs(size, terms, device="cpu", dtype=WIDE):
    torch.manual_seed(0)
    mean = 2 * torch.randn(3, 5, size, device=device, dtype=dtype) + 1
    numbers, sums = torch.rand(3, 5, terms, device=device, dtype=dtype), torch.rand(terms, device=device, dtype=dtype)
    return mean, numbers, sums, *torch.rand(3, size, device=device, dtype=dtype)


def activation_inputs(size, terms, device="cpu", dtype=WIDE, largest=0.1):
    torch.manual_seed(0)
    mean, numbers = torch.randn(3, 5, size, device=device), largest * torch.rand(3, 5, terms, device=device)
    vectors, by = torch.rand(terms, size, device=device), torch.rand(2, 2, size, device=device)
    return [x.to(dtype) for x in (mean, numbers, torch.tensor(0.2, device=device), vectors, vectors.amax(1), *by)]


def key(dtype):
    return pointwise.trace(gelu, dtype).key


@pytest.mark.parametrize("ones", [True, False])
def test_contract_is_registered_in_full(ones):
    inputs = [x.requires_grad_() for x in contract_inputs(7, 4, rank=2)]
    for arguments in ((*inputs, ones), (inputs[0], None, None, inputs[3], ones), (*inputs[:3], None, ones)):
        assert torch.autograd.gradcheck(torch.ops.varprop.contract, arguments, fast_mode=True)
        torch.library.opcheck(torch.ops.varprop.contract.default, arguments, test_utils=CHECKS)


@pytest.mark.parametrize("centred", [True, False])
def test_norm_is_registered_in_full(centred):
    inputs = [x.requires_grad_() for x in norm_inputs(6, 3)]
    by = [torch.rand(2, n, dtype=WIDE, requires_grad=True) for n in (5, 6)]
    for parts, sums in (
        (inputs, (None, None, False)),
        (inputs, (*by, True)),
        ([*inputs[:3], inputs[3], None, None], (None, by[1], False)),
        ([*inputs[:3], None, None, None], (None, None, False)),
    ):
        more = (
            [None, None, None] if sums[0] is None else [torch.rand_like(parts[0]), torch.tensor(0.2, dtype=WIDE), None]
        )
        if sums[0] is not None:
            more[2], parts = torch.rand_like(parts[1])[..., :2], [parts[0], parts[1][..., :1], *parts[2:]]
        optional = [None if x is None else x.requires_grad_() for x in more]
        arguments = (*parts, 1e-5, centred, parts[-1] is not None, *sums, *optional)
        assert torch.autograd.gradcheck(torch.ops.varprop.token_norm, arguments, fast_mode=True)
        torch.library.opcheck(torch.ops.varprop.token_norm.default, arguments, test_utils=CHECKS)


def test_activation_is_registered_in_full():
    *inputs, by_var, by_square = [x.requires_grad_() for x in activation_inputs(6, 3)]
    for sums in ((by_var, by_square, True), (None, None, False)):
        arguments = (*inputs, *sums, key(WIDE))
        assert torch.autograd.gradcheck(torch.ops.varprop.activation, arguments, fast_mode=True)
        torch.library.opcheck(torch.ops.varprop.activation.default, arguments, test_utils=CHECKS)


def test_a_network_of_kernels_is_the_one_written_out(monkeypatch):
    torch.manual_seed(0)
    model, x = Block().double().eval(), torch.randn(4, 5, 8, dtype=WIDE)
    torch.nn.init.normal_(model.norms[0].weight)
    mean = dict(model.named_parameters())
    posterior = vp.Posterior.from_tensors(mean, {name: 0.01 * torch.rand_like(p) for name, p in mean.items()})
    found = []
    for accelerated in (False, True):
        monkeypatch.setattr(lift, "runs_on", lambda _, answer=accelerated: answer)
        net = vp.propagate(model, posterior, vp.FACTORED)
        net.capture(x)
        for scale in net.scale.parameters():
            scale.requires_grad_().data.fill_(0.3)
        y = net(x)
        gradients = torch.autograd.grad(y.mean.sum() + y.var.sum(), list(net.scale.parameters()))
        found.append((*y, torch.stack(gradients)))
        nodes = net.plan((x,), {})[0].module.graph.nodes
        calls = [node.target for node in nodes]
    for got, wanted in zip(*found, strict=True):
        assert torch.allclose(got, wanted, rtol=1e-9)
    assert calls.count(activations.activate) == 1
    assert calls.count(factored_ops.contracted) == 2  # what three layers want is summed up by norms and the activation
    assert calls.count(factored_ops.normalized) == 2
    norms = [node for node in nodes if node.target is factored_ops.normalized]
    assert [node.args[12] is not None for node in norms] == [False, True]  # the second is of a residual sum
    assert all(str(node.args[13].target).startswith("scale.") for node in norms)
    assert norms[1].args[14] is not None  # and joins its numbers


def test_what_is_no_sum_of_tokens_is_multiplied_out(monkeypatch):
    """A layer over positions, and an activation of what varies by position and feature alike."""

    class Mixer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.across, self.last = (torch.nn.Linear(n, n) for n in (4, 5, 4))

        def forward(self, x):
            return self.last(torch.relu(self.across(self.first(x).mT)).mT)

    torch.manual_seed(0)
    model, x = Mixer().double().eval(), torch.randn(3, 5, 4, dtype=WIDE)
    results = []
    for accelerated in (False, True):
        monkeypatch.setattr(lift, "runs_on", lambda _, answer=accelerated: answer)
        results.append(vp.propagate(model, vp.Posterior.isotropic(model, std=0.1), vp.FACTORED)(x))
    for got, wanted in zip(*results, strict=True):
        assert torch.allclose(got, wanted, rtol=1e-9)


@with_triton
@pytest.mark.parametrize(("size", "width", "rank"), [(768, 768, 1), (33, 36, 3), (3072, 75, 2), (5, 1, 16)])
def test_contract_by_triton(size, width, rank):
    for dtype, tolerance in DTYPES:
        inputs = contract_inputs(size, width, rank, DEVICE, dtype)
        strided = inputs[1].mT.contiguous().mT
        for arguments in ((*inputs, True), (inputs[0], strided, *inputs[2:], False)):
            exact = factored_ops.contract_reference(*(x.double() for x in arguments[:4]), arguments[4])
            close([factored_ops._launch_contract(*arguments)], [exact], tolerance)


@with_triton
@pytest.mark.parametrize(("size", "terms"), [(768, 75), (33, 1), (4096, 3)])
def test_norm_by_triton(size, terms):
    for dtype, tolerance in DTYPES:
        inputs = norm_inputs(size, terms, DEVICE, dtype)
        by = [torch.rand(2, n, device=DEVICE, dtype=dtype) for n in (terms + 2, size)]
        for rest, sums in (
            ((1e-5, True, True), (None, None)),
            ((1e-5, False, False), (None, None)),
            ((1e-5, True, True), by),
            ((1e-5, True, True), (None, by[1])),
        ):
            scale, half = torch.tensor(0.2, device=DEVICE, dtype=dtype), (terms + 1) // 2
            apart = inputs[1][..., :half], inputs[1][..., half:].mT.contiguous().mT
            for numbers, more in (
                (inputs[1], (None, None, None)),
                (inputs[1], (torch.rand_like(inputs[0]), scale, None)),
                (apart[0], (None, scale, apart[1] if terms > 1 else None)),
            ):
                given, wide = (
                    (inputs[0], numbers, *inputs[2:]),
                    [None if x is None else x.double() for x in (*sums, *more)],
                )
                exact = factored_ops.norm_reference(*(x.double() for x in given), *rest, *wide[:2], True, *wide[2:])
                close(factored_ops._launch_norm(*given, *rest, *sums, True, *more), exact, tolerance)


@with_triton
@pytest.mark.parametrize("largest", [0.0, 1e-6, 0.1, 30.0])
@pytest.mark.parametrize(("size", "terms"), [(3072, 3), (33, 5)])
def test_activation_by_triton(size, terms, largest):
    for dtype, tolerance in DTYPES:
        *inputs, by_var, by_square = activation_inputs(size, terms, DEVICE, dtype, largest)
        for sums in ((by_var, by_square, True), (None, None, False)):
            wide = [x if x is None or isinstance(x, bool) else x.double() for x in (*inputs, *sums)]
            exact = activations.reference(*wide, key(WIDE))
            close(activations._launch(*inputs, *sums, key(dtype)), exact, tolerance)
