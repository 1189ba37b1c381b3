"""Models in plain torch, and of peft and torch-geometric, for ``architectures.py``: small, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, dict[str, Any]]


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.layer = layer(8, 16, batch_first=True, **options)
        self.head = nn.Linear(32 if options.get("bidirectional") else 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Encoder(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.up, self.head = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        return self.head(torch.cat([skip, self.up(self.middle(skip))], 1))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tokens, self.channels = nn.LayerNorm(8), nn.Linear(6, 6), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.nn.functional.gelu(self.tokens(self.norm(x).mT)).mT
        return self.head((x + self.channels(x)).mean(1))


class Routed(nn.Module):
    """A mixture of experts with soft routing."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).softmax(-1)
        return self.head((torch.stack([expert(x) for expert in self.experts], -1) * gates.unsqueeze(-2)).sum(-1))


class Messages(nn.Module):
    """A graph network by hand: sums over neighbours by index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        summed = torch.zeros_like(x).index_add(0, edges[1], self.inner(x)[edges[0]])
        return self.head(torch.relu(summed + x))


def _volume() -> Made:
    layers = [nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4, 3)), {"x": torch.randn(2, 1, 4, 8, 8)}


def _activation(layer: nn.Module) -> Made:
    return nn.Sequential(nn.Linear(8, 32), layer, nn.Linear(32, 3)), {"x": torch.randn(2, 8)}


def _graph(kind: str, **options: Any) -> Made:
    from torch_geometric import nn as geometric

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = getattr(geometric, kind)(8, 16, 2, 3, **options)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.net(x, edges)

    return Graph(), {"x": torch.randn(6, 8), "edges": torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])}


def _lora(kind: str) -> Made:
    import peft
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=99, num_labels=3
    )
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["query", "value"])), {
        "input_ids": torch.randint(3, 90, (2, 12))
    }


def _sequence(model: nn.Module) -> Made:
    return model, {"x": torch.randn(2, 6, 16 if isinstance(model, Encoder) else 8)}


EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
MAKERS: dict[str, Callable[[], Made]] = {
    "lstm": lambda: _sequence(Recurrent(nn.LSTM)),
    "lstm, two layers, both ways": lambda: _sequence(Recurrent(nn.LSTM, num_layers=2, bidirectional=True)),
    "gru": lambda: _sequence(Recurrent(nn.GRU)),
    "rnn": lambda: _sequence(Recurrent(nn.RNN)),
    "transformer encoder": lambda: _sequence(Encoder()),
    "transformer encoder, norm first": lambda: _sequence(Encoder(norm_first=True, activation="gelu")),
    "u-net": lambda: (Unet(), {"x": torch.randn(2, 3, 16, 16)}),
    "3-d convolutions": _volume,
    "mlp-mixer": lambda: _sequence(Mixer()),
    "soft mixture of experts": lambda: (Routed(), {"x": torch.randn(2, 8)}),
    "message passing": lambda: (Messages(), {"x": torch.randn(4, 8), "edges": EDGES}),
    **{
        f"mlp, {type(layer).__name__}": lambda layer=layer: _activation(layer)
        for layer in (nn.ReLU(), nn.ELU(), nn.Mish(), nn.Softplus(), nn.Hardswish(), nn.Softshrink(), nn.PReLU())
    },
    "BERT with LoRA (peft)": lambda: _lora("Bert"),
    "RoBERTa with LoRA (peft)": lambda: _lora("Roberta"),
    **{
        f"{kind} (torch-geometric)": lambda kind=kind: _graph(kind)
        for kind in ("GCN", "GAT", "GraphSAGE", "GIN", "EdgeCNN")
    },
}
