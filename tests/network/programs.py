"""Random networks: a program of instructions on a stack of activations, each of shape [batch, tokens, width]."""

from __future__ import annotations

from collections.abc import Iterable

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
    "bounded": lambda x: F.hardtanh(F.relu(x), 0, 20),
}
LAYERS = ("linear", "norm", "rms", "attention", "causal attention", "conv", "down and up", "narrow", "shared", "tied")
ENTRYWISE = ("scale", "shift", "cast", "turn", "halves", "mask", "roll", "flatten", "written")
PLAIN = (*ENTRYWISE, "padded to even", "centred")
JOINS = ("add", "gate", "cat", "maximum", "scaled add", "broadcast", "where")
STARTS = ("as it is", "in place", "two inputs")
ENDS = ("first token", "mean", "all", "two outputs")
PROBE = "probe"


class Program(nn.Module):
    """Runs its instructions: layers have weights of their own, unless they are shared or tied."""

    def __init__(self, start: str, instructions: list[tuple[str, str]], end: str) -> None:
        super().__init__()
        self.start, self.instructions, self.end = start, instructions, end
        self.shared, self.tied = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.layers = nn.ModuleDict(
            {str(i): _layer(name) for i, (kind, name) in enumerate(instructions) if kind == "layer"}
        )
        self.probe, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.tied.weight = self.shared.weight

    def __repr__(self) -> str:
        return f"Program({self.start!r}, {self.instructions!r}, {self.end!r})"

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        x = x.relu_() if self.start == "in place" else x if other is None else x + other[:, None]
        stack = [x]
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
        logits = self.head(_ended(self.end, stack[-1]))
        return {"logits": logits, "hidden": stack[-1].detach()} if self.end == "two outputs" else logits

    def _apply_layer(self, key: str, name: str, x: Tensor) -> Tensor:
        if name == PROBE:
            return self.probe(x)
        if name == "shared":
            return self.shared(torch.tanh(self.shared(x)))
        if name == "tied":
            return F.linear(self.shared(x), self.tied.weight.t())
        if name in ("attention", "causal attention"):
            query, value = self.layers[key][0](x), self.layers[key][1](x)
            return F.scaled_dot_product_attention(query, x, value, is_causal=name.startswith("causal"))
        if name == "rms":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.layers[key].weight
        if name == "conv":
            return self.layers[key](x.transpose(1, 2)).transpose(1, 2)
        if name == "narrow":
            return x + self.layers[key](x)
        return self.layers[key](x)


def _layer(name: str) -> nn.Module:
    if name in ("norm", "rms"):
        return nn.LayerNorm(WIDTH)
    if name in ("attention", "causal attention"):
        return nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
    if name == "conv":
        return nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
    if name == "down and up":
        return nn.Sequential(nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH))
    if name == "narrow":
        return nn.Linear(WIDTH, 1)
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
    if name == "written":
        return _written(x.clone())
    if name == "centred":
        return x - x.mean(-1, keepdim=True)
    if name == "padded to even":
        odd = x.shape[1] % 2
        return (F.pad(x, (0, 0, 0, 1)) if odd else x).roll(1, dims=1)[:, : x.shape[1]]
    return x.flatten(1).view(x.shape)


def _written(x: Tensor) -> Tensor:
    x[:, 0] = 0.25
    x[..., 1:].mul_(2)
    x += 1
    return x


def _joined(name: str, x: Tensor, y: Tensor) -> Tensor:
    if name == "add":
        return x + y
    if name == "gate":
        return x * torch.sigmoid(y)
    if name == "cat":
        return torch.cat([x[..., :2], y[..., 2:]], -1)
    if name == "maximum":
        return torch.maximum(x, y)
    if name == "broadcast":
        return x * y.mean(1, keepdim=True)
    if name == "where":
        return torch.where(x > 0, x, y)
    return torch.add(x, y, alpha=0.3)


def _ended(end: str, x: Tensor) -> Tensor:
    if end == "first token":
        return x[:, 0]
    return x.mean(1) if end in ("mean", "two outputs") else x


Instructions = list[tuple[str, str]]


def _instructions(most: int, **kinds: Iterable[str]) -> st.SearchStrategy[Instructions]:
    each = [st.tuples(st.just(kind), st.sampled_from(sorted(names))) for kind, names in kinds.items()]
    return st.lists(st.one_of(each), max_size=most)


def programs() -> st.SearchStrategy[Program]:
    """Networks of up to eight instructions, with weights of their own."""
    instructions = _instructions(8, layer=LAYERS, activation=ACTIVATIONS, plain=PLAIN, join=JOINS)
    return st.builds(_seeded, st.sampled_from(STARTS), instructions, st.sampled_from(ENDS), SEEDS)


def trees() -> st.SearchStrategy[Program]:
    """Networks whose random layers are ``probe`` and ``head``: entries meet once between noise and output."""

    def build(start: str, before: Instructions, after: Instructions, end: str, seed: int) -> Program:
        return _seeded(start, [*before, ("layer", PROBE), *after], end, seed)

    before = _instructions(4, layer=LAYERS, activation=ACTIVATIONS, plain=PLAIN, join=JOINS)
    after = _instructions(4, activation=ACTIVATIONS, plain=ENTRYWISE)
    return st.builds(build, st.sampled_from(STARTS), before, after, st.sampled_from(("first token", "all")), SEEDS)


SEEDS = st.integers(0, 2**31 - 1)


def _seeded(start: str, instructions: Instructions, end: str, seed: int) -> Program:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Program(start, instructions, end).eval()
