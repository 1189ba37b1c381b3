"""Unmodified models of timm, torchvision, transformers and plain torch: which propagate, how near to samples.

    python benchmarks/architectures.py run --workers 16 --total 520     # a process each; goes on where it stopped
    python benchmarks/architectures.py page architectures.jsonl > docs/supported_models.md      # and full_size.jsonl

Models have random weights; those of transformers are built small. Standard deviations are compared with 16 networks
sampled from a narrow posterior, whose standard deviation is a thousandth of each tensor's root mean square; means with
64 from a wide one, where it is a tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import itertools
import json
import math
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import plain_models
import supported_page
import torch
from torch import nn

import varprop as vp
from varprop.calibration.widths import PosteriorWidth
from varprop.network.audit import audit_of

RESULTS = Path(__file__).parent / "results"
SAMPLES, WIDTH = 16, 1e-3
MANY, WIDE = 64, 0.1
LARGE = 256
SMALL = {
    "hidden_size": 32, "d_model": 32, "dim": 32, "n_embd": 32, "embed_dim": 32, "embedding_size": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "num_key_value_heads": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "head_dim": 8,
    "intermediate_size": 48, "ffn_dim": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "hidden_dim": 48, "d_ff": 48,
    "moe_intermediate_size": 16, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "pooler_hidden_size": 32, "rotary_dim": 4, "qk_rope_head_dim": 8, "vocab_size": 99, "max_position_embeddings": 64,
    "image_size": 64, "num_labels": 3, "pad_token_id": 0,
}  # fmt: skip
TASKS = {
    "image": "IMAGE_CLASSIFICATION",
    "text": "SEQUENCE_CLASSIFICATION",
    "language": "CAUSAL_LM",
    "audio": "AUDIO_CLASSIFICATION",
}
SAMPLE = (
    "torch:lstm", "torch:u-net", "torch:transformer encoder", "torch:message passing",
    "transformers.image:ViTForImageClassification", "transformers.text:BertForSequenceClassification",
)  # fmt: skip
TORCHVISION = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet",
    "inception_v3", "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf",
    "regnet_y_400mf", "resnet18", "resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1",
    "swin_t", "swin_v2_t", "vgg11", "vgg11_bn", "vit_b_16", "wide_resnet50_2",
)  # fmt: skip
PREFERRED = ("femto", "atto", "pico", "nano", "xxt", "tiny", "_t", "xxs", "_xs", "x_small", "small", "_s", "18", "b0")


def names(library: str) -> Iterator[str]:
    """``library:model``, of each family the smallest by its name."""
    if library == "sample":
        yield from SAMPLE
    elif library == "torch":
        yield from (f"torch:{name}" for name in plain_models.MAKERS)
    elif library == "torchvision":
        yield from (f"torchvision:{name}" for name in TORCHVISION)
    elif library == "timm":
        import timm

        for module in timm.list_modules():
            models = timm.list_models(module=module)
            if models:
                small = min(models, key=lambda name: (not any(word in name for word in PREFERRED), len(name), name))
                yield f"timm:{small}"
    else:
        from transformers.models.auto import modeling_auto

        families: set[str] = set()
        for task, title in TASKS.items():
            found = getattr(modeling_auto, f"MODEL_FOR_{title}_MAPPING_NAMES")
            classes = {name for value in found.values() for name in ([value] if isinstance(value, str) else value)}
            new = {name for name in classes if re.split("For|LMHead", name)[0] not in families}
            families |= {re.split("For|LMHead", name)[0] for name in new}
            yield from (f"transformers.{task}:{name}" for name in sorted(new))


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model in eval mode, and a batch of two for it."""
    library, _, model = name.partition(":")
    torch.manual_seed(0)
    if library == "torch":
        built, batch = plain_models.MAKERS[model]()
        return built.eval(), batch
    if library == "torchvision":
        import torchvision

        extra = {"init_weights": True} if model in ("googlenet", "inception_v3") else {}
        built = getattr(torchvision.models, model)(**extra)
        return built.eval(), {"x": torch.randn(2, 3, *[299 if model == "inception_v3" else 224] * 2)}
    if library == "timm":
        import timm

        built = timm.create_model(model, pretrained=False)
        size = built.default_cfg["input_size"]
        if max(size) > LARGE and not built.default_cfg.get("fixed_input_size"):
            size = built.default_cfg.get("min_input_size") or (3, LARGE, LARGE)  # sampling takes long enough even so
        return built.eval(), {"x": torch.randn(2, *size)}
    import transformers

    kind = getattr(transformers, model)
    config = kind.config_class()
    for part in (config, getattr(config, "vision_config", None), getattr(config, "text_config", None)):
        if hasattr(part, "to_dict"):
            _shrink(part)
    built = kind(config).eval()
    if library == "transformers.image":
        size = getattr(config, "image_size", getattr(getattr(config, "vision_config", None), "image_size", 64))
        sides = size if isinstance(size, list | tuple) else (size, size)
        return built, {"pixel_values": torch.randn(2, getattr(config, "num_channels", 3), *sides)}
    if library == "transformers.audio":
        spectrogram = built.main_input_name == "input_features"
        mels = getattr(config, "num_mel_bins", getattr(config, "feature_size", 80))
        return built, {built.main_input_name: torch.randn(2, 100, mels) if spectrogram else torch.randn(2, 4000)}
    tokens = torch.randint(3, 90, (2, 12))
    end = getattr(config, "eos_token_id", None)
    if isinstance(end, int) and end < 90:
        tokens[:, -1] = end  # where some read the sentence
    return built, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _shrink(config: Any) -> None:
    """Make a configuration small, but leave the sizes of stages, which belong together."""
    staged = any(isinstance(getattr(config, key, None), list | tuple) for key in ("depths", "num_heads"))
    kept = {"embed_dim", "hidden_size", "image_size"} if staged else set()
    if hasattr(config, "qk_rope_head_dim"):
        kept.add("num_key_value_heads")  # latent attention has no groups of heads
        config.num_key_value_heads = SMALL["num_attention_heads"]
    for key in SMALL.keys() - kept:
        now = getattr(config, key, "")
        if isinstance(now, int) or (now is None and key in ("head_dim", "vocab_size", "pad_token_id")):
            with contextlib.suppress(AttributeError, NotImplementedError):  # some of them are computed from others
                setattr(config, key, SMALL[key])


