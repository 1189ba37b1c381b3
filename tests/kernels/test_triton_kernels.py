"""Attention and norms as ops: their reference and gradients here, the Triton kernels where there is a GPU."""

import pytest
import torch

from tests.kernels.places import DEVICE, DTYPES, INTERPRETED, with_triton
from varprop.kernels import flash, norm_op

SIZES = [
    (2, 3, 3, 197, 197, 64, 64),
    (1, 4, 2, 70, 150, 32, 32),
    (1, 2, 2, 119, 133, 80, 48),
    (1, 2, 1, 65, 65, 256, 256),
]
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


def attention_inputs(batch, heads, shared, length, keys, width, values, device="cpu"):
    torch.manual_seed(0)
    query = torch.randn(batch, heads, length, width, device=device)
    key, mean = (torch.randn(batch, shared, keys, n, device=device) for n in (width, values))
    return query, key, mean, 1e-3 * torch.rand(batch, shared, keys, values, device=device)


def masks(batch, heads, length, keys, device="cpu"):
    given = torch.rand(batch, 1, length, keys, device=device) > 0.5
    given[0, 0, length // 2] = False
    added = torch.randn(1, heads, length, keys, device=device)
    return [(None, False), (None, True), *((x, False) for x in (given, added, given[:, :, :1], added[:, :1, :1]))]


def norm_inputs(size, device="cpu"):
    torch.manual_seed(0)
    mean, var = 2 * torch.randn(3, 5, size, device=device) + 1, 0.1 * torch.rand(3, 5, size, device=device)
    return mean, var, torch.tensor(0.2, device=device), *torch.rand(4, size, device=device)


NO_LAYER = None, None, None, None, True  # behind a norm


def close(results, expected, tolerance):
    for got, wanted in zip(results, expected, strict=True):
        assert got.shape == wanted.shape
        assert got.isfinite().all()
        largest = wanted.abs().max() if wanted.numel() else 0.0
        assert ((got - wanted).abs() <= tolerance * (wanted.abs() + 0.1 * largest)).all()


def test_attention_is_registered_in_full():
    tensors = [x.double().requires_grad_() for x in attention_inputs(1, 4, 2, 5, 7, 8, 6)]
    for mask, causal in masks(1, 4, 5, 7):
        arguments = (*tensors, mask.double() if mask is not None and mask.is_floating_point() else mask, causal, 0.3)
        assert torch.autograd.gradcheck(torch.ops.varprop.attention, arguments, fast_mode=True)
    columns = torch.rand(1, 2, 7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(torch.ops.varprop.attention, (*tensors[:3], columns, *arguments[4:]))
    torch.library.opcheck(torch.ops.varprop.attention.default, arguments, test_utils=CHECKS)


def test_norm_is_registered_in_full():
    tensors = [x.double().requires_grad_() for x in norm_inputs(6)]
    for parts in (tensors, [*tensors[:3], None, None, None, None]):
        for centred, expected in ((True, True), (False, True), (True, False)):
            more = (None, None) if expected else [torch.rand_like(x).requires_grad_() for x in tensors[:2]]
            arguments = (*parts, 1e-5, centred, expected, *more, *NO_LAYER)
            assert torch.autograd.gradcheck(torch.ops.varprop.norm, arguments, fast_mode=True)
    torch.library.opcheck(torch.ops.varprop.norm.default, arguments, test_utils=CHECKS)


@with_triton
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_attention_by_triton(sizes):
    half = torch.float16 if INTERPRETED else torch.bfloat16  # of which the interpreter has no products
    for dtype, tolerance in ((torch.float32, 1e-5), (half, 2e-2)):
        tensors = [x.to(dtype) for x in attention_inputs(*sizes, device=DEVICE)]
        for mask, causal in masks(sizes[0], sizes[1], *sizes[3:5], device=DEVICE):
            exact = mask.double() if mask is not None and mask.is_floating_point() else mask
            for var in (tensors[3], tensors[3][:, :1, :, :3].float().expand(-1, sizes[2], -1, -1)):
                given = *tensors[:3], var
                expected = flash.reference(*(x.double() for x in given), exact, causal, sizes[5] ** -0.5)
                close(flash._launch(*given, mask, causal, sizes[5] ** -0.5), expected, tolerance)


@with_triton
@pytest.mark.parametrize("size", [768, 33, 4096])
def test_norm_by_triton(size):
    for dtype, tolerance in DTYPES:
        tensors = [x.to(dtype) for x in norm_inputs(size, DEVICE)]
        for centred, expected in ((True, True), (False, True), (True, False)):
            options = 1e-5, centred, expected
            for more in ((None, None), [torch.rand_like(x) for x in tensors[:2]]):
                more_exact = (None if x is None else x.double() for x in more)
                exact = norm_op.reference(*(x.double() for x in tensors), *options, *more_exact, *NO_LAYER)
                close(norm_op._launch(*tensors, *options, *more, *NO_LAYER), exact, tolerance)
