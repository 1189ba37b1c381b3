"""Pointwise rules as one op, ``varprop::pointwise``: mean, variance and log α in, mean and variance out.

The moments of an activation are hundreds of elementary ops. Traced once, on a tiny tensor, they serve all layers: as a
Triton kernel on a GPU, as a loop of C++ on a CPU, chunk by chunk where neither can be had, written out in what
``torch.export`` saves and, if they are few, in what ``torch.compile`` fuses on a CPU. In a backward pass they are
computed again: autograd keeps their inputs.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from varprop.errors import RuleError
from varprop.kernels import codegen
from varprop.kernels.custom_op import direct
from varprop.kernels.launch import Launcher, aligned, flat
from varprop.kernels.native import Native
from varprop.moments import Moments

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
CHUNK = 1 << 16  # entries: a dozen work tensors of this size fit a core's cache
ACCELERATOR_CHUNK = 1 << 22  # there it only bounds memory: a hundred work tensors, kept for the derivative
FEW = 100  # ops, which a compiler fuses with what surrounds them; more would cost it seconds in every layer

Function = Callable[..., Any]


class Traced:
    """A graph of pointwise ops with two results: as a kernel, as a loop of C++, or chunk by chunk."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph, self.asked = graph, codegen.asked(graph)
        self.narrow = codegen.narrowed(graph) if self.asked else graph
        self.kernel, self.native = Launcher(lambda: codegen.emit(graph)), Native(graph)

    def __call__(self, mean: Tensor, var: Tensor, log_alpha: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
        given = mean, var, *more
        if results := self.kernel(given, log_alpha) or self.native(given, log_alpha):
            return results
        size = CHUNK if mean.is_cpu else ACCELERATOR_CHUNK
        return in_chunks(self._by_width, size, mean, var * log_alpha.exp(), *more)

    def _by_width(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The narrow formula where a chunk is narrow throughout; to ask a GPU would be to wait for it."""
        narrow = self.asked and tensors[0].is_cpu and all(bool(answer.all()) for answer in self.asked(*tensors))
        return self.narrow(*tensors) if narrow else self.graph(*tensors)


def _differentiated(rule: Function, dtype: torch.dtype, args: Any, kwargs: Any) -> fx.GraphModule:
    """The gradients of the inputs, given those of the results."""

    def pull_back(mean: Tensor, var: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
        known = getattr(rule, "gradient", None)
        found = known(Moments(mean, var), Moments(*gradients), *args, **kwargs) if known else NotImplemented
        if found is not NotImplemented:
            return tuple(found)
        inputs = [x.detach().requires_grad_() for x in (mean, var)]
        with torch.enable_grad():
            outputs = tuple(rule(Moments(*inputs), *args, **kwargs))
        return torch.autograd.grad(outputs, inputs, gradients, allow_unused=True, materialize_grads=True)

    example = torch.full((2, 3), 0.5, dtype=dtype)
    graph = _anywhere(make_fx(pull_back)(*(example.clone() for _ in range(4))))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _anywhere(graph: fx.GraphModule) -> fx.GraphModule:
    """Casts of autograd name the device they were traced on."""
    for node in graph.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        node.kwargs = {"dtype": node.kwargs["dtype"]}
    graph.recompile()
    return graph


# --- the op ----------------------------------------------------------------------------------------------


@torch.library.custom_op("varprop::pointwise", mutates_args=())
def pointwise(mean: Tensor, var: Tensor, log_alpha: Tensor, key: str) -> tuple[Tensor, Tensor]:
    """The moments of a pointwise function of x ~ N(mean, α var); ``key`` names the traced rule."""
    return RULES[key].formula(mean, var, log_alpha)


@torch.library.custom_op("varprop::pointwise_backward", mutates_args=())
def pointwise_backward(
    mean: Tensor, var: Tensor, log_alpha: Tensor, mean_gradient: Tensor, var_gradient: Tensor, key: str
) -> tuple[Tensor, Tensor]:
    """The gradients of mean and of α var."""
    return RULES[key].derivative(mean, var, log_alpha, mean_gradient, var_gradient)


@pointwise.register_fake
def _(mean: Tensor, var: Tensor, log_alpha: Tensor, key: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(mean), torch.empty_like(var)


@pointwise_backward.register_fake
def _(mean: Tensor, var: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(mean), torch.empty_like(var)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.key = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    mean, var, log_alpha = ctx.saved_tensors
    mean_gradient, scaled = torch.ops.varprop.pointwise_backward(mean, var, log_alpha, *gradients, ctx.key)
    var_gradient = scaled * log_alpha.exp()
    return mean_gradient, var_gradient, (var_gradient * var).sum() if ctx.needs_input_grad[2] else None, None


pointwise.register_autograd(_backward, setup_context=_keep)


def in_chunks(function: Function, size: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Two results of a pointwise function of tensors of one shape: a chunk stays in the cache through all its ops."""
    given = aligned(*tensors)
    results = torch.empty_like(given[0]), torch.empty_like(given[1])
    # Detached: a compiler looks at what its inputs are views of, and would warn of gradients there.
    for chunk in zip(*(flat(x.detach()).split(size) for x in (*given, *results)), strict=True):
        for out, value in zip(chunk[-2:], function(*chunk[:-2]), strict=True):
            out.copy_(value)
    return results


# --- rules as modules ------------------------------------------------------------------------------------


class Pointwise(nn.Module):
    """A rule that acts on each entry alone, traced, and its derivative; shared by all layers of all networks."""

    def __init__(self, graph: fx.GraphModule, differentiate: Callable[[], fx.GraphModule]) -> None:
        super().__init__()
        self.graph, self.formula, self._differentiate = graph, Traced(graph), differentiate
        self.key = hashlib.sha256(graph.code.encode()).hexdigest()[:16]
        self.few = len(graph.graph.nodes) <= FEW

    @functools.cached_property
    def derivative(self) -> Traced:
        """Traced in a thread of its own, because inside an op there is no autograd."""
        with ThreadPoolExecutor(1) as aside:
            return Traced(aside.submit(self._differentiate).result())

    def forward(self, mean: Tensor, var: Tensor, log_alpha: Tensor) -> tuple[Tensor, Tensor]:
        fused = torch.compiler.is_compiling() and mean.device.type == "cpu" and self.few
        if fused or torch.compiler.is_exporting():
            return self.graph(mean, var * log_alpha.exp())
        if mean.shape != var.shape:
            mean, var = torch.broadcast_tensors(mean, var)
        inputs = *aligned(mean, var), log_alpha
        return self.formula(*inputs) if direct(*inputs) else torch.ops.varprop.pointwise(*inputs, self.key)

    def __deepcopy__(self, memo: dict[int, Any]) -> Pointwise:
        return self  # it holds no tensors


RULES: dict[str, Pointwise] = {}
"""Traced rules by their keys: the op has nothing else to find them by."""
TRACED: dict[tuple[Any, ...], Pointwise | None] = {}
"""And by the call that was traced, which takes a second: rules are values, so it serves all networks."""


def trace(rule: Callable[..., Any], dtype: torch.dtype, *args: Any, **kwargs: Any) -> Pointwise | None:
    """A function of moments as a module; None unless every op of it is pointwise, so that it holds for any shape."""
    call = rule, dtype, repr(args), repr(sorted(kwargs.items()))
    if call not in TRACED:
        graph = _trace(lambda x: rule(x, *args, **kwargs), dtype)
        differentiate = functools.partial(_differentiated, rule, dtype, args, kwargs)
        module = None if graph is None else Pointwise(graph, differentiate)
        TRACED[call] = module and RULES.setdefault(module.key, module)
    return TRACED[call]


def moments_of(rule: Callable[[Moments], Any], x: Moments) -> Moments:
    """What a pointwise rule makes of ``x``, as networks run it."""
    module = trace(rule, x.mean.dtype)
    if module is None:
        raise RuleError("this rule is not pointwise")
    return Moments(*module(*x, torch.zeros((), dtype=x.mean.dtype, device=x.mean.device)))


def _trace(function: Callable[[Moments], Any], dtype: torch.dtype) -> fx.GraphModule | None:
    example = torch.full((2, 3), 0.5, dtype=dtype)
    try:
        body = make_fx(lambda mean, var: tuple(function(Moments(mean, var))))(example, example.clone())
    except Exception:  # noqa: BLE001 (a rule for tensors of another rank, or one that fails: the walk will tell)
        return None
    ops = [node.target for node in body.graph.nodes if node.op not in ("placeholder", "output")]
    shape_free = all(op in SHAPE_FREE or torch.Tag.pointwise in getattr(op, "tags", ()) for op in ops)
    return body if shape_free else None