def study(name: str) -> dict[str, Any]:
    """One row: ``works`` is None if the model itself cannot be built or run here."""
    warnings.simplefilter("ignore")
    row: dict[str, Any] = {"name": name, "works": None}
    try:
        model, batch = build(name)
        first = next(iter(inspect.signature(model.forward).parameters))
        batch = {(first if key == "x" else key): value for key, value in batch.items()}
        with torch.no_grad():
            model(**batch)
    except Exception as error:  # noqa: BLE001 (whatever a model raises)
        return row | {"reason": _first_line(error)}
    row |= {"works": False, "parameters": sum(p.numel() for p in model.parameters())}
    mean = dict(model.named_parameters())
    var = {key: torch.full_like(w, float((WIDTH**2 * w.square().mean()).clamp(min=1e-12))) for key, w in mean.items()}
    posterior = vp.Posterior.from_tensors(mean, var)
    try:
        started = time.perf_counter()
        net = vp.propagate(model, posterior)
        plan, _ = net.plan((), batch)
        row["capture"] = time.perf_counter() - started
        found = net(**batch)
        draws = torch.stack(list(vp.MonteCarlo(model, posterior, SAMPLES).draws(**batch))).double()
        table = audit_of(net, plan)
        errors = _errors_of_means(net, vp.MonteCarlo(model, posterior.scaled((WIDE / WIDTH) ** 2), MANY), batch)
    except Exception as error:  # noqa: BLE001 (that is what is asked)
        return row | {"reason": _first_line(error)}
    ratio = (found.var.double().sqrt() / draws.std(0).clamp(min=1e-30)).flatten()
    finite = bool(torch.stack(found).isfinite().all()) and all(map(math.isfinite, errors))
    row |= {"ops": len(table), "approximate": sorted({r.op for r in table.approximate}), "ratio": float(ratio.median())}
    row |= {"works": finite, **({"mean_errors": errors} if finite else {"reason": "moments that are not finite"})}
    return row


