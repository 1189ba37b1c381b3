"""Pointwise rules as one op: what Triton is given, what autograd is told, and what a CPU does."""

import pytest
import torch

import varprop as vp
from tests.kernels.places import DEVICE, DTYPES, with_triton
from varprop.kernels import codegen, pointwise
from varprop.kernels.launch import aligned
from varprop.moments import Moments
from varprop.rules import functions
from varprop.rules.activation import ACTIVATION
from varprop.rules.normal import cast

aten = torch.ops.aten
RULES = {
    "gelu": ACTIVATION[aten.gelu.default],
    "gelu tanh": lambda x: ACTIVATION[aten.gelu.default](x, approximate="tanh"),
    "relu": ACTIVATION[aten.relu.default],
    "silu": ACTIVATION[aten.silu.default],
    "sigmoid": ACTIVATION[aten.sigmoid.default],
    "tanh": ACTIVATION[aten.tanh.default],
    "quick_gelu": ACTIVATION[functions.quick_gelu],
}
LINEAR = {  # by f', as Streamlining does
    "gelu, linear": lambda x: vp.STREAMLINING[aten.gelu.default](x),
    "gelu tanh, linear": lambda x: vp.STREAMLINING[aten.gelu.default](x, approximate="tanh"),
    "silu, linear": lambda x: vp.STREAMLINING[aten.silu.default](x),
    "relu, linear": lambda x: vp.STREAMLINING[aten.relu.default](x),
}
WIDTHS = pytest.mark.parametrize("largest_var", [0.0, 1e-6, 0.1, 30.0])


def example(largest_var, size=1000):
    generator = torch.Generator().manual_seed(0)
    mean = 3 * torch.randn(size, generator=generator)
    return mean, largest_var * torch.rand(size, generator=generator), torch.tensor(0.3)


def exact(rule, mean, var, log_alpha):
    """Moments and gradients of mean + 2 var in float64."""
    inputs = [x.double().requires_grad_() for x in (mean, var, log_alpha)]
    y = rule(Moments(inputs[0], inputs[1] * inputs[2].exp()))
    return y, torch.autograd.grad(y.mean.sum() + 2 * y.var.sum(), inputs)


def close(y, expected, scale, tolerance=1e-5):
    assert y.isfinite().all()
    assert ((y - expected).abs() <= tolerance * (expected.abs() + scale)).all()


def test_a_narrow_block_runs_the_narrow_formula_alone():
    body = pointwise.trace(RULES["gelu"], torch.float32).graph
    narrow, whole = (codegen.write(graph, ["x0", "x1"], "t")[0] for graph in (codegen.narrowed(body), body))
    assert sum("tl.exp" in line for line in narrow) == 1
    assert len(narrow) < 0.7 * len(whole)


@pytest.mark.parametrize("name", RULES)
def test_a_derivative_is_narrow_too(name):
    """Nothing is computed from the zeros that flow back through the formula for wide Gaussians."""
    derivative = pointwise.trace(RULES[name], torch.float64).derivative
    mean, var, _ = (x.double() for x in example(0.1))
    inputs = mean, var, torch.randn_like(mean), torch.randn_like(mean)
    for narrow, whole in zip(derivative.narrow(*inputs), derivative.graph(*inputs), strict=True):
        torch.testing.assert_close(narrow, whole)
    sizes = [len(graph.graph.nodes) for graph in (derivative.narrow, derivative.graph)]
    assert sizes[0] < 0.75 * sizes[1] or name == "relu"


KNOWN = {op: rule for op, rule in ACTIVATION.items() if rule.gradient}


@pytest.mark.parametrize("op", KNOWN, ids=str)
def test_a_gradient_that_a_rule_knows_is_that_of_its_formula(op):
    grid = torch.linspace(-12, 12, 49, dtype=torch.float64), torch.logspace(-12, 3, 76, dtype=torch.float64)
    mean, var = (x.contiguous().requires_grad_() for x in torch.meshgrid(*grid, indexing="ij"))
    y, of = KNOWN[op](Moments(mean, var)), Moments(torch.randn_like(mean), torch.randn_like(var))
    expected = torch.autograd.grad(tuple(y), (mean, var), tuple(of))
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        found = KNOWN[op].gradient(cast(Moments(mean, var), dtype), cast(of, dtype))
        for got, gradient in zip(found, expected, strict=True):
            assert got.dtype == dtype
            close(got, gradient, 1.0, tolerance)


