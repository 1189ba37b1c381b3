"""What propagation costs, in plain passes: every method beside the fastest plain form of the model, in one run.

    python benchmarks/speed.py                                          # ViT-B/16, float32, batch 8
    python benchmarks/speed.py --device cuda --dtype bfloat16 --models vit-b bert-base --batches 1 32 128

Plain is the fastest of: the model as its library wrote it, the same captured as a flat graph, and one written by hand
for speed; each called as it is, compiled, and as a CUDA graph. Medians of interleaved rounds, with quartiles of the
ratios of each round. Writes benchmarks/results/speed-<device>-<dtype>.jsonl, a line for each model and batch; other
lines stay.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from strong_plain import StrongBert, StrongViT
from timing import RESULTS, Function, interleaved, options, posterior_of, ratio_quartiles, seconds, started
from torch import Tensor, nn

import varprop as vp
from varprop.graph.runner import ENV_VARIABLE

PLAIN = "plain, as written", "plain, flat", "plain, by hand"
FORMS = "eager", "compiled", "graph", "compiled graph"


@dataclass(frozen=True)
class Case:
    """A model, its inputs at a batch size, and the same by hand, if there is one."""

    config: Any
    model: Callable[[Any], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]
    strong: Callable[[Any], nn.Module] | None = None


def images(size: int) -> Callable[[int], dict[str, Tensor]]:
    return lambda batch: {"pixel_values": torch.randn(batch, 3, size, size)}


def tokens(length: int) -> Callable[[int], dict[str, Tensor]]:
    return lambda batch: {"input_ids": torch.randint(5, 5000, (batch, length))}


def questions(length: int) -> Callable[[int], dict[str, Tensor]]:
    """Images, and questions about them."""
    return lambda batch: {
        "image": torch.randn(batch, 3, 224, 224),
        "question": torch.randint(5, 5000, (batch, length)),
        "padding_mask": torch.zeros(batch, length, dtype=torch.bool),
    }


def encoder(length: int) -> Case:
    """Six blocks of width 1024 over long sequences."""
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 6}
    config = transformers.BertConfig(**sizes, max_position_embeddings=length, num_labels=2)
    return Case(config, transformers.BertForSequenceClassification, tokens(length), StrongBert)


def of_width(width: int) -> Case:
    return vit(hidden_size=width, num_attention_heads=width // 64, intermediate_size=4 * width)


def beit3(_: None) -> nn.Module:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the model is an experiment's
    from experiments.models.beit3 import Beit3ForQuestions

    return Beit3ForQuestions()


def vit(**options: Any) -> Case:
    config = transformers.ViTConfig(num_labels=1000, **options)
    return Case(config, transformers.ViTForImageClassification, images(config.image_size), StrongViT)


SMALL = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 768}
LLAMA = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "num_labels": 2,
    "pad_token_id": 0,
    "use_cache": False,
}
CASES: Mapping[str, Callable[[], Case]] = {
    "vit-small": lambda: vit(image_size=32, patch_size=4, **SMALL),
    "vit-b": vit,
    "bert-base": lambda: Case(
        transformers.BertConfig(num_labels=2), transformers.BertForSequenceClassification, tokens(128), StrongBert
    ),
    "resnet-50": lambda: Case(
        transformers.ResNetConfig(num_labels=1000), transformers.ResNetForImageClassification, images(224)
    ),
    "llama-1b": lambda: Case(
        transformers.LlamaConfig(**LLAMA), transformers.LlamaForSequenceClassification, tokens(512)
    ),
    "beit3-base": lambda: Case(None, beit3, questions(20)),
    **{f"encoder-{length}": functools.partial(encoder, length) for length in (256, 512, 1024, 2048, 4096, 8192)},
    **{f"vit-width-{width}": functools.partial(of_width, width) for width in (384, 1024, 1536)},
}


@dataclass
class Bench:
    """One model at one batch size."""

    name: str
    batch: int
    args: argparse.Namespace

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.device, self.dtype = torch.device(self.args.device), getattr(torch, self.args.dtype)
        self.case = CASES[self.name]()
        self.model = self._placed(self.case.model(self.case.config))
        self.posterior = posterior_of(self.model)
        self.inputs = {key: self._placed(value) for key, value in self.case.inputs(self.batch).items()}

    def _placed(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            layout = torch.channels_last if self.name.startswith("resnet") else torch.preserve_format
            return value.eval().to(self.device, self.dtype).to(memory_format=layout)
        value = value.to(self.device)
        if not value.is_floating_point():
            return value
        value = value.to(self.dtype)
        return value.contiguous(memory_format=torch.channels_last) if self.name.startswith("resnet") else value

    def methods(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """The callables that are timed; capturing is timed on its own."""
        yield PLAIN[0], self.model
        yield PLAIN[1], vp.propagate(self.model, vp.Posterior.from_tensors({}, {}))
        if self.case.strong:
            yield PLAIN[2], self._placed(self.case.strong(self.case.config))
        for rules in (vp.CVP, vp.FACTORED, vp.STREAMLINING):
            yield rules.name, vp.propagate(self.model, self.posterior, rules)
        # One variance for all weights, as vp.fit takes without a posterior: it spares a product a layer.
        yield "CVP, isotropic", vp.propagate(self.model, vp.Posterior.isotropic(self.model))
        for rules in (vp.CVP, vp.FACTORED):
            yield f"{rules.name}, predictor", vp.Propagated(vp.propagate(self.model, self.posterior, rules))
        for samples in (1, 8):
            yield f"MC-{samples}", vp.MonteCarlo(self.model, self.posterior, samples)

    def run(self) -> dict[str, Any]:
        rows: dict[str, dict[str, Any]] = {}
        runs: dict[str, Function] = {}
        for name, call in self.methods():
            if name not in self.args.methods:
                continue
            for form in self.args.plain_forms if name in PLAIN else self.args.forms:
                if form != "eager" and (name.startswith("MC") or "predictor" in name):
                    continue
                key = f"{name}, {form}"
                print(f"  {key} ...", end="", flush=True)
                try:
                    rows[key] = {"capture_s": self._captured(call), "tensor_bytes": _held(call)}
                    start = time.perf_counter()
                    runs[key] = self._in_form(call, form)
                    rows[key] |= {"first_call_s": time.perf_counter() - start, "peak_bytes": self._peak(runs[key])}
                    took = seconds(runs[key], self.device)
                    print(f" first {rows[key]['first_call_s']:.1f} s, then {took * 1e3:.2f} ms", flush=True)
                except Exception as error:  # noqa: BLE001 (a form that a method does not have)
                    runs.pop(key, None)
                    rows[key] = {"error": repr(error)[:300]}
                    print(f" {rows[key]['error']}", flush=True)
        with torch.no_grad():
            times = interleaved(runs, self.device, self.args.rounds, 5 if self.device.type == "cuda" else 1)
        fastest = min((key for key in times if key.startswith("plain")), key=lambda key: statistics.median(times[key]))
        for key, values in times.items():
            low, middle, high = ratio_quartiles(times[fastest], values)
            rows[key] |= {"ms": 1e3 * statistics.median(values), "plain_passes": middle, "quartiles": [low, high]}
        print(*(profile(key, runs[key]) for key in self.args.profile if key in runs), sep="\n", flush=True)
        return {"model": self.name, "batch": self.batch, "denominator": fastest, "rows": rows}

    def _captured(self, call: Callable[..., Any]) -> float | None:
        """Seconds that capturing took."""
        if not isinstance(call, vp.MomentNet):
            return None
        start = time.perf_counter()
        call.capture(**self.inputs)
        return time.perf_counter() - start

    def _in_form(self, call: Callable[..., Any], form: str) -> Function:
        if form.startswith("compiled"):
            call = torch.compile(call, dynamic=False)
        run = torch.no_grad()(functools.partial(call, **self.inputs))
        run()
        if form.endswith("graph"):
            return graphed(run)
        return run

    def _peak(self, run: Function) -> int | None:
        """Of what the call itself takes, when it is no recording: one allocates nothing, its memory is held already."""
        if self.device.type != "cuda":
            return None
        before, held = os.environ.get(ENV_VARIABLE), torch.cuda.memory_allocated()
        os.environ[ENV_VARIABLE] = "0"
        torch.cuda.reset_peak_memory_stats()
        try:
            run()
        finally:
            os.environ.pop(ENV_VARIABLE) if before is None else os.environ.update({ENV_VARIABLE: before})
        return int(torch.cuda.max_memory_allocated() - held)


def _held(call: Callable[..., Any]) -> int | None:
    """By parameters and all that was folded from them."""
    return sum(x.nbytes for x in (*call.parameters(), *call.buffers())) if isinstance(call, nn.Module) else None


def graphed(run: Function) -> Function:
    """As a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(_: Function = run) -> None:  # what is recorded reads tensors that the function keeps
        graph.replay()

    return replay


