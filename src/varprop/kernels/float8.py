"""Variances of linear layers by products of 8-bit numbers, where everything else is bfloat16.

A variance is a sum of hundreds of products, none of them negative: errors of 5 % in each, independent, leave 0.4 % of
a sum over 768 features (root mean square, with the rounding of the result to bfloat16, which alone is 0.17 %; at worst
1.9 %). What is rounded is moved by a part of a step first, another for each place of a sum: else entries that are
alike would all be off to the same side. Both products of the rule are one, [Σx, μx²] [E[W²], Σ_W]ᵀ, at twice the speed
of bfloat16.

Where all of Σ_W are one number c, as in an isotropic posterior, this is [Σx, c Σ_d μx²] [E[W²], 1]ᵀ, with little more
than half as many entries. The sum is one number of each token, which must keep its digits: they are written into a few
columns, and what these are multiplied by, a power of two, is not rounded at all.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from varprop.kernels.custom_op import registered
from varprop.kernels.launch import LONGEST_ROW, at_least_16, attempt, on, runs_on, say
from varprop.rules import linear

EIGHT = torch.float8_e4m3fn
LARGEST = 448.0
FEWEST = 512  # features: in a sum of few, errors do not average out
OLDEST = (8, 9)  # CUDA's compute capability that multiplies them
TINY = 1e-30
NORMAL, DIGITS = 2.0**-6, 3  # the smallest number with all its digits, and how many follow the first
EXPONENT = 0x7F800000  # these bits of a float32 alone are the power of two below it
PLASTIC = 0.7548776662466927, 0.5698402909980532  # multiples of them, modulo 1, are spread evenly over a square
SHARES = 16  # columns of the sum, so that sizes stay multiples of 16
ENTRIES = 1024  # for each warp that turns them into 8 bits
BIAS, SPREAD = 0.005, 0.02  # of a variance, relative: more than what rounding leaves of 512 features


@functools.cache
def has_eight_bits(device: torch.device) -> bool:
    """Does it multiply them, and rightly? That is tried once in a process, in one size: an error of the compiler would
    show in nothing else. Norms that write 8 bits do the same in kernels of their own, which are not tried.
    """
    if device.type != "cuda" or not runs_on(device) or torch.version.hip is not None:
        return False
    if torch.cuda.get_device_capability(device) < OLDEST:
        return False
    with ThreadPoolExecutor(1) as aside:  # where nothing is being traced
        return aside.submit(_is_right, device).result()


def _is_right(device: torch.device) -> bool:
    draw = torch.Generator().manual_seed(0)
    mean = torch.randn(64, FEWEST, generator=draw).to(device, torch.bfloat16)
    var, second = (torch.rand(64, FEWEST, generator=draw).to(device, torch.bfloat16) for _ in range(2))
    noise = 0.1 * second
    for packed in pack(second, noise), pack_uniform(second, torch.full_like(noise, 0.1)):
        result = attempt("a product of 8-bit numbers", functools.partial(_launch, mean, var, *packed, None))
        if result is None:
            return False
        off = result / reference(mean.double(), var.double(), *packed, None) - 1
        bias, spread = float(off.mean()), float(off.square().mean().sqrt())
        if not (abs(bias) < BIAS and spread < SPREAD):
            say(
                f"products of 8-bit numbers are wrong on {device} ({bias:+.1%}, ± {spread:.1%}), and are left out: "
                "variances of wide layers take longer; please report this"
            )
            return False
    return True


def suits(mean: Tensor, *_: Any) -> bool:
    return mean.numel() > 0 and mean.dtype == torch.bfloat16 and has_eight_bits(mean.device)


def pack(second: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[E[W²], Σ_W] as weights ⊙ (rows ⊗ columns): weights of 8 bits, a factor for each output and for each input.

    With the factors of inputs on their side, the largest entries there are those that count most in the sum.
    """
    both = torch.cat([second, noise], 1).float()
    columns = both.mean(0).clamp_min(TINY)
    relative = both / columns
    rows = (relative.amax(1, keepdim=True) / LARGEST).clamp_min(TINY)
    return _dithered(relative / rows).to(EIGHT), rows, columns


