"""Tensors kept under dotted paths, as nested modules, so that ``.to()`` and ``state_dict()`` see them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


class Registry(nn.Module):
    """A map from dotted paths to tensors: parameters stay parameters, other tensors become buffers."""

    def set(self, path: str, tensor: Tensor, *, persistent: bool = True) -> None:
        *parents, leaf = path.split(".")
        owner: nn.Module = self
        for name in parents:
            if name not in owner._modules:
                owner.add_module(name, nn.Module())
            owner = owner._modules[name]  # type: ignore[assignment]
        if isinstance(tensor, nn.Parameter):
            owner.register_parameter(leaf, tensor)
        else:
            owner.register_buffer(leaf, tensor, persistent=persistent)

    def __repr__(self) -> str:
        return f"Registry({len(self.tensors())} tensors)"

    def __getitem__(self, path: str) -> Tensor:
        *parents, leaf = path.split(".")
        owner: nn.Module = self
        for name in parents:
            owner = owner._modules[name]  # type: ignore[assignment]
        return getattr(owner, leaf)

    def __contains__(self, path: str) -> bool:
        *parents, leaf = path.split(".")
        owner: nn.Module | None = self
        for name in parents:
            owner = owner._modules.get(name) if owner is not None else None
        return owner is not None and (leaf in owner._buffers or leaf in owner._parameters)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.named_parameters(remove_duplicate=False)
        yield from self.named_buffers(remove_duplicate=False)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.items())
