"""Values that a forward reads from its inputs, ``if mask.sum() > 1`` or ``ids[mask]``: a graph holds for those it saw.

The model is run once on the caller's inputs, and what it reads is recorded. While it is captured it reads the same
again; each value is guarded, so that every later call is asked whether it still has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from varprop.errors import CaptureError
from varprop.graph.annotations import guard

READS = {Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.tolist}
SIZED = {
    *(torch.nn.functional.interpolate, torch.nn.functional.pad, torch.zeros, torch.ones, torch.full, torch.arange),
    *(Tensor.view, Tensor.reshape, Tensor.expand, Tensor.repeat, Tensor.new_zeros, Tensor.new_ones, torch.multinomial),
}
UNIQUE = {torch.unique, Tensor.unique}
REASON = "forward reads a value"


class ValueReads(TorchFunctionMode):
    """While open, every number that is read from a tensor, and every size that depends on entries, is recorded.

    Given what was ``recorded``, forward reads the same again, in the same order, and each value is guarded.
    """

    def __init__(self, recorded: list[Any] | None = None) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.recorded = None if recorded is None else iter(recorded)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self._numbers_for(function, (args, kwargs or {}))
        if function in READS:
            return self._read(args[0], function)
        if function in UNIQUE and len(args) == 1 and _is_plain(kwargs):
            return self.__torch_function__(Tensor.__getitem__, (), _sorted_and_new(args[0]))
        masks = _masks(function, args)
        if function in (torch.multinomial, Tensor.multinomial):
            return _most_likely(*args, **kwargs)
        if not masks:
            return function(*args, **kwargs)
        places = {id(mask): self._places(mask) for mask in masks}
        if function is Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            spread = [places.get(id(item), (item,)) for item in index]
            return args[0][tuple(part for parts in spread for part in parts)]
        (found,) = places.values()
        if function in (torch.masked_select, Tensor.masked_select):
            return args[0].expand(masks[0].shape)[found]
        return found if function is torch.where or kwargs.get("as_tuple", False) else torch.stack(found, 1)

    def _read(self, x: Tensor, function: Callable[[Tensor], Any] = Tensor.item) -> Any:
        if self.recorded is None:
            self.seen.append(function(x))
            return self.seen[-1]
        try:
            value = next(self.recorded)
        except StopIteration:
            raise CaptureError("its forward does not read the same values twice") from None
        for index, entry in enumerate(torch.tensor(value).flatten().tolist()):
            guard(x.reshape(-1)[index], float(entry), REASON)
        return value

    def _places(self, mask: Tensor) -> tuple[Tensor, ...]:
        """Where its entries are true."""
        return torch.nonzero_static(mask, size=self._read(mask.count_nonzero())).unbind(1)

    def _numbers_for(self, function: Any, arguments: Any) -> Any:
        """Sizes given as tensors become numbers, which torch reads from them without a word."""

        def number(x: Any) -> Any:
            is_size = isinstance(x, Tensor) and x.ndim == 0 and not x.is_floating_point() and x.dtype != torch.bool
            return self._read(x) if is_size else x

        return tree_map(number, arguments) if function in SIZED else arguments


def _masks(function: Any, args: Any) -> list[Tensor]:
    """The tensors whose true entries decide about the size of the result."""
    if function in (torch.nonzero, Tensor.nonzero) or (function is torch.where and len(args) == 1):
        return [args[0]]
    if function in (torch.masked_select, Tensor.masked_select):
        return [args[1]]
    if function is Tensor.__getitem__:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return [item for item in index if isinstance(item, Tensor) and item.dtype == torch.bool]
    return []


def _is_plain(options: dict[str, Any]) -> bool:
    more = options.get("return_inverse") or options.get("return_counts")
    return not more and options.get("dim") is None


def _sorted_and_new(x: Tensor) -> tuple[Tensor, Tensor]:
    """The entries in order, and which of them come for the first time: together, what ``unique`` returns."""
    ordered = x.flatten().sort().values
    return ordered, torch.cat([torch.ones_like(ordered[:1], dtype=torch.bool), ordered[1:] != ordered[:-1]])


def _most_likely(weights: Tensor, count: int, replacement: bool = False, **_: Any) -> Tensor:
    """In place of random draws. Where the output depends on them, comparing graph and model will tell."""
    if replacement:
        return weights.argmax(-1, keepdim=True).expand(*weights.shape[:-1], count)
    return weights.topk(count, -1).indices