def _errors_of_means(net: vp.MomentNet, samples: vp.MonteCarlo, batch: dict[str, Any]) -> tuple[float, float]:
    """Of the propagated mean and of the plain network's, in standard deviations of the samples."""
    PosteriorWidth(net).set(WIDE)
    plain = vp.MeanNetwork(samples.model).logits(**batch).mean
    with torch.no_grad():
        mean = net(**batch).mean
        draws = torch.stack(list(samples.draws(**batch))).double()
    width = draws.var(0).mean().sqrt()
    found, other = (float((x - draws.mean(0)).square().mean().sqrt() / width) for x in (mean, plain))
    return found, other


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:160]}"


def run(out: Path, libraries: list[str], most: int | None, workers: int, limit: float, total: float) -> None:
    """Study what the file lacks, libraries in turn; nothing is begun that would not be done after ``total`` seconds."""
    done = {json.loads(line)["name"] for line in out.read_text().splitlines()} if out.exists() else set()
    queues = [list(names(library)) for library in libraries]
    wanted = [name for row in itertools.zip_longest(*queues) for name in row if name and name not in done][:most]
    deadline, lock = time.monotonic() + total, threading.Lock()

    def one(name: str) -> None:
        left = deadline - time.monotonic()
        if left < limit / 4:
            return  # another run goes on here
        line = _study_apart(name, min(limit, left))
        if not line and left >= limit:  # else it was the end of this run that came, which says nothing of the model
            line = _lost(name, f"not done after {limit:.0f} s")
        if line:
            with lock, out.open("a") as file:
                file.write(line + "\n")

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, wanted))


def _study_apart(name: str, limit: float) -> str:
    """A row as JSON, from a process of its own; nothing if it is not done in time."""
    command = [sys.executable, __file__, "study", name]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return ""
    lines = found.stdout.strip().splitlines()
    return lines[-1] if found.returncode == 0 and lines else _lost(name, found.stderr.strip()[-160:])


def _lost(name: str, reason: str) -> str:
    return json.dumps({"name": name, "works": False, "reason": reason})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    each = commands.add_parser("study")
    each.add_argument("name")
    every = commands.add_parser("run")
    every.add_argument("--out", type=Path, default=Path("architectures.jsonl"))
    every.add_argument("--libraries", nargs="+", default=["torch", "torchvision", "timm", "transformers"])
    every.add_argument("--most", type=int)
    every.add_argument("--workers", type=int, default=2)
    every.add_argument("--limit", type=float, default=240.0)
    every.add_argument("--total", type=float, default=math.inf)
    written = commands.add_parser("page")
    written.add_argument("file", type=Path)
    written.add_argument("--full", type=Path, default=RESULTS / "full_size.jsonl")
    args = parser.parse_args()
    if args.command == "study":
        torch.set_num_threads(1)
        print(json.dumps(study(args.name)))
    elif args.command == "run":
        run(args.out, args.libraries, args.most, args.workers, args.limit, args.total)
    else:
        rows = {json.loads(line)["name"]: json.loads(line) for line in args.file.read_text().splitlines()}
        full = [json.loads(line) for line in args.full.read_text().splitlines()]
        print(supported_page.page(list(rows.values()), full, SAMPLES, WIDTH, MANY, WIDE), end="")


if __name__ == "__main__":
    main()
