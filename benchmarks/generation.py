"""What a generated token costs: a plain causal model with its cache, and the propagated one with moments in the cache.

python benchmarks/generation.py                # GPT-2 small's sizes, random weights; a line of JSON
python benchmarks/generation.py --layers 2     # a trial
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers

import varprop as vp

PROMPT, TOKENS = 64, 24


def seconds_per_token(begin: Callable[[], Any], proceed: Callable[[Any], Any]) -> dict[str, float]:
    """Of the prompt, and the median over tokens after it."""
    begin()
    started = time.perf_counter()
    state = begin()
    prompt, taken = time.perf_counter() - started, []
    for _ in range(TOKENS):
        started = time.perf_counter()
        state = proceed(state)
        taken.append(time.perf_counter() - started)
    return {"prompt": round(prompt, 4), "token": round(statistics.median(taken[2:]), 4)}


@torch.no_grad()
def measured(layers: int, rules: vp.RuleSet) -> dict[str, Any]:
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers)).eval()
    ids = torch.randint(0, 50_000, (1, PROMPT)).expand(2, -1)
    mask = torch.ones_like(ids)

    def plain_token(state: Any) -> Any:
        return model(input_ids=ids[:, :1], past_key_values=state.past_key_values, use_cache=True, logits_to_keep=1)

    plain = seconds_per_token(lambda: model(input_ids=ids, use_cache=True, logits_to_keep=1), plain_token)
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=1e-3), rules)
    net.capture(input_ids=ids)
    stepper = vp.Stepper(vp.Propagated(net))
    found = seconds_per_token(
        lambda: stepper.begin(ids, mask, room=TOKENS), lambda state: stepper.proceed(ids[:, 0], state[1])
    )
    again = net(input_ids=torch.cat([ids, ids[:, :1]], 1)).mean[:, -1]
    answer, cache = stepper.begin(ids, mask, room=TOKENS)
    answer, _ = stepper.proceed(ids[:, 0], cache)
    off = float((answer.logits.mean - again).abs().max())
    return {
        "model": f"GPT-2, {layers} layers",
        "rules": rules.name,
        "threads": torch.get_num_threads(),
        "plain_seconds": plain,
        "propagated_seconds": found,
        "ratio": {name: round(found[name] / plain[name], 2) for name in found},
        "largest_difference": off,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--layers", type=int, default=12)
    print(json.dumps(measured(options.parse_args().layers, vp.CVP)), flush=True)
