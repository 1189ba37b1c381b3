"""Models at their full size as files: .pt2, AOTInductor, ONNX Runtime beside the predictor they were written from.

python benchmarks/exports.py                                 # a line of JSON for each model and form
python benchmarks/exports.py vit_b_16 --forms onnx,pt2,aot
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import varprop as vp
from varprop.deployment.exporting import outputs

BATCHES, LENGTH = (1, 4), 64
Batch = dict[str, Tensor]


def images(count: int) -> Batch:
    return {"pixel_values": torch.randn(count, 3, 224, 224)}


def tokens(count: int) -> Batch:
    ids = torch.randint(3, 1000, (count, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


MODELS: dict[str, tuple[str, Callable[[int], Batch]]] = {
    "vit_b_16": ("ViTForImageClassification", images),
    "resnet_50": ("ResNetForImageClassification", images),
    "bert_base": ("BertForSequenceClassification", tokens),
}


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """The median of several, after one that is not counted; that one if there is no other."""
    taken = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:] or taken)


def opened(kind: str, file: Path) -> Callable[[Batch], dict[str, Tensor]]:
    if kind == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda batch: dict(
            zip(names, map(torch.from_numpy, session.run(names, {k: x.numpy() for k, x in batch.items()})), strict=True)
        )
    module = torch._inductor.aoti_load_package(str(file)) if kind == "aot" else torch.export.load(file).module()
    return lambda batch: module(*batch.values())


def measured(name: str, forms: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    """A line for each form of the file."""
    kind, batch = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, kind)
    model = made(made.config_class()).eval()
    predictor = vp.Propagated(vp.propagate(model, vp.Posterior.isotropic(model, std=1e-3)))
    batches = {count: batch(count) for count in BATCHES}
    expected = {count: outputs(predictor(**inputs)) for count, inputs in batches.items()}
    for form in forms:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            file = Path(folder) / ("model.onnx" if form == "onnx" else "model.pt2")
            started = time.perf_counter()
            vp.export(predictor, file, aot=form == "aot", **batch(2))
            exported, run = time.perf_counter() - started, opened(form, file)
            answers = {count: run(inputs) for count, inputs in batches.items()}
            yield {
                "model": name,
                "form": form,
                "threads": torch.get_num_threads(),
                "repeats": repeats,
                "torch": torch.__version__,
                "export_seconds": round(exported, 1),
                "megabytes": round(sum(each.stat().st_size for each in Path(folder).iterdir()) / 1e6),
                "largest_difference": {
                    key: max(float((answers[c][key] - expected[c][key]).abs().max()) for c in BATCHES)
                    for key in expected[1]
                },
                "largest_value": {key: float(value.abs().max()) for key, value in expected[1].items()},
                # One after the other, so that what else the machine does slows all of them.
                "plain_seconds": {c: seconds(partial(model, **inputs), repeats) for c, inputs in batches.items()},
                "torch_seconds": {c: seconds(partial(predictor, **inputs), repeats) for c, inputs in batches.items()},
                "file_seconds": {c: seconds(partial(run, inputs), repeats) for c, inputs in batches.items()},
            }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="*", default=list(MODELS))
    options.add_argument("--forms", default="onnx,pt2,aot")
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    for name in given.models:
        for line in measured(name, given.forms.split(","), given.repeats):
            print(json.dumps(line), flush=True)
