"""Parts of a graph are traced once and written wherever they recur: a large model is a few layers, many times."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from varprop.errors import RuleError
from varprop.graph.captured import keep_constant
from varprop.graph.registry import Registry

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Step:
    """A function of trees of tensors as a graph, whose output is the leaves of its result."""

    graph: fx.Graph
    note: Any
    structure: TreeSpec


@dataclass
class TraceCache:
    """Writes functions of nodes into a graph. Each is traced once for all arguments of the same structure, sizes and
    dtypes; the values in the nodes' ``meta`` tell these.
    """

    graph: fx.Graph
    mode: FakeTensorMode
    constants: Registry
    known: dict[Any, Step] = field(default_factory=dict)
    sizes: dict[str, fx.Node] = field(default_factory=dict)  # nodes by the number they stand for
    outlines: dict[int, str] = field(default_factory=dict)

    def write(self, key: str, function: Callable[..., tuple[Any, Any]], *args: Any) -> tuple[Any, Any]:
        """What ``function(*args)`` returns, a note and a tree of nodes. ``key`` names the function."""
        leaves, structure = tree_flatten(args)
        name = key, structure, tuple(map(self._outline, leaves))
        if name not in self.known:
            self.known[name] = self._trace(function, leaves, structure)
        step = self.known[name]
        nodes = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
        values = dict(zip(step.graph.find_nodes(op="placeholder"), nodes, strict=True))
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

    def _trace(self, function: Callable[..., tuple[Any, Any]], leaves: list[Any], structure: TreeSpec) -> Step:
        note: list[Any] = []

        def run(*tensors: Any) -> list[Any]:
            found = iter(tensors)
            args = tree_unflatten([next(found) if isinstance(x, fx.Node) else x for x in leaves], structure)
            first, result = function(*args)
            results, outer = tree_flatten(result)
            note.extend((first, outer))
            return results

        with self.mode:
            # Tracing tells tensors apart by identity.
            examples = [_fake_copy(x.meta["val"]) for x in leaves if isinstance(x, fx.Node)]
            traced = make_fx(run, pre_dispatch=True)(*examples)
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
    if asked:
        raise RuleError(f"a rule holds for some sizes only: {asked[0].expr}")
