"""Runs of a flat graph: with its tensors at hand, or with its tensors far away, on another device or in a file.

On a CUDA device, a call that comes again and again is recorded as a CUDA graph: one launch in the place of hundreds.
Small batches leave a GPU waiting for Python; what it computes is the same. Tensors of the network are read where they
lie, so changes in place are seen; one that is replaced ends the recording.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_map

from varprop.kernels.custom_op import direct
from varprop.kernels.launch import say

WARMUP_CALLS = 3  # calls of the same sizes: kernels are compiled and chosen by then
MAX_RECORDINGS, MAX_COUNTED = 8, 1024  # recordings of a graph, the latest used, and sizes that are counted
MEMORY_SHARE = 1 / 16  # of a device's memory that one recording may keep
ENV_VARIABLE = "VARPROP_CUDA_GRAPHS"


@dataclass
class Recording:
    """A CUDA graph, where its inputs are read, what it leaves, and where the tensors of the network lay."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    results: Any
    pointers: list[int]
    held: Sequence[Tensor]  # so that their memory is not given to others

    def __call__(self, leaves: Sequence[Tensor]) -> Any:
        for place, leaf in zip(self.inputs, leaves, strict=True):
            place.copy_(leaf)
        self.graph.replay()
        return tree_map(torch.clone, self.results)


class Runner:
    """Runs the graph of a module; its tensors are read where the module keeps them, so they may be replaced there.

    To look them up by path in every call would cost more than small ops.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        graph, values = fx.Graph(), dict[fx.Node, fx.Node]()
        tensors = module.graph.find_nodes(op="get_attr")
        for node in (*module.graph.find_nodes(op="placeholder"), *tensors):
            values[node] = graph.placeholder(node.name)
        graph.output(graph.graph_copy(module.graph, values))
        self.function: Callable[..., Any] = fx.GraphModule(module, graph)
        self.places = [_place(module, str(node.target)) for node in tensors]
        self._seen: Counter[Any] = Counter()
        self._recordings: OrderedDict[Any, Recording] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *leaves: Tensor) -> Any:
        tensors = [owner[leaf] for owner, leaf in self.places]
        if not _recordable(leaves, tensors if torch.is_grad_enabled() else ()):  # hundreds, and looked at when recorded
            return self.function(*leaves, *tensors)
        stream = torch.cuda.current_stream(leaves[0].device)
        call = stream.cuda_stream, tuple((x.shape, x.stride(), x.dtype) for x in leaves)
        with self._lock:
            recording = self._recordings.get(call)
            if recording is not None:
                if recording.pointers == _pointers(tensors):
                    self._recordings.move_to_end(call)
                    return recording(leaves)
                self._recordings.clear()
                self._seen.clear()
            if len(self._seen) > MAX_COUNTED:
                self._seen.clear()
            self._seen[call] += 1
            if self._seen[call] == WARMUP_CALLS:
                self._record(call, leaves, tensors)
        return self.function(*leaves, *tensors)

    def _record(self, call: Any, leaves: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        device = leaves[0].device
        if _reads_values(self.function) or not (direct(*tensors) and all(x.is_cuda for x in tensors)):
            return
        before = torch.cuda.memory_reserved(device)
        graph, inputs = torch.cuda.CUDAGraph(), [leaf.clone() for leaf in leaves]
        pool = next((known.graph.pool() for known in self._recordings.values()), None)
        with _undone(device):
            # Other threads may go on using the device.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                results = self.function(*inputs, *tensors)
            memory = torch.cuda.get_device_properties(device).total_memory
            if torch.cuda.memory_reserved(device) - before <= MEMORY_SHARE * memory:
                self._recordings[call] = Recording(graph, inputs, results, _pointers(tensors), tensors)
        if len(self._recordings) > MAX_RECORDINGS:
            self._seen.pop(self._recordings.popitem(last=False)[0], None)


@contextlib.contextmanager
def _undone(device: torch.device) -> Iterator[None]:
    """If a recording fails, leave things as they were: slower, but not wrong. Torch forgets stream and generator."""
    stream, generator = torch.cuda.current_stream(device), torch.cuda.default_generators[device.index]
    state = generator.clone_state()
    try:
        with torch.cuda.device(device):
            yield
    except Exception as error:  # noqa: BLE001 (an op that cannot be recorded, or no memory)
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(state)  # else it refuses to draw
        say(f"a network is not run as a CUDA graph, which makes small batches slower: {error!r}"[:300])


def _reads_values(function: Callable[..., Any]) -> bool:
    """Does its graph wait for the device, to see a number or a size there? That cannot be recorded."""
    nodes = function.graph.nodes if isinstance(function, fx.GraphModule) else ()
    waits = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return any(waits & set(getattr(node.target, "tags", ())) for node in nodes)


def _recordable(leaves: Sequence[Tensor], tensors: Sequence[Tensor]) -> bool:
    """On one CUDA device, without autograd, modes of torch or a recording of the caller's own."""
    return (
        bool(leaves)
        and all(x.is_cuda and x.device == leaves[0].device for x in leaves)
        and os.environ.get(ENV_VARIABLE) != "0"
        and not torch.is_autocast_enabled("cuda")
        and not torch.cuda.is_current_stream_capturing()
        and not torch._C._len_torch_dispatch_stack()
        and direct(*leaves, *tensors)
    )


def _pointers(tensors: Sequence[Tensor]) -> list[int]:
    return [x.data_ptr() for x in tensors]


def _place(module: fx.GraphModule, path: str) -> tuple[dict[str, Any], str]:
    parent, _, leaf = path.rpartition(".")
    owner = module.get_submodule(parent)
    return (owner._parameters if leaf in owner._parameters else owner._buffers), leaf


# --- tensors elsewhere ---------------------------------------------------------------------------


def offload(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """The graph of a module for a device where its tensors are not.

    Each comes there when it is first used and is let go after its last use, so that of the weights there is a layer at
    a time. Results stay there.
    """
    graph, values = fx.Graph(), dict[fx.Node, fx.Node]()

    def bring(node: fx.Node) -> None:
        values[node] = graph.call_function(fetch, (graph.node_copy(node), device))

    for node in module.graph.nodes:
        for source in node.all_input_nodes:
            if source not in values:
                bring(source)
        if node.op == "placeholder":
            bring(node)
        elif node.op != "get_attr":
            values[node] = new = graph.node_copy(node, values.__getitem__)
            # Devices that were captured are those of the tensors.
            new.args, new.kwargs = map_aggregate(
                (new.args, new.kwargs), lambda x: device if isinstance(x, torch.device) else x
            )
    return fx.GraphModule(module, graph)


def fetch(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.to(device)
