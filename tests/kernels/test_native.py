"""Pointwise rules as loops of C++: the numbers of the rules, compiled once, and none where there is no compiler."""

import math
import stat

import pytest
import torch

from tests.kernels.test_pointwise import RULES, WIDTHS, close, exact, example
from varprop.kernels import native, pointwise
from varprop.kernels.launch import say
from varprop.moments import Moments


@pytest.fixture(scope="module")
def _kept(tmp_path_factory):
    """What is compiled, for all tests of this file."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True)
def _anew(monkeypatch, _kept):
    monkeypatch.setattr(native, "folder", lambda: _kept)
    monkeypatch.setattr(pointwise, "RULES", {})
    monkeypatch.setattr(pointwise, "TRACED", {})


def loop(rule, dtype=torch.float32):
    return native.Native(pointwise.trace(rule, dtype).graph)


@pytest.mark.parametrize(
    "name", [name if name == "gelu" else pytest.param(name, marks=pytest.mark.second) for name in RULES]
)
@WIDTHS
def test_values_and_gradients_are_those_of_the_rule(name, largest_var, monkeypatch):
    tensors = example(largest_var, 5000)
    module = pointwise.trace(RULES[name], torch.float32)
    monkeypatch.setattr(module.formula, "_by_width", None)  # not op by op
    monkeypatch.setattr(module.derivative, "_by_width", None)
    inputs = [x.clone().requires_grad_() for x in tensors]
    y = module(*inputs)
    expected, gradients = exact(RULES[name], *tensors)
    close(y[0], expected.mean, tensors[1].sqrt() + 1e-2)
    close(y[1], expected.var, tensors[1])
    found = torch.autograd.grad(y[0].sum() + 2 * y[1].sum(), inputs)
    for got, gradient in zip(found, gradients, strict=True):
        close(got, gradient, 1.0, 2e-5 if name == "gelu tanh" else 1e-5)


def test_every_size_and_layout():
    """Blocks end anywhere, and threads share what is long."""
    for shape in ((), (1,), (1023,), (1025,), (3, 70001), (2, 3, 5, 7)):
        mean, var = torch.randn(shape), torch.rand(shape)
        if len(shape) == 4:
            mean, var = mean.to(memory_format=torch.channels_last), var.mT.contiguous().mT
        found, expected = loop(RULES["relu"])((mean, var), torch.tensor(0.0)), RULES["relu"](Moments(mean, var))
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted)
    assert loop(RULES["relu"])((torch.randn(0), torch.rand(0)), torch.tensor(0.0)) is None


@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_an_entry_is_the_same_wherever_it_stands(name):
    """At the end of a block, alone, in a block that is narrow throughout or not."""
    mean, var = torch.randn(3001), 0.1 * torch.rand(3001)
    run, zero = loop(RULES[name]), torch.tensor(0.0)
    whole = run((mean, var), zero)
    wide = run((mean, torch.where(torch.arange(3001) % 500 == 0, 7.0, var)), zero)
    for at in (1, 1023, 1025, 2999):
        alone = run((mean[at : at + 1], var[at : at + 1]), zero)
        for part, other, own in zip(whole, wide, alone, strict=True):
            assert part[at] == other[at] == own[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype):
    x = Moments(torch.randn(3000).to(dtype), torch.rand(3000).to(dtype))
    for got, wanted in zip(loop(RULES["gelu"], dtype)(tuple(x), torch.tensor(0.0)), RULES["gelu"](x), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted)
    assert (
        loop(RULES["gelu"], torch.float64)((torch.randn(9).double(), torch.rand(9).double()), torch.tensor(0.0)) is None
    )


def test_exponentials_and_logarithms():
    run = loop(lambda x: Moments(torch.exp(x.mean), torch.log(x.var)))
    special = [0.0, 1e-45, 1e-38, 1.0, 88.7, 89.0, 103.0, 105.0, 1e30, math.inf, math.nan]
    x = torch.cat([torch.tensor([*special, *(-value for value in special)]), torch.linspace(-110, 95, 10_000)])
    y = torch.cat([torch.tensor([*special, -1.0, -math.inf]), torch.logspace(-37, 38, x.numel() - len(special) - 2)])
    exponential, logarithm = run((x, y), torch.tensor(0.0))
    torch.testing.assert_close(exponential, x.exp(), rtol=4e-7, atol=1e-37, equal_nan=True)
    kept = (y > 1e-37) | (y <= 0) | y.isnan()  # less is taken for 0
    torch.testing.assert_close(logarithm[kept], y.log()[kept], rtol=2e-7, atol=2e-7, equal_nan=True)


def test_a_rule_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "folder", lambda: tmp_path)
    compiled, compile_ = [], native._compile
    monkeypatch.setattr(native, "_compile", lambda *args: compiled.append(args) or compile_(*args))
    module = pointwise.trace(RULES["relu"], torch.float32)
    results = [module(*example(1.0))[1] for _ in range(5)]
    assert len(compiled) == 1
    for result in results:
        torch.testing.assert_close(result, results[0])
    assert loop(RULES["relu"])(example(1.0)[:2], torch.tensor(0.3)) is not None  # as in the next process
    assert len(compiled) == 1


@pytest.mark.parametrize("compiler", ["/nowhere/c++", "false"])
def test_no_compiler_is_no_reason_to_stop(compiler, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(native, "folder", lambda: tmp_path)
    monkeypatch.setenv("CXX", compiler)
    say.cache_clear()
    module = pointwise.trace(RULES["relu"], torch.float32)
    for _ in range(2):
        torch.testing.assert_close(
            module(*example(1.0)[:2], torch.zeros(()))[1], RULES["relu"](Moments(*example(1.0)[:2])).var
        )
    assert caplog.text.count("cannot be compiled here") == 1
    assert not [*tmp_path.iterdir()]


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.undo()
    native.folder.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = native.folder()
    assert found == tmp_path / "cache" / "varprop"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    native.folder.cache_clear()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert native.folder().is_dir()
    native.folder.cache_clear()
