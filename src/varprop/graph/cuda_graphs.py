"""A call that comes again and again is recorded as a CUDA graph: one launch in the place of hundreds.

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
from torch.utils._pytree import tree_map

from varprop.kernels.launch import say
from varprop.kernels.recompute import direct

WARMUP_CALLS = 3  # calls of the same sizes: kernels are compiled and chosen by then
MAX_RECORDINGS, MAX_COUNTED = 8, 1024  # recordings of a graph, the latest used, and sizes that are counted
MEMORY_SHARE = 1 / 16  # of a device's memory that one recording may keep
ENV_VARIABLE = "VARPROP_CUDA_GRAPHS"

Function = Callable[..., Any]


@dataclass
class Recording:
    """A CUDA graph, where its inputs are read, what it leaves, and where the tensors of the network lay."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    results: Any
    places: list[int]
    held: Sequence[Tensor]  # so that their memory is not given to others

    def __call__(self, leaves: Sequence[Tensor]) -> Any:
        for place, leaf in zip(self.inputs, leaves, strict=True):
            place.copy_(leaf)
        self.graph.replay()
        return tree_map(torch.clone, self.results)


class Replay:
    """Calls a function of a call's inputs and a network's tensors, by a recording where there is one."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._seen: Counter[Any] = Counter()
        self._recordings: OrderedDict[Any, Recording] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, leaves: Sequence[Tensor], tensors: Sequence[Tensor]) -> Any:
        if not _recordable(leaves, tensors if torch.is_grad_enabled() else ()):  # hundreds, and looked at when recorded
            return self.function(*leaves, *tensors)
        stream = torch.cuda.current_stream(leaves[0].device)
        call = stream.cuda_stream, tuple((x.shape, x.stride(), x.dtype) for x in leaves)
        with self._lock:
            recording = self._recordings.get(call)
            if recording is not None:
                if recording.places == _places(tensors):
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
            if torch.cuda.memory_reserved(device) - before <= MEMORY_SHARE * _memory(device):
                self._recordings[call] = Recording(graph, inputs, results, _places(tensors), tensors)
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


def _reads_values(function: Function) -> bool:
    """Does its graph wait for the device, to see a number or a size there? That cannot be recorded."""
    nodes = function.graph.nodes if isinstance(function, fx.GraphModule) else ()
    waits = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return any(waits & set(getattr(node.target, "tags", ())) for node in nodes)


def _memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)


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


def _places(tensors: Sequence[Tensor]) -> list[int]:
    return [x.data_ptr() for x in tensors]
