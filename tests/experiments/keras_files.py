"""A tiny ResNet of Keras in the format of TensorFlow.js, and the same network by Keras's own arithmetic."""

import json

import numpy as np
import torch
from torch.nn import functional as F

EPS = 0.001
WIDTH, CLASSES = 4, 5
BRANCHES = {"2a": 1, "2b": 3, "2c": 1}


def weights(seed=0):
    """By Keras's names and in its layouts: one block in each of four stages."""
    rng = np.random.default_rng(seed)
    found = {}

    def layer(convolution, norm, shape):
        # Large biases: a mistake in folding them must show.
        found[f"{convolution}/kernel"] = rng.normal(0, 1 / np.sqrt(np.prod(shape[:3])), shape)
        found[f"{convolution}/bias"] = rng.normal(0, 1, shape[3])
        found[f"{norm}/gamma"] = rng.uniform(0.5, 1.5, shape[3])
        found[f"{norm}/beta"] = rng.normal(0, 0.5, shape[3])
        found[f"{norm}/moving_mean"] = rng.normal(0, 1, shape[3])
        found[f"{norm}/moving_variance"] = rng.uniform(0.5, 2, shape[3])

    layer("conv1", "bn_conv1", (7, 7, 3, WIDTH))
    inputs = WIDTH
    for stage in (2, 3, 4, 5):
        width = WIDTH << (stage - 2)
        channels = inputs
        for branch, kernel in BRANCHES.items():
            outputs = 4 * width if branch == "2c" else width
            layer(f"res{stage}a_branch{branch}", f"bn{stage}a_branch{branch}", (kernel, kernel, channels, outputs))
            channels = outputs
        layer(f"res{stage}a_branch1", f"bn{stage}a_branch1", (1, 1, inputs, 4 * width))
        inputs = 4 * width
    found["fc1000/kernel"] = rng.normal(0, 0.1, (inputs, CLASSES))
    found["fc1000/bias"] = rng.normal(0, 0.1, CLASSES)
    return {name: value.astype("<f4") for name, value in found.items()}


def write(folder, found, shards=3):
    """model.json and binary shards of nearly equal size, which cut weights anywhere."""
    data = b"".join(value.tobytes() for value in found.values())
    size = -(-len(data) // shards)
    paths = [f"group1-shard{i + 1}of{shards}.bin" for i in range(shards)]
    for index, path in enumerate(paths):
        (folder / path).write_bytes(data[index * size : (index + 1) * size])
    entries = [{"name": name, "shape": list(value.shape), "dtype": "float32"} for name, value in found.items()]
    norm = {"class_name": "BatchNormalization", "config": {"epsilon": EPS}}
    content = {
        "format": "layers-model",
        "modelTopology": {"model_config": {"config": {"layers": [norm, {"class_name": "Add", "config": {}}]}}},
        "weightsManifest": [{"paths": paths, "weights": entries}],
    }
    (folder / "model.json").write_text(json.dumps(content))
    return content


def forward(found, bgr):
    """What Keras computes, biases and all, in float64."""
    tensors = {name: torch.from_numpy(value.astype(np.float64)) for name, value in found.items()}

    def layer(x, convolution, norm, stride=1, padding=0):
        kernel = tensors[f"{convolution}/kernel"].permute(3, 2, 0, 1)
        x = F.conv2d(x, kernel, tensors[f"{convolution}/bias"], stride, padding)
        mean, var, gamma, beta = (
            tensors[f"{norm}/{kind}"][:, None, None] for kind in ("moving_mean", "moving_variance", "gamma", "beta")
        )
        return gamma * (x - mean) / (var + EPS).sqrt() + beta

    x = layer(bgr, "conv1", "bn_conv1", 2, 3).relu()
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)  # padded with zeros, as Keras does after the activation
    for stage in (2, 3, 4, 5):
        stride = 1 if stage == 2 else 2
        y = layer(x, f"res{stage}a_branch2a", f"bn{stage}a_branch2a", stride).relu()
        y = layer(y, f"res{stage}a_branch2b", f"bn{stage}a_branch2b", 1, 1).relu()
        y = layer(y, f"res{stage}a_branch2c", f"bn{stage}a_branch2c")
        x = (y + layer(x, f"res{stage}a_branch1", f"bn{stage}a_branch1", stride)).relu()
    return x.mean((2, 3)) @ tensors["fc1000/kernel"] + tensors["fc1000/bias"]