def pack_uniform(second: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[E[W²], 1] likewise, if Σ_W is c throughout. Factors of outputs are powers of two, from 2⁻⁸ to 2⁹ for as many as
    10⁵ of them, of which 8 bits hold the inverses; those of inputs end with c.
    """
    averages = second.float().mean(0).clamp_min(TINY)
    relative = second.float() / averages
    rows = 2 * _power(relative.amax(1, keepdim=True).clamp_min(1) / LARGEST)
    weights = torch.cat([_dithered(relative / rows), (1 / rows).expand(-1, SHARES)], 1).to(EIGHT)
    return weights, rows, torch.cat([averages, noise[0, :SHARES].float()])


def shares_of(weights: Tensor, size: int) -> int:
    """Columns of the sum, where they were packed as those of one variance; else 0."""
    return weights.shape[1] - size if weights.shape[1] < 2 * size else 0


def _dithered(x: Tensor) -> Tensor:
    """To what 8 bits can hold: up or down, the nearer the more often."""
    along, down = (
        torch.arange(n, device=x.device).double() * part for n, part in zip(x.shape[::-1], PLASTIC, strict=True)
    )
    part = (along + down[:, None]).frac().to(x.dtype)
    step = _power(x.clamp_min(NORMAL)) * 2.0**-DIGITS
    return (torch.floor(x / step + part) * step).clamp_max(LARGEST)


def _power(x: Tensor) -> Tensor:
    """The power of two below. Not by frexp, which gives two large tensors at once: of such results none is folded."""
    return (x.view(torch.int32) & EXPONENT).view(torch.float32)


def reference(mean: Tensor, var: Tensor, weights: Tensor, rows: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
    """Σx E[W²]ᵀ + μx² Σ_Wᵀ + Σ_b, with packed weights unpacked."""
    wide, size = torch.promote_types(mean.dtype, torch.float32), mean.shape[-1]
    both = weights.to(wide) * rows * columns
    second, noise = both[:, :size], both[:, size:]
    noise = noise[:, :1].expand(-1, size) if shares_of(weights, size) else noise
    added = None if bias is None else bias.to(wide)
    return linear.spread(mean.to(wide), var.to(wide), second, noise, added).to(mean.dtype)


def _outline(mean: Tensor, var: Tensor, weights: Tensor, *_: Any) -> Tensor:
    return mean.new_empty((*mean.shape[:-1], weights.shape[0]))


class Numbers(NamedTuple):
    """[Σ, μ²] ⊙ columns of each token, or [Σ, Σ_d μ²] ⊙ columns, of 8 bits, and what they are to be multiplied by."""

    both: Tensor
    scales: Tensor

    @classmethod
    def empty(cls, mean: Tensor, weights: Tensor) -> Numbers:
        tokens = mean.numel() // mean.shape[-1]
        both = torch.empty(tokens, weights.shape[1], dtype=EIGHT, device=mean.device)
        return cls(both, torch.empty(tokens, 1, dtype=torch.float32, device=mean.device))


def _launch(mean: Tensor, var: Tensor, weights: Tensor, rows: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
    return multiply(quantized(mean, var, weights, columns), weights, rows, bias, mean)


def quantized(mean: Tensor, var: Tensor, weights: Tensor, columns: Tensor) -> Numbers:
    """Moments as numbers that are multiplied by packed weights."""
    from varprop.kernels.triton_kernels import quantize_kernel

    numbers, size = Numbers.empty(mean, weights), mean.shape[-1]
    tokens, block = len(numbers.scales), at_least_16(size)
    with on(mean.device):
        rows_at_once = max(1, min(4, 4 * ENTRIES // block))
        quantize_kernel[(-(-tokens // rows_at_once),)](
            mean.contiguous(), var.contiguous(), columns, *numbers, tokens, size,
            SHARES=shares_of(weights, size), LARGEST=LARGEST,
            ROWS=rows_at_once, BLOCK=block, num_warps=min(16, rows_at_once * block // ENTRIES),
        )  # fmt: skip
    return numbers


def multiply(numbers: Numbers, weights: Tensor, rows: Tensor, bias: Tensor | None, mean: Tensor) -> Tensor:
    """By packed weights; as many tokens as ``mean`` has, and of its dtype."""
    # Fast accumulation cuts off bits, always downwards in a sum of positive numbers: 16 % after 12 blocks.
    product = torch._scaled_mm(
        numbers.both, weights.t(), scale_a=numbers.scales, scale_b=rows.t(),
        bias=bias, out_dtype=mean.dtype, use_fast_accum=False,
    )  # fmt: skip
    return product.view(*mean.shape[:-1], -1)


spread = registered("spread", reference, _launch, suits, _outline)


def spread_form(mean: Tensor, var: Tensor, second: Tensor, noise: Tensor, bias: Tensor | None) -> Tensor:
    """By 8 bits where the device has them and the layer is wide enough, written out elsewhere."""
    outputs, size = second.shape
    fits = (
        mean.dtype == torch.bfloat16
        and has_eight_bits(mean.device)
        and [*map(str, mean.shape)] == [*map(str, var.shape)]
        and FEWEST <= size <= LONGEST_ROW
        and outputs % 16 == size % 16 == 0
    )
    if not fits:
        return linear.spread(mean, var, second, noise, bias)
    return torch.ops.varprop.spread(mean, var, *pack(second, noise), bias)
