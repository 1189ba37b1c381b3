"""A training step's work on a GPU as one CUDA graph: hundreds of launches would take longer than what they do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

WARM_UP = 3  # calls before recording, so that everything is compiled and tuned


class Gradients:
    """``function(*batch)``, whose sum is differentiated: returns it, and leaves gradients in the parameters.

    The batch may be nested; its tensors must keep their shapes. On a CPU the function is simply called.
    """

    def __init__(self, function: Callable[..., Tensor], parameters: Sequence[nn.Parameter]) -> None:
        self.function, self.parameters = function, parameters
        self._plain = parameters[0].device.type != "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._slots: list[Tensor] = []

    def __call__(self, *batch: Any) -> Tensor:
        if self._graph is None and not self._plain:
            self._record(batch)
        if self._graph is None:
            return self._compute(*batch)
        torch._foreach_copy_(self._slots, pytree.tree_leaves(batch))
        self._graph.replay()
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._result

    def _compute(self, *batch: Any) -> Tensor:
        result = self.function(*batch)
        result.sum().backward()
        return result.detach()

    def _record(self, batch: Any) -> None:
        leaves, structure = pytree.tree_flatten(batch)
        self._slots = [leaf.clone() for leaf in leaves]
        static = pytree.tree_unflatten(self._slots, structure)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # a stream of its own, as recording wants it
            for _ in range(WARM_UP):
                self._clear()
                self._compute(*static)
        torch.cuda.current_stream().wait_stream(stream)
        self._clear()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._result = self._compute(*static)
        except RuntimeError as error:
            self._plain = True
            reason = str(error).partition("\n")[0]
            warnings.warn(f"no CUDA graph of a training step, which is slower but right: {reason}", stacklevel=2)
            self._clear()
            return
        self._gradients = [parameter.grad for parameter in self.parameters]
        self._graph = graph

    def _clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
