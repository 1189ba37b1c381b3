"""Text from a causal language model, with the uncertainty of every token, at the cost of one token each.

The cache of a plain model holds keys and values of the tokens so far. Here it holds means of keys and moments of
values, which is all that attention takes: a token costs one pass over itself, and gets what a pass over all gives it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from varprop.errors import InputError
from varprop.graph.interpreter import OUTPUT
from varprop.graph.registry import scale_path
from varprop.moments import Moments
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.prediction.prediction import Prediction
from varprop.prediction.predictors import Predictor, Propagated

ROOM = 64
"""The size of the cache is a multiple of this: each size is captured once."""
INNER = "model."
Choice = Callable[[Tensor], Tensor]
"""From probabilities [batch, words] to a token each."""


def greedy(probs: Tensor) -> Tensor:
    """The most probable token."""
    return probs.argmax(-1)


def sampled(generator: torch.Generator) -> Choice:
    """Tokens drawn from the predictive distribution."""
    return lambda probs: torch.multinomial(probs, 1, generator=generator)[:, 0]


@dataclass(frozen=True)
class Generation:
    """Of each new token [batch, tokens] its log-probability, and the variance of its logit; 0 after the end."""

    tokens: Tensor
    log_prob: Tensor
    var: Tensor
    lengths: Tensor

    @property
    def score(self) -> Tensor:
        """How sure each text is: the mean log-probability of its tokens."""
        return self.log_prob.sum(1) / self.lengths

    @property
    def total_var(self) -> Tensor:
        """The sum of the variances of each text's logits."""
        return self.var.sum(1)


def generate(
    predictor: Propagated | Stepper,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    tokens: int = 32,
    choose: Choice = greedy,
    end: int | None = None,
) -> Generation:
    """Up to ``tokens`` more tokens for each prompt; a text ends with the token ``end``.

    Prompts of several lengths are padded on the left, which ``attention_mask`` says. A predictor is prepared for it
    first, which takes a while: for many calls, make a ``Stepper(predictor)`` and give that.
    """
    stepper = predictor if isinstance(predictor, Stepper) else Stepper(predictor)
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if input_ids.ndim != 2 or mask.shape != input_ids.shape or not bool(mask[:, -1].all()):
        raise InputError("prompts are token ids [batch, length], padded on the left, with a mask of the same shape")
    answer, cache = stepper.begin(input_ids, mask, room=tokens)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    going = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
    lengths = torch.zeros(len(input_ids), dtype=torch.int64, device=input_ids.device)
    for number in range(tokens):
        token = choose(answer.probs)
        if end is not None:
            token = torch.where(going, token, end)
        chosen = token[:, None]
        log_prob, var = answer.probs.gather(1, chosen)[:, 0].log(), answer.logits.var.gather(1, chosen)[:, 0]
        parts.append((token, torch.where(going, log_prob, 0.0), torch.where(going, var, 0.0)))
        lengths += going
        if end is not None:
            going = going & (token != end)
        if number == tokens - 1 or not bool(going.any()):
            break
        answer, cache = stepper.proceed(token, cache)
    ids, log_probs, variances = (torch.stack(column, 1) for column in zip(*parts, strict=True))
    return Generation(ids, log_probs, variances, lengths)


@dataclass(frozen=True)
class Cache:
    """Tokens so far, at the right end: their keys, moments of their values [batch, layer, head, place, …], a mask."""

    keys: Tensor
    values: Moments
    mask: Tensor

    def with_one(self, keys: Tensor, values: Moments) -> Cache:
        """One token more: all others move one place to the left."""
        pairs = zip((self.keys, *self.values), (keys, *values), strict=True)
        moved = [torch.cat([old[:, :, :, 1:], new], 3) for old, new in pairs]
        mask = torch.cat([self.mask[:, 1:], torch.ones_like(self.mask[:, :1])], 1)
        return Cache(moved[0], Moments(*moved[1:]), mask)


