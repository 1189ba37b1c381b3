"""A small classifier as vp.export would write it, made without exporting, which takes a while."""

import json

import numpy as np
import pytest

WEIGHT = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def softmax(x):
    odds = np.exp(x @ WEIGHT)
    return odds / odds.sum(-1, keepdims=True)


def write_classifier(path, classes=("cat", "dog", "owl"), threshold=0.5):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, numbers = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        make.make_node("MatMul", ["input", "weight"], ["logits"]),
        make.make_node("Softmax", ["logits"], ["probs"]),
        make.make_node("ReduceMax", ["probs", "last"], ["confidence"], keepdims=0),
        make.make_node("Less", ["confidence", "threshold"], ["abstain"]),
    ]
    constants = {"weight": WEIGHT, "last": np.array([-1]), "threshold": np.float32(threshold)}
    graph = make.make_graph(
        nodes,
        "classifier",
        [make.make_tensor_value_info("input", numbers, ["batch", 4])],
        [
            make.make_tensor_value_info("probs", numbers, ["batch", 3]),
            make.make_tensor_value_info("confidence", numbers, ["batch"]),
            make.make_tensor_value_info("abstain", onnx.TensorProto.BOOL, ["batch"]),
        ],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = make.make_model(graph, ir_version=10, opset_imports=[make.make_opsetid("", 20)])
    record = {"inputs": ["input"], "outputs": ["probs", "confidence", "abstain"], "classes": classes}
    make.set_model_props(
        model, {"varprop.json": json.dumps(record | {"threshold": threshold, "processor": None, "versions": {}})}
    )
    onnx.save(model, path)
    return path


@pytest.fixture
def classifier(tmp_path):
    """The file; ``softmax`` is what it computes, and it abstains below 0.5."""
    return write_classifier(tmp_path / "classifier.onnx")
