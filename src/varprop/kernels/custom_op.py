"""What the ops have in common: a kernel where it runs, else its reference; derivatives; how graphs call them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from varprop.kernels.launch import attempt

REAL = (Tensor, torch.nn.Parameter)

CALLS: dict[Any, Callable[..., Any]] = {}
"""What a flat graph calls in the place of an op: without the detour over torch's dispatcher where that can be."""


def registered(
    name: str,
    reference: Callable[..., Any],
    launch: Callable[..., Any],
    fits: Callable[..., bool],
    outline: Callable[..., Any],
) -> Callable[..., Any]:
    """Make an op of a kernel, which ``launch`` runs on arguments that it ``fits``, and its reference, for all others.
    Both take the same (no defaults: torch leaves such arguments out), and ``outline`` tells the shapes and strides of
    what they give. Returned is what a flat graph calls for it.
    """

    def compute(*arguments: Any) -> Any:
        results = attempt(f"varprop::{name}", lambda: launch(*arguments)) if fits(*arguments) else None
        if results is not None:
            return results
        without_memory = tree_map_only(Tensor, lambda x: x.to("meta"), arguments)
        return tree_map(_laid_out, reference(*arguments), outline(*without_memory))

    schema = torch.library.infer_schema(reference, mutates_args=())
    op: Any = torch.library.custom_op(f"varprop::{name}", compute, mutates_args=(), schema=schema)
    op.register_fake(outline)
    _recompute(op, reference)
    packet = getattr(torch.ops.varprop, name)
    CALLS[packet.default] = call = _call_of(packet, compute, reference)
    return call


def _laid_out(x: Tensor, like: Tensor) -> Tensor:
    return x if x.stride() == like.stride() else torch.empty_like(like, device=x.device).copy_(x)


def _recompute(op: Any, reference: Callable[..., Any]) -> None:
    """Register the autograd of ``op``, whose results are those of ``reference``."""

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]
        ctx.save_for_backward(*(value if isinstance(value, Tensor) else None for value in inputs))

    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad
        inputs = [
            other if tensor is None else tensor.detach().requires_grad_(need)
            for tensor, other, need in zip(ctx.saved_tensors, ctx.others, needed, strict=True)
        ]
        with torch.enable_grad():
            outputs = reference(*inputs)
        given = zip([outputs] if isinstance(outputs, Tensor) else outputs, gradients, strict=True)
        asked, pulling = zip(*(pair for pair in given if pair[0].requires_grad), strict=True)
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need]
        found = iter(torch.autograd.grad(asked, wanted, pulling, allow_unused=True))
        return tuple(next(found) if need else None for need in needed)

    op.register_autograd(backward, setup_context=keep)


def direct(*tensors: Any) -> bool:
    """May the kernel be called without its op? That takes as long as many a kernel, and only autograd, compilers and
    tensors that are not real need it.
    """
    if torch.compiler.is_compiling():
        return False
    given = [x for x in tensors if isinstance(x, Tensor)]
    return all(type(x) in REAL for x in given) and not (torch.is_grad_enabled() and any(x.requires_grad for x in given))


def _call_of(op: Any, compute: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    """What a flat graph calls: ``compute`` itself where it may, else ``op``; and the reference in what is exported,
    which runs without this package.
    """

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_exporting():
            return reference(*arguments)
        return compute(*arguments) if direct(*arguments) else op(*arguments)

    functools.update_wrapper(call, reference, assigned=("__doc__",))  # its arguments have names
    call.__name__ = call.__qualname__ = op.__name__  # as graphs are printed
    return call
