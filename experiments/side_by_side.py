"""Several networks of one architecture, run as one: small networks leave a large device idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from experiments.data.examples import map_inputs
from varprop.graph.output import run


class SideBySide:
    """A row of trainable weights for each network; what they do not train they share, from the first."""

    def __init__(self, models: Sequence[nn.Module], device: torch.device | str) -> None:
        self.model = models[0].to(device).eval()
        trained = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self.shapes = {name: p.shape for name, p in trained}
        self.sizes = [p.numel() for _, p in trained]

    def row(self, model: nn.Module) -> Tensor:
        """The weights of one network."""
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1).float() for name in self.shapes])

    def named(self, rows: Tensor) -> dict[str, Tensor]:
        """The entries of one row or of several by parameter."""
        pairs = zip(self.shapes.items(), rows.split(self.sizes, -1), strict=True)
        return {name: part.unflatten(-1, s) if s else part.squeeze(-1) for (name, s), part in pairs}

    def __call__(self, rows: Tensor, inputs: Any) -> Tensor:
        """The logits [networks, batch, classes] of inputs [networks, batch, …]."""
        if len(rows) == 1:  # and any model will do, whether vmap can take it or not
            return self._run(self.named(rows[0]), map_inputs(inputs, lambda x: x[0]))[None]
        return torch.func.vmap(self._run)(self.named(rows), inputs)

    def _run(self, weights: dict[str, Tensor], inputs: Any) -> Tensor:
        return run(self.model, weights, *as_call(inputs), None)


def as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments by position and by name."""
    return ((), inputs) if isinstance(inputs, dict) else ((inputs,), {})
