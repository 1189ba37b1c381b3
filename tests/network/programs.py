"""Random networks: a program of instructions on a stack of activations, each of shape [batch, tokens, width]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

WIDTH, TOKENS = 4, 3
ACTIVATIONS = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "leaky": F.leaky_relu,
    "by hand": lambda x: x * torch.sigmoid(1.702 * x),
    "in place": lambda x: x.clone().relu_().mul_(0.5),
}
LAYERS = ("linear", "norm", "rms", "attention", "conv", "down and up", "shared", "tied")
PLAIN = ("scale", "shift", "cast", "turn", "halves", "mask", "roll", "flatten")
JOINS = ("add", "gate", "cat", "maximum", "scaled add")
ENDS = ("first token", "mean", "all")


class Program(nn.Module):
    """Runs its instructions: layers have weights of their own, unless they are shared or tied."""

    def __init__(self, instructions: list[tuple[str, str]], end: str) -> None:
        super().__init__()
        self.instructions, self.end = instructions, end
        self.shared, self.tied = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.layers = nn.ModuleDict(
            {str(i): _layer(name) for i, (kind, name) in enumerate(instructions) if kind == "layer"}
        )
        self.head = nn.Linear(WIDTH, 3)
        self.tied.weight = self.shared.weight

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        stack = [x if other is None else x + other[:, None]]
        for i, (kind, name) in enumerate(self.instructions):
            top = stack[-1]
            if kind == "layer":
                stack.append(self._apply_layer(str(i), name, top))
            elif kind == "activation":
                stack.append(ACTIVATIONS[name](top))
            elif kind == "plain":
                stack.append(_rearranged(name, top))
            else:
                stack.append(_joined(name, top, stack[max(0, len(stack) - 3)]))
        return self.head(_ended(self.end, stack[-1]))

    def _apply_layer(self, key: str, name: str, x: Tensor) -> Tensor:
        if name == "shared":
            return self.shared(torch.tanh(self.shared(x)))
        if name == "tied":
            return F.linear(self.shared(x), self.tied.weight.t())
        if name == "attention":
            query, value = self.layers[key][0](x), self.layers[key][1](x)
            return F.scaled_dot_product_attention(query, x, value)
        if name == "rms":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.layers[key].weight
        if name == "conv":
            return self.layers[key](x.transpose(1, 2)).transpose(1, 2)
        return self.layers[key](x)


def _layer(name: str) -> nn.Module:
    if name in ("norm", "rms"):
        return nn.LayerNorm(WIDTH)
    if name == "attention":
        return nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
    if name == "conv":
        return nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
    if name == "down and up":
        return nn.Sequential(nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH))
    return nn.Linear(WIDTH, WIDTH) if name == "linear" else nn.Identity()


def _rearranged(name: str, x: Tensor) -> Tensor:
    if name == "scale":
        return 0.7 * x
    if name == "shift":
        return x + torch.linspace(-1, 1, WIDTH, dtype=x.dtype)
    if name == "cast":
        return x.double().to(x.dtype)
    if name == "turn":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if name == "halves":
        left, right = x.chunk(2, -1)
        return torch.cat([right, left], -1)
    if name == "mask":
        return x.masked_fill(torch.tensor([False, False, True, False]), 0.5)
    if name == "roll":
        return x.roll(1, dims=1)
    return x.flatten(1).view(x.shape)


def _joined(name: str, x: Tensor, y: Tensor) -> Tensor:
    if name == "add":
        return x + y
    if name == "gate":
        return x * torch.sigmoid(y)
    if name == "cat":
        return torch.cat([x[..., :2], y[..., 2:]], -1)
    if name == "maximum":
        return torch.maximum(x, y)
    return torch.add(x, y, alpha=0.3)


def _ended(end: str, x: Tensor) -> Tensor:
    if end == "first token":
        return x[:, 0]
    return x.mean(1) if end == "mean" else x


def programs() -> st.SearchStrategy[Program]:
    """Networks of up to eight instructions, with weights of their own."""
    instruction = st.one_of(
        st.tuples(st.just("layer"), st.sampled_from(LAYERS)),
        st.tuples(st.just("activation"), st.sampled_from(sorted(ACTIVATIONS))),
        st.tuples(st.just("plain"), st.sampled_from(PLAIN)),
        st.tuples(st.just("join"), st.sampled_from(JOINS)),
    )
    return st.builds(_seeded, st.lists(instruction, max_size=8), st.sampled_from(ENDS), st.integers(0, 2**31 - 1))


def _seeded(instructions: list[tuple[str, str]], end: str, seed: int) -> Program:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Program(instructions, end).eval()
