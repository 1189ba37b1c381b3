"""Several pointwise steps as one kernel: a norm with fixed statistics, a residual sum, an activation, a square."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from varprop.kernels import codegen
from varprop.kernels.custom_op import direct
from varprop.kernels.launch import CHANNELS_LAST, Launcher, aligned, usable

aten = torch.ops.aten

BLOCK = 1024  # entries of a program
LARGEST = 1 << 31  # entries that 32 bits count


class Region(nn.Module):
    """Steps of a flat graph that treat each entry alone, of tensors of one shape; beside these, it takes numbers,
    vectors along one dimension, and tensors over all but that; of its results, some may be wanted side by side. Where
    there is no kernel, or a gradient is asked for, the steps run one by one.
    """

    def __init__(self, steps: fx.GraphModule) -> None:
        super().__init__()
        self.steps, self.body = steps, written_out(steps)
        results = results_of(steps.graph)
        self.dtypes = [node.meta["val"].dtype for node in results]
        self.widths = tuple(len(_parts(node)) for node in results)
        self.alone = isinstance(steps.graph.output_node().args[0], fx.Node)  # one result, in no tuple
        self._launchers: dict[tuple[str, ...], Launcher | None] = {}

    def forward(self, *tensors: Tensor) -> Any:
        results = self.launch(*tensors) if direct(*tensors) else None
        if results is None:
            return self.steps(*tensors)
        return results[0] if self.alone else results

    def launch(self, *tensors: Tensor) -> tuple[Tensor, ...] | None:
        """By the kernel, if there is one for tensors that lie in memory like these."""
        shape = torch.broadcast_shapes(*(x.shape for x in tensors))
        if not 0 < math.prod(shape) * max(self.widths) < LARGEST or not usable(*tensors):
            return None
        place, kinds = _kinds(shape, *(x.shape for x in tensors))
        if "full" not in kinds:
            return None
        dense = iter(aligned(*(x for x, kind in zip(tensors, kinds, strict=True) if kind == "full")))
        given = [next(dense) if kind == "full" else x.contiguous() for x, kind in zip(tensors, kinds, strict=True)]
        first = given[kinds.index("full")]
        if place != 1 and (not first.is_contiguous() or max(self.widths) > 1):
            return None
        launcher = self._launcher(kinds)
        if launcher is None:
            return None
        inner = math.prod(shape[place + 1 :]) if first.is_contiguous() else 1
        results = tuple(_empty(first, *each) for each in zip(self.dtypes, self.widths, strict=True))
        arguments = *given, *results, first.numel(), inner, shape[place]
        return launcher.launch((-(-first.numel() // BLOCK),), arguments, results, BLOCK=BLOCK)

    def _launcher(self, kinds: tuple[str, ...]) -> Launcher | None:
        if kinds not in self._launchers:
            try:
                self._launchers[kinds] = _launcher(codegen.emit_region(self.body, kinds, self.widths))
            except KeyError:  # a rule whose ops Triton does not have
                self._launchers[kinds] = None
        return self._launchers[kinds]

    def __deepcopy__(self, memo: dict[int, Any]) -> Region:
        return Region(self.steps)  # it holds no tensors


@functools.cache
def _launcher(source: str) -> Launcher:
    return Launcher(lambda: source)


@functools.cache
def _kinds(shape: torch.Size, *given: torch.Size) -> tuple[int, tuple[str, ...]]:
    """A dimension along which vectors lie, and how tensors of the given shapes are read for results of this one; if
    there is none, no kinds.
    """
    for place in sorted(range(len(shape)), key=lambda d: d != 1):  # channels first
        kinds = tuple(_kind(each, shape, place) for each in given)
        if "" not in kinds:
            return place, kinds
    return 0, ()


def _kind(given: torch.Size, shape: torch.Size, place: int) -> str:
    if given == shape:
        return "full"
    sizes = [1] * (len(shape) - len(given)) + [*given]
    along = sizes.pop(place)
    if all(size == 1 for size in sizes):
        return "number" if along == 1 else "vector"
    return "row" if along == 1 and sizes == [*shape[:place], *shape[place + 1 :]] else ""


def written_out(steps: fx.GraphModule) -> fx.GraphModule:
    """The steps with the formulas of activations in them."""
    graph, values = fx.Graph(), dict[fx.Node, Any]()
    for node in steps.graph.nodes:
        if node.op == "call_module":
            mean, var, log_alpha = (values[x] for x in node.args)
            scaled = graph.call_function(aten.mul.Tensor, (var, graph.call_function(aten.exp.default, (log_alpha,))))
            scaled.meta["val"] = var.meta["val"]
            rule: Any = steps.get_submodule(node.target)
            inner = dict(zip(rule.graph.graph.find_nodes(op="placeholder"), (mean, scaled), strict=True))
            values[node] = graph.graph_copy(rule.graph.graph, inner)
        elif node.target is operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
        elif node.op == "output":
            graph.output(tuple(values[part] for result in results_of(steps.graph) for part in _parts(result)))
        elif node.target is not aten.cat.default:
            values[node] = graph.node_copy(node, values.__getitem__)
    return fx.GraphModule({}, graph)


def _empty(like: Tensor, dtype: torch.dtype, width: int) -> Tensor:
    """For so many results side by side, in the layout of one."""
    if width == 1:
        return torch.empty_like(like, dtype=dtype)
    layout = torch.contiguous_format if like.is_contiguous() else CHANNELS_LAST[like.ndim][0]
    shape = like.shape[0], width * like.shape[1], *like.shape[2:]
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=layout)


def _parts(result: fx.Node) -> list[Any]:
    """What lies side by side in it."""
    side_by_side: Any = result.args[0] if result.target is aten.cat.default else (result,)
    return [*side_by_side]


def results_of(graph: fx.Graph) -> list[fx.Node]:
    found: Any = graph.output_node().args[0]
    return [found] if isinstance(found, fx.Node) else list(found)
