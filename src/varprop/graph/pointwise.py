"""Pointwise rules are traced once, on a tiny tensor, into modules that all layers of a network share.

The moments of an activation are a hundred elementary ops. Tracing them with symbolic sizes, anew for every layer, would
take most of the time a large model needs to be lifted; keeping what autograd saves of each would take 900 bytes an
entry in calibration. As a module of its own such a rule is traced once, recomputed in the backward pass, and can be
compiled by itself in seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from varprop.moments import Moments
from varprop.rules.ruleset import Rule, op_name

aten = torch.ops.aten

SHAPE_FREE = {
    aten._to_copy.default,
    aten.clone.default,
    aten.full_like.default,
    aten.ones_like.default,
    aten.scalar_tensor.default,
    aten.to.dtype,
    aten.zeros_like.default,
}


Body = Callable[..., Any]
CHUNK = 1 << 16  # entries: a dozen work tensors of this size fit a core's cache
ACCELERATOR_CHUNK = 1 << 19  # there it only bounds memory: a hundred work tensors, kept for the derivative


class Pointwise(nn.Module):
    """A rule that acts on each entry alone: mean and variance in, mean and variance out.

    Unless it is compiled, by itself or with the network around it, it is evaluated chunk by chunk: a chunk stays in the
    cache through all of its ops. In a backward pass it is computed again: what is kept of it is its two inputs.
    """

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body
        self.compiled: Body | None = None

    @property
    def fused(self) -> bool:
        return self.compiled is not None

    def forward(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling() or mean.shape != var.shape:
            return self.body(mean, var)
        if self.compiled is not None:
            flat = self.compiled(mean.reshape(-1), var.reshape(-1))  # one rank, so that it serves every layer
            return flat[0].view(mean.shape), flat[1].view(mean.shape)
        return chunked(self.body, mean, var)

    def fuse(self, like: Tensor) -> None:
        """Compile this rule and its derivative for tensors like ``like``, of any shape: a kernel each.

        What these keep between the passes is the two inputs as well. Raises what torch.compile raises.
        """
        compiled = torch.compile(self.body, dynamic=True)
        mean, var = (torch.full((4096,), 0.5, dtype=like.dtype, device=like.device, requires_grad=True) for _ in "mv")
        with torch.enable_grad():
            torch.stack(compiled(mean, var)).sum().backward()
        self.compiled = compiled

    def __deepcopy__(self, memo: dict[int, Any]) -> Pointwise:
        new = Pointwise(self.body)  # it holds no tensors, so copies share it, and what it was compiled to
        new.compiled = self.compiled
        return new


def chunked(function: Body, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """A pointwise function of two tensors, chunk by chunk, of which autograd keeps the inputs only."""
    return _Chunked.apply(function, mean, var)


class _Chunked(torch.autograd.Function):
    """A pointwise function of two tensors, differentiated by computing each chunk again."""

    @staticmethod
    def forward(ctx: Any, body: Body, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        ctx.body = body
        ctx.save_for_backward(mean, var)
        return _by_chunks(body, mean, var)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        def pull_back(mean: Tensor, var: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
            inputs = [x.detach().requires_grad_() for x in (mean, var)]
            with torch.enable_grad():
                outputs = ctx.body(*inputs)
            return torch.autograd.grad(outputs, inputs, gradients, allow_unused=True, materialize_grads=True)

        return None, *_by_chunks(pull_back, *ctx.saved_tensors, *gradients)


def _by_chunks(function: Body, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Two results of a pointwise function of tensors of one shape."""
    first = tensors[0]
    size = CHUNK if first.device.type == "cpu" else ACCELERATOR_CHUNK
    if first.numel() <= size:
        return function(*tensors)
    results = tuple(torch.empty(first.numel(), dtype=first.dtype, device=first.device) for _ in range(2))
    flat = [x.reshape(-1).split(size) for x in (*tensors, *results)]
    for chunk in zip(*flat, strict=True):
        for out, value in zip(chunk[-2:], function(*chunk[:-2]), strict=True):
            out.copy_(value)
    return results[0].view(first.shape), results[1].view(first.shape)


@dataclass
class Bodies:
    """The modules of the pointwise rules of a network, by name, and the nodes of one graph that call them."""

    modules: nn.ModuleDict
    names: dict[fx.Node, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def prepare(self, node: fx.Node, rule: Rule, device: torch.device) -> None:
        """Trace the rule for ``node``, if it is a pointwise function of one tensor and was not met before."""
        x, *rest = node.args
        if not isinstance(x, fx.Node) or len(node.all_input_nodes) != 1:
            return
        dtype = x.meta["val"].dtype
        key = f"{node.target} {rest} {sorted(node.kwargs.items())} {dtype}"
        kind = op_name(node.target).removeprefix("aten.").partition(".")[0]
        name = f"{kind}_{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        if name in self.refused:
            return
        if name not in self.modules:
            example = torch.full((2, 3), 0.5, dtype=dtype, device=device)
            body = _trace(lambda x: rule(x, *rest, **node.kwargs), example)
            if body is None:
                self.refused.add(name)
                return
            self.modules[name] = Pointwise(body)
        self.names[node] = name


def _trace(function: Callable[[Moments], Any], example: Tensor) -> fx.GraphModule | None:
    """A function of moments as a graph; None unless every op of it is pointwise, so that it holds for any shape."""
    try:
        body = make_fx(lambda mean, var: tuple(function(Moments(mean, var))))(example, example.clone())
    except Exception:  # noqa: BLE001 (a rule for tensors of another rank, or one that fails: the walk will tell)
        return None
    ops = [node.target for node in body.graph.nodes if node.op not in ("placeholder", "output")]
    shape_free = all(op in SHAPE_FREE or torch.Tag.pointwise in getattr(op, "tags", ()) for op in ops)
    return body if shape_free else None