class Stepper:
    """A propagated causal model of transformers, one token at a time, with the tensors of the predictor's network."""

    def __init__(self, predictor: Predictor) -> None:
        if not isinstance(predictor, Propagated):
            raise InputError(f"generate takes a Propagated causal language model, not a {type(predictor).__name__}")
        self.predictor, self.net = predictor, predictor.network()
        model = self.net.lifting.model
        config: Any = getattr(model, "config", None)
        if not hasattr(model, "generate") or getattr(config, "is_encoder_decoder", True):
            raise InputError(f"{type(model).__name__} is no causal language model of transformers")
        self.step = _stepping(self.net, model)

    @torch.no_grad()
    def begin(self, input_ids: Tensor, mask: Tensor, *, room: int) -> tuple[Prediction, Cache]:
        """What comes after the prompts, and a cache of them with room for so many tokens more."""
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits, keys, values = self._run(input_ids, mask, positions)
        places = -(-(input_ids.shape[1] + room) // ROOM) * ROOM
        empty = places - input_ids.shape[1]
        padded = [torch.nn.functional.pad(x, (0, 0, empty, 0)) for x in (keys, *values)]
        held = torch.nn.functional.pad(mask, (empty, 0))
        return logits, Cache(padded[0], Moments(*padded[1:]), held)

    @torch.no_grad()
    def proceed(self, token: Tensor, cache: Cache) -> tuple[Prediction, Cache]:
        """What comes after one token more."""
        mask = torch.cat([cache.mask, torch.ones_like(cache.mask[:, :1])], 1)
        positions = cache.mask.sum(1, keepdim=True)
        logits, keys, values = self._run(token[:, None], mask, positions, keys=cache.keys, values=cache.values)
        return logits, cache.with_one(keys, values)

    def _run(self, input_ids: Tensor, mask: Tensor, positions: Tensor, **cache: Any) -> tuple[Any, Tensor, Moments]:
        call = {"input_ids": input_ids, "attention_mask": mask, "position_ids": positions, **cache}
        known = len(self.step.scales)
        self.step.capture(**call)
        if len(self.step.scales) > known:
            _set_scales(self.step, self.net)
        packed = self.step(**call)
        config: Any = self.net.lifting.model.config
        words, length = config.vocab_size, input_ids.shape[1]
        mean, var = ((x[:, :words], *_layers(x[:, words:], config, length)) for x in packed)
        alpha = self.net.scales.get(OUTPUT, 1.0)
        logits = Moments(mean[0], alpha * var[0]).divided_by(self.net.temperature)
        return self.predictor.decide(logits), mean[1], Moments(mean[2], var[2])


class Step(nn.Module):
    """The logits of the last token, and keys and values of all that are new, as one row for each text."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        keys: Tensor | None = None,
        values: Tensor | None = None,
    ) -> Tensor:
        cache = importlib.import_module("transformers").DynamicCache()
        if keys is not None and values is not None:
            for layer in range(keys.shape[1]):
                cache.update(keys[:, layer], values[:, layer], layer)
        found = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        new = input_ids.shape[1]
        layers = found.past_key_values.layers
        kept = [torch.stack([getattr(layer, name)[:, :, -new:] for layer in layers], 1) for name in ("keys", "values")]
        return torch.cat([x.flatten(1) for x in (found.logits, *kept)], 1)


def _layers(packed: Tensor, config: Any, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values [batch, layer, head, place, …] of what ``Step`` returns after the logits."""
    layers = config.num_hidden_layers
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    keys, values = packed.chunk(2, 1)
    shape = (len(packed), layers, heads, length, -1)
    return keys.reshape(shape), values.reshape(shape)


def _stepping(net: MomentNet, model: nn.Module) -> MomentNet:
    """The network of ``Step``, with the tensors of ``net`` itself."""
    means = {f"{INNER}{name}": mean for name, mean in net.mean}
    variances = {f"{INNER}{name}": var for name, var in net.var}
    posterior = Posterior({name: Moments(means[name], var) for name, var in variances.items()})
    step = propagate(Step(model).eval(), posterior, net.rules)
    for name, mean in means.items():
        step.mean[name] = mean
    for name, var in variances.items():
        step.var[name] = var
    step.accelerator = net.accelerator
    return step


def _set_scales(step: MomentNet, net: MomentNet) -> None:
    """Those of ``net``; that of its output is applied to the logits alone."""
    known = dict(net.scales)
    for name in step.scale_names:
        if name != OUTPUT:
            value = known.get(name.removeprefix(INNER))
            if value is None:
                raise InputError(f"the network has no scale {name.removeprefix(INNER)}: call it before it generates")
            step.scale[scale_path(name)].detach().fill_(value).log_()