def profile(name: str, run: Function) -> str:
    """Where the time of one call goes."""
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            run()
        torch.cuda.synchronize()
    entries = sorted(found.key_averages(), key=lambda entry: -entry.self_device_time_total)[:25]
    total = sum(entry.self_device_time_total for entry in found.key_averages())
    lines = [f"{name}: {total / 3e3:.2f} ms of kernels"]
    lines += [f"  {e.self_device_time_total / 3e3:8.3f} ms {e.count / 3:6.1f} x {e.key[:120]}" for e in entries]
    return "\n".join(lines)


def main() -> None:
    parser = options(__doc__, rounds=9, threads=2)
    parser.add_argument("--models", nargs="+", choices=CASES, default=["vit-b"])
    parser.add_argument("--batches", nargs="+", type=int, default=[8])
    propagated = "CVP", "CVP, isotropic", "FACTORED", "STREAMLINING"
    parser.add_argument("--methods", nargs="+", default=[*PLAIN, *propagated, "MC-1", "MC-8"])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["eager", "compiled"])
    parser.add_argument("--plain-forms", nargs="+", choices=FORMS, help="of the plain models, if not the same")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--profile", nargs="*", default=[], help="whose kernels are listed, such as 'CVP, compiled'")
    parser.add_argument("--out", type=Path)
    args = started(parser)
    if not set(PLAIN) & set(args.methods):
        parser.error(f"--methods needs a plain model to compare with, such as {PLAIN[-1]!r}")
    args.plain_forms = args.plain_forms or args.forms
    where = args.out or RESULTS / f"speed-{args.device}-{args.dtype}.jsonl"
    setting = {"device": args.device, "dtype": args.dtype, "threads": args.threads, "torch": torch.__version__}
    setting |= {"varprop": vp.__version__, "transformers": transformers.__version__}
    setting["hardware"] = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor()
    for name in args.models:
        for batch in args.batches:
            print(f"{name}, batch {batch}", flush=True)
            bench = Bench(name, batch, args)
            row = bench.run() | {"setting": setting}
            show(row)
            keep(row, where)
            del bench
            gc.collect()


def show(row: dict[str, Any]) -> None:
    print(f"  in plain passes ({row['denominator']}: {row['rows'][row['denominator']]['ms']:.2f} ms)")
    for key, values in row["rows"].items():
        if "ms" in values:
            low, high = values["quartiles"]
            print(f"    {values['plain_passes']:7.2f} ({low:.2f}-{high:.2f})  {key}", flush=True)


def keep(row: dict[str, Any], where: Path) -> None:
    """In the place of an older measurement of the same."""
    lines = [json.loads(line) for line in where.read_text().splitlines()] if where.exists() else []
    same = ("model", "batch")
    kept = [line for line in lines if any(line[key] != row[key] for key in same)]
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text("".join(json.dumps(line) + "\n" for line in [*kept, row]))


if __name__ == "__main__":
    main()
