"""Parts of a graph are traced once and written wherever they recur: a large model is a few layers, many times."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from torch.utils._sympy.functions import Max, Min

from varprop.errors import RuleError
from varprop.graph.captured import keep_constant
from varprop.graph.registry import Registry
from varprop.graph.term_counts import (
    SYMBOLIC,
    Symbol,
    closed,
    forget_guards,
    layout,
    new_count,
    term_groups,
    with_terms,
)

Function = Callable[..., tuple[Any, Any]]
"""Of trees of nodes: a note, and a tree of results."""


@dataclass(frozen=True)
class Step:
    """A function of trees of tensors as a graph, whose output is the leaves of its result."""

    graph: fx.Graph
    note: Any
    structure: TreeSpec


@dataclass
class TraceCache:
    """Writes functions of nodes into a graph. Each is traced once for all arguments of the same structure, sizes and
    dtypes; the values in the nodes' ``meta`` tell these. Factored variances may have other numbers of terms.
    """

    graph: fx.Graph
    mode: FakeTensorMode
    constants: Registry
    known: dict[Any, Step] = field(default_factory=dict)
    open: dict[Any, Any] = field(default_factory=dict)  # steps of any numbers of terms, with these; None: seen once
    closed: dict[Any, Tensor] = field(default_factory=dict)
    sizes: dict[str, fx.Node] = field(default_factory=dict)  # nodes by the number they stand for
    outlines: dict[int, str] = field(default_factory=dict)

    def write(self, key: str, function: Function, *args: Any) -> tuple[Any, Any]:
        """What ``function(*args)`` returns, a note and a tree of nodes. ``key`` names the function."""
        leaves, structure = tree_flatten(args)
        name = key, structure, tuple(map(self._outline, leaves))
        if name not in self.known:
            examples = [leaf.meta["val"] for leaf in leaves if isinstance(leaf, fx.Node)]
            self.known[name] = self._of_any_count(key, function, args) or self._trace(function, args, examples)
        step = self.known[name]
        nodes = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
        values: dict[fx.Node, Any] = dict(zip(step.graph.find_nodes(op="placeholder"), nodes, strict=True))
        for node in step.graph.nodes:
            if node.op not in ("placeholder", "output"):
                values[node] = self.copy(node, values)
        results: Any = fx.map_arg(step.graph.output_node().args[0], values.__getitem__)
        return step.note, tree_unflatten(results, step.structure)

    def copy(self, node: fx.Node, values: dict[fx.Node, Any]) -> fx.Node:
        """The same op on other nodes; one that stands for a size which is there already is not written again."""
        value = node.meta.get("val")
        size = str(value) if isinstance(value, SYMBOLIC) else ""
        if size in self.sizes:
            return self.sizes[size]
        new = self.graph.node_copy(node, values.__getitem__)
        if size:
            self.sizes[size] = new
        return new

    def _of_any_count(self, key: str, function: Function, args: Any) -> Step | None:
        """From a trace for any number of terms, which is made when a second number of them comes; None if the arguments
        have none, or if the function asks how many there are.
        """
        (groups, counts), env = term_groups(args), self.mode.shape_env
        if not groups or env is None:
            return None
        leaves, structure = tree_flatten(args)
        with self.mode:
            outlines = [(groups[x], layout(x.meta["val"])) if x in groups else self._outline(x) for x in leaves]
            name = key, structure, *outlines
            if any(isinstance(outline, tuple) and not outline[1] for outline in outlines):
                return None
            if name not in self.open:
                self.open[name] = None
                return None
            if self.open[name] is None:
                self.open[name] = self._trace_open(env, function, args, groups, counts)
            step, symbols = self.open[name]
            if step is None:
                return None
            return Step(closed(step.graph, symbols, counts, self.closed), step.note, step.structure)

    def _trace_open(
        self, env: ShapeEnv, function: Function, args: Any, groups: dict[fx.Node, int], counts: list[int]
    ) -> tuple[Step | None, list[Symbol]]:
        first, symbols, step = len(env.guards), list[Symbol](), None
        nodes = [leaf for leaf in tree_leaves(args) if isinstance(leaf, fx.Node)]
        try:
            free = [new_count(env, count) for count in counts]
            symbols = [count.node.expr for count in free]  # by what is asked of it, a number may become another
            values = [x.meta["val"] if x not in groups else with_terms(x.meta["val"], free[groups[x]]) for x in nodes]
            step = self._trace(function, args, values)
        except Exception:  # noqa: BLE001 (for the number that there is, it is raised again, or not)
            pass
        return None if forget_guards(env, first, symbols) else step, symbols

    def _trace(self, function: Function, args: Any, values: list[Any]) -> Step:
        note: list[Any] = []
        leaves, structure = tree_flatten(args)

        def run(*tensors: Any) -> list[Any]:
            found = iter(tensors)
            args = tree_unflatten([next(found) if isinstance(x, fx.Node) else x for x in leaves], structure)
            first, result = function(*args)
            results, outer = tree_flatten(result)
            note.extend((first, outer))
            return results

        with self.mode:
            # Tracing tells tensors apart by identity.
            traced = make_fx(run, pre_dispatch=True)(*map(_fake_copy, values))
        for node in traced.graph.find_nodes(op="get_attr"):  # made by a rule, such as the nodes of a quadrature
            node.target = f"constant.{keep_constant(getattr(traced, node.target), self.constants)}"
        return Step(traced.graph, *note)

    def _outline(self, leaf: Any) -> str:
        if not isinstance(leaf, fx.Node):
            return repr(leaf)
        value = leaf.meta["val"]
        if not isinstance(value, Tensor):
            return str(value)
        if id(value) not in self.outlines:
            sizes = [*map(str, value.shape)], [*map(str, value.stride())]
            self.outlines[id(value)] = f"{value.dtype} {value.device} {sizes}"
        return self.outlines[id(value)]


def _fake_copy(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode:
    """The mode in which the values of a captured graph were made."""
    return detect_fake_mode([node.meta.get("val") for node in graph.nodes]) or FakeTensorMode()


@contextlib.contextmanager
def require_free_sizes(mode: FakeTensorMode) -> Iterator[None]:
    """Raise if what is traced meanwhile holds for some of the sizes only that capture left free."""
    env = mode.shape_env
    if env is None:
        yield
        return
    before, frozen, env.frozen = len(env.guards), env.frozen, False
    try:
        yield
    finally:
        env.frozen = frozen
    # By which of its kernels torch convolves depends on sizes, what it computes does not.
    asked = [guard for guard in env.guards[before:] if "fake_impls.py" not in str(guard.sloc.framework_loc)]
    if asked := [guard for guard in asked if not _holds(guard.expr)]:
        raise RuleError(f"a rule holds for some sizes only: {asked[0].expr}")


def _holds(expr: Any) -> bool:
    """For all sizes above 0? Torch leaves open which of 8 n and 16 n is smaller."""
    positive = {symbol: sympy.Symbol(symbol.name, integer=True, positive=True) for symbol in expr.free_symbols}
    return expr.replace(Min, sympy.Min).replace(Max, sympy.Max).xreplace(positive) == sympy.true