def test_a_rule_that_cannot_be_emitted_says_so():
    with pytest.raises(KeyError):
        codegen.emit(pointwise.trace(lambda x: Moments(torch.lgamma(x.mean), x.var), torch.float32).graph)


@WIDTHS
def test_on_a_cpu(largest_var, monkeypatch):
    monkeypatch.setattr(pointwise, "CHUNK", 300)
    tensors = example(largest_var)
    module = pointwise.trace(RULES["gelu"], torch.float32)
    inputs = [x.clone().requires_grad_() for x in tensors]
    y = module(*inputs)
    expected, gradients = exact(RULES["gelu"], *tensors)
    close(y[0], expected.mean, tensors[1].sqrt() + 1e-2)
    close(y[1], expected.var, tensors[1])
    for got, gradient in zip(torch.autograd.grad(y[0].sum() + 2 * y[1].sum(), inputs), gradients, strict=True):
        close(got, gradient, 1.0)


def test_the_op_is_registered_in_full():
    inputs = [x.double().requires_grad_() for x in example(0.5, 6)]
    key = pointwise.trace(RULES["relu"], torch.float64).key
    torch.library.opcheck(torch.ops.varprop.pointwise.default, (*inputs, key))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 5, 4)], ids=str)
def test_any_shape_and_layout(shape):
    module = pointwise.trace(RULES["relu"], torch.float32)
    mean, var, zero = torch.randn(shape), torch.rand(shape), torch.zeros(())
    expected = RULES["relu"](Moments(mean, var))
    layouts = [lambda x: x]
    if len(shape) == 4:
        layouts += [lambda x: x.to(memory_format=torch.channels_last), lambda x: x.mT.contiguous().mT]
    for one in layouts:
        for other in layouts:
            for got, wanted in zip(module(one(mean), other(var), zero), expected, strict=True):
                torch.testing.assert_close(got, wanted)
    if len(shape) == 4:
        broadcast = module(mean, var[:1].expand_as(var), zero)
        torch.testing.assert_close(broadcast[1], RULES["relu"](Moments(mean, var[:1].expand_as(var))).var)


@with_triton
@WIDTHS
@pytest.mark.parametrize("name", [*RULES, *LINEAR])
def test_by_triton(name, largest_var):
    """Values, and in float32 gradients too: both are emitted from the rule."""
    tensors, rule = [x.to(DEVICE) for x in example(largest_var, 1500)], (RULES | LINEAR)[name]
    for dtype, tolerance in DTYPES:
        module = pointwise.trace(rule, dtype)
        inputs = [x.to(dtype).requires_grad_() for x in tensors]
        expected, gradients = exact(rule, *(x.detach().float() for x in inputs))
        y = module(*inputs)
        close(y[0], expected.mean, tensors[1].sqrt() + 1e-2, tolerance)
        close(y[1], expected.var, tensors[1], tolerance)
        if dtype is torch.float32:
            assert module(*(x.detach() for x in inputs))[0].equal(y[0])
            if name in RULES:
                found = torch.autograd.grad(y[0].sum() + 2 * y[1].sum(), inputs)
                # Of the tanh form, that of the variance is a second difference, which has fewer digits.
                for got, gradient in zip(found, gradients, strict=True):
                    close(got, gradient, 1.0, 2e-5 if name == "gelu tanh" else 1e-5)


def test_networks_run_it_eagerly_and_export_without_it():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Linear(8, 3)).eval()
    mean = dict(model.named_parameters())
    net = vp.propagate(model, vp.Posterior.from_tensors(mean, {k: torch.full_like(v, 1e-3) for k, v in mean.items()}))
    x = torch.randn(4, 5)
    y = net(x)
    program = torch.export.export(net, (x,), strict=False)
    assert "varprop" not in " ".join(str(node.target) for node in program.graph.nodes)
    for got, expected in zip(program.module()(x), y, strict=True):
        torch.testing.assert_close(got, expected)


def test_tensors_are_aligned_as_most_of_them_lie():
    x = torch.randn(2, 3, 4, 5)
    last = x.contiguous(memory_format=torch.channels_last)
    for given, layout in (
        ((x, last, last), torch.channels_last),
        ((x, last), torch.contiguous_format),
        ((last, x), torch.channels_last),
        ((last, x, x), torch.contiguous_format),
        ((x[:, :, ::2], x[:, :, 1::2]), torch.contiguous_format),
    ):
        found = aligned(*given)
        assert all(y.is_contiguous(memory_format=layout) for y in found)
        assert all(torch.equal(*pair) for pair in zip(given, found, strict=True))
