"""A predictor as it was shipped, ready to run: the folder of ``save_pretrained``, or an exported ``.onnx`` file.

Neither can run code. A ``.pt2`` file can, and is refused: it is for programs that load their own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from varprop.deployment.exporting import RECORD, import_optional, outputs, threshold_of
from varprop.errors import NetworkFileError
from varprop.network.storage import CONFIG, WEIGHTS, digest, read_config
from varprop.prediction.folder import load
from varprop.prediction.links import Gaussian
from varprop.prediction.predictor_config import read_processor
from varprop.prediction.predictors import Predictor
from varprop.prediction.selective import Selective

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Input:
    """A tensor that the model takes: its dtype and its sizes beside the batch's, None where they are free."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int | None, ...]


@dataclass(frozen=True)
class Artifact:
    """``run`` takes a batch of each input by name, and returns ``probs``, ``confidence``, … by name.

    ``sha256`` is of all that decides the answers.
    """

    run: Callable[[Mapping[str, Tensor]], Arrays]
    inputs: tuple[Input, ...]
    classes: tuple[str, ...] | None
    threshold: float | None
    processor: Any
    sha256: str
    outputs: tuple[str, ...]

    def answer(self, batch: Mapping[str, Tensor]) -> Arrays:
        """The outputs by name: what ``run`` returns and, of classes, the ``label``."""
        found = self.run(batch)
        label = {"label": _labels(found["probs"], found["confidence"])} if "probs" in found else {}
        return label | found


def open_artifact(
    path: str | os.PathLike[str], *, model: nn.Module | None = None, device: torch.device | str = "cpu"
) -> Artifact:
    """What lies at ``path``: an ``.onnx`` file, a folder with one, or a folder written by ``save_pretrained``.

    ``model`` is for the latter, as in ``vp.load``.
    """
    place = Path(path)
    files = sorted(place.glob("*.onnx")) if place.is_dir() else [place]
    if (place / CONFIG).is_file() and not files:
        return _saved(place, model, device)
    if len(files) != 1 or files[0].suffix != ".onnx" or not files[0].is_file():
        reason = "" if place.exists() else "there is no such file; "
        raise NetworkFileError(
            f"cannot open {place}: {reason}give a folder written by save_pretrained, or one .onnx file written by "
            "vp.export; a .pt2 file may hold code, and is not opened"
        )
    return _exported(files[0], str(device))


def _saved(folder: Path, model: nn.Module | None, device: torch.device | str) -> Artifact:
    predictor: Predictor = load(folder, model, device=device)
    inputs = predictor.network().inputs
    kind = ("prediction", "std") if isinstance(predictor.link, Gaussian) else ("label", "probs", "confidence")
    if not inputs:
        raise NetworkFileError(f"cannot open {folder}: it was saved before it was called, so its inputs are not known")

    def run(batch: Mapping[str, Tensor]) -> Arrays:
        answer = predictor(**{name: x.to(predictor.device) for name, x in batch.items()})
        return {name: x.cpu().numpy() for name, x in outputs(answer).items()}

    return Artifact(
        run,
        tuple(Input(name, dtype, _sizes(sizes)) for name, dtype, sizes in inputs),
        predictor.classes,
        threshold_of(predictor),
        predictor.processor,
        _joint_digest(json.dumps(read_config(folder), sort_keys=True), digest(folder / WEIGHTS)),
        (*kind, "logit_mean", "logit_var", *(("abstain",) if isinstance(predictor, Selective) else ())),
    )


def _exported(file: Path, device: str) -> Artifact:
    runtime = import_optional("onnxruntime", "export")
    wanted = ["CUDAExecutionProvider"] if device.startswith("cuda") else []
    providers = [name for name in wanted if name in runtime.get_available_providers()] + ["CPUExecutionProvider"]
    try:
        session = runtime.InferenceSession(str(file), providers=providers)
        record = json.loads(session.get_modelmeta().custom_metadata_map[RECORD])
        classes, names, threshold = record["classes"], list(record["outputs"]), record["threshold"]
        processor = read_processor(file.parent, record["processor"])
    except NetworkFileError:
        raise
    except Exception as error:  # the runtime has errors of its own for each way a file can be wrong
        reason = str(error).strip().partition("\n")[0]
        raise NetworkFileError(f"cannot open {file}: it is no file of vp.export, or damaged ({reason})") from error

    def run(batch: Mapping[str, Tensor]) -> Arrays:
        found = session.run(names, {name: x.numpy() for name, x in batch.items()})
        return dict(zip(names, found, strict=True))

    weights = file.with_name(f"{file.name}.data")  # of models above 2 GB
    return Artifact(
        run,
        tuple(map(_input_of, session.get_inputs())),
        tuple(map(str, classes)) if classes else None,
        None if threshold is None else float(threshold),
        processor,
        _joint_digest(*(digest(each) for each in (file, weights) if each.is_file())),
        ("label", *names) if "probs" in names else tuple(names),
    )


def _input_of(argument: Any) -> Input:
    """``tensor(float)`` and its shape, in which a free size is a name."""
    kinds = {"float": torch.float32, "double": torch.float64, "bool": torch.bool, "float16": torch.float16}
    name = argument.type.removeprefix("tensor(").removesuffix(")")
    dtype = kinds.get(name) or getattr(torch, name)
    return Input(argument.name, dtype, _sizes(argument.shape))


def _sizes(shape: Sequence[int | str]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape[1:])


def _joint_digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _labels(probs: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """Of one logit, 1 where the confidence is p and 0 where it is 1 − p, whatever threshold p has."""
    return (probs[..., 0] == confidence).astype(np.int64) if probs.shape[-1] == 1 else probs.argmax(-1)
