"""Tensors kept under dotted paths, as nested modules, so that ``.to()`` and ``state_dict()`` see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor, fx, nn

REGISTRY_NAMES = ("mean", "var", "buffer", "scale", "constant", "folded", "pointwise")


class Registry(nn.Module):
    """A map from dotted paths to tensors: parameters stay parameters, other tensors become buffers.

    Its methods have no plain names, because those are the model's: modules may be called ``items`` or ``set``.
    """

    def __init__(self, tensors: Iterable[tuple[str, Tensor]] = (), *, persistent: bool = True) -> None:
        super().__init__()
        self._persistent = persistent
        for path, tensor in tensors:
            self[path] = tensor

    def __setitem__(self, path: str, tensor: Tensor) -> None:
        *parents, leaf = path.split(".")
        owner: nn.Module = self
        for name in parents:
            if name not in owner._modules:
                owner.add_module(name, nn.Module())
            owner = owner._modules[name]  # type: ignore[assignment]
        if isinstance(tensor, nn.Parameter):
            owner.register_parameter(leaf, tensor)
        else:
            owner.register_buffer(leaf, tensor, persistent=self._persistent)

    def __repr__(self) -> str:
        return f"Registry({len(list(self))} tensors)"

    def __getitem__(self, path: str) -> Tensor:
        parent, _, leaf = path.rpartition(".")
        return getattr(self.get_submodule(parent), leaf)

    def __contains__(self, path: str) -> bool:
        parent, _, leaf = path.rpartition(".")
        try:
            owner = self.get_submodule(parent)
        except AttributeError:
            return False
        return leaf in owner._buffers or leaf in owner._parameters

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.named_parameters(remove_duplicate=False)
        yield from self.named_buffers(remove_duplicate=False)


class Registries(nn.Module):
    """What the graphs of a network refer to by name; a network is one of these.

    ``mean`` (every parameter), ``var`` (the random ones), ``buffer`` and ``scale`` (log α of each scale point). Not
    saved, and added as calls are compiled: ``constant`` (tensors that the model or a rule creates), ``folded``
    (products of weights alone) and ``pointwise`` (rules that all layers share).
    """

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.var, self.buffer, self.scale = Registry(), Registry(), Registry(), Registry()
        self.scale_names: list[str] = []  # in the order of the graphs
        self.clear()

    def clear(self) -> None:
        """Empty what compiling a call fills."""
        self.constant, self.folded = Registry(persistent=False), Registry(persistent=False)
        self.recipes: list[fx.Graph] = []  # how folded tensors are computed
        self.pointwise = nn.ModuleDict()

    def add_scales(self, names: Iterable[str]) -> None:
        """A scale of α = 1 for each name that has none."""
        for name in names:
            if name not in self.scale_names:
                scale = nn.Parameter(torch.zeros((), dtype=self.dtype, device=self.device), requires_grad=False)
                self.scale[scale_path(name)] = scale
                self.scale_names.append(name)

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in _tensors(self)), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        floats = (tensor.dtype for _, tensor in self.mean if tensor.is_floating_point())
        return next(floats, torch.get_default_dtype())


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """All of them, one by one: ``parameters()`` looks at hundreds of modules before it gives the first."""
    yield from (x for x in chain(module._parameters.values(), module._buffers.values()) if x is not None)
    for child in module._modules.values():
        if child is not None:
            yield from _tensors(child)


def scale_path(name: str) -> str:
    """Where a scale is kept. A leaf of its own, because one module's path may be the start of another's."""
    path, _, count = name.partition("#")
    leaf = f"log_alpha_{count}" if count else "log_alpha"
    return f"{path}.{leaf}" if path else leaf
