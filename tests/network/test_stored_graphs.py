"""Graphs that come back from a folder: what they compute, when they are not used, and what is refused."""

import copy
import functools
import importlib.util
import json
import math
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import varprop as vp
from tests.models import make, posterior_of
from tests.network.saved import Net, captured, edit, no_capture, rewrite
from varprop.errors import NetworkFileError
from varprop.graph.graph_json import read_captured, write_captured
from varprop.network.audit import audit_of
from varprop.network.fingerprint import fingerprint

WEIGHTS = "model.safetensors"
OTHERS = ("bert", "beit", "clip", "distilbert", "resnet")  # BERT, GPT-2 and Llama are in test_saving.py


class Chain(nn.Module):
    """What graphs have of their own: a function, a constant, a custom norm, a part that is called twice."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.factor = nn.Linear(4, 4), nn.Linear(4, 3), 0.5

    def forward(self, x):
        for _ in range(2):
            x = self.inner(x)
            x = x * torch.sigmoid(x * self.factor) + torch.tensor([math.pi, 0.0, -1.0, 2.0], dtype=x.dtype)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return self.outer(x.where(x > -torch.inf, 0.0)).softmax(-1)


def saved(model, inputs, folder, **options):
    net = vp.propagate(model, posterior_of(model), **options)
    result = net(**inputs)
    net.save_pretrained(folder)
    return net, result


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def stored(folder):
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        return json.loads(file.metadata()["graphs"])


# --- what comes back -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Chain ends in softmax")
def test_it_is_the_network_that_was_saved(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    net, result = saved(Chain().eval(), {"x": x}, tmp_path / "a")
    with no_capture():
        loaded = vp.MomentNet.from_pretrained(tmp_path / "a", Chain().eval())
        assert loaded.signatures == net.signatures
        assert same(loaded(x), result)
        assert same(loaded(x[:2]), net(x[:2]))  # a size that is free
        assert same(copy.deepcopy(loaded)(x), result)
        assert audit_of(loaded, loaded._plans[0]) == audit_of(net, net._plans[0])
        before, after = net.trace(x), loaded.trace(x)
        assert [*before] == [*after]
        assert all(same(before.inputs[path], after.inputs[path]) for path in before.inputs)
        for each in (net, loaded):
            for _, scale in each.scale:
                scale.requires_grad_()
            each(x).var.sum().backward()
        assert all(torch.equal(a.grad, b.grad) for (_, a), (_, b) in zip(net.scale, loaded.scale, strict=True))
        loaded.save_pretrained(tmp_path / "b")
    assert stored(tmp_path / "b") == stored(tmp_path / "a")
    assert load_file(tmp_path / "b" / WEIGHTS).keys() == load_file(tmp_path / "a" / WEIGHTS).keys()


@pytest.mark.second
@pytest.mark.filterwarnings("ignore:Chain ends in softmax")
def test_it_is_captured_again_when_that_is_needed(tmp_path):
    """For another dtype, and for another call."""
    x = torch.randn(5, 4)
    net, _ = saved(Chain().eval(), {"x": x}, tmp_path)
    loaded = vp.MomentNet.from_pretrained(tmp_path, Chain().eval())
    assert same(loaded(vp.Moments(x, x.square())), net(vp.Moments(x, x.square())))
    assert same(loaded.double()(x.double()), net.double()(x.double()))


@pytest.mark.parametrize(
    "name",
    [pytest.param("vit", marks=pytest.mark.second), *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)],
)
def test_models_of_transformers(tmp_path, name):
    model, batch = make(name)
    net, result = saved(model, batch, tmp_path, rules=vp.FACTORED if name == "vit" else vp.CVP)
    with no_capture():
        loaded = vp.MomentNet.from_pretrained(tmp_path)
        assert same(loaded(**batch), result)
        if name == "bert":
            shorter = {key: tensor[:2, :5] for key, tensor in batch.items()}
            assert same(loaded(**shorter), net(**shorter))


@pytest.mark.slow
def test_an_encoder_with_a_decoder(tmp_path):
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    call = {"src": torch.randn(2, 3, 8), "tgt": torch.randn(2, 4, 8)}
    _, result = saved(model, call, tmp_path)
    with no_capture():
        loaded = vp.MomentNet.from_pretrained(tmp_path, nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval())
        assert same(loaded(**call), result)


def test_the_device_is_that_of_the_network():
    """No device that was captured stays."""
    net = captured()
    record = write_captured(net._plans[0].captured, net.device)
    there = copy.deepcopy(net)
    for registry in (there.mean, there.var, there.buffer, there.scale):
        registry.to("meta")
    found = read_captured(record, net._plans[0].call, there)
    assert {node.meta["val"].device.type for node in found.ops()} == {"meta"}


# --- when a call is captured again -----------------------------------------------------------------------


def test_networks_without_stored_graphs(folder):
    """Those of earlier versions."""
    rewrite(folder)
    loaded = vp.MomentNet.from_pretrained(folder, Net().eval())
    x = torch.randn(2, 4)
    assert same(loaded(x), captured()(x))
    with no_capture(), pytest.raises(AssertionError, match="it is captured"):
        vp.MomentNet.from_pretrained(folder, Net().eval())


def test_another_version(folder):
    edit(folder, lambda config: config["versions"].update(torch="1.0"))
    with pytest.warns(UserWarning, match="so its calls are captured again.*: save it again") as caught:
        loaded = vp.MomentNet.from_pretrained(folder, Net().eval())
    assert [warning.filename for warning in caught] == [__file__]
    x = torch.randn(2, 4)
    assert same(loaded(x), captured()(x))


class Custom(nn.Module):
    def __init__(self, activation=torch.relu, **settings):
        super().__init__()
        self.layer, self.activation, self.settings = nn.Linear(4, 4), activation, settings

    def forward(self, x):
        return self.activation(self.layer(x))


def test_settings_are_in_the_fingerprint_of_a_model():
    first = fingerprint(Custom())
    assert fingerprint(Custom()) == first  # whatever its weights
    others = [Custom(torch.tanh), Custom(nn.ReLU()), Custom(size=2), Custom(size=[2]), Custom(net=Settings(2))]
    others += [Custom(functools.partial(torch.clamp, min=bound)) for bound in (1.0, 2.0)]
    found = [first, *map(fingerprint, others)]
    assert None not in found
    assert len({*found}) == len(found)


class Settings:
    def __init__(self, width):
        self.width = width


def test_a_model_with_code_of_its_own_has_no_fingerprint():
    hooked, replaced = Custom(), Custom()
    hooked.layer.register_forward_hook(lambda module, args, result: -result)
    replaced.layer.forward = lambda x: x
    for model in (Custom(lambda x: x), Custom(functools.partial(make)), Custom(part=[make]), hooked, replaced):
        assert fingerprint(model) is None


def test_source_files_are_in_the_fingerprint_of_a_model(tmp_path):
    def built(source):
        (tmp_path / "source.py").write_text(source)
        spec = importlib.util.spec_from_file_location("source", tmp_path / "source.py")
        sys.modules["source"] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            return fingerprint(nn.Sequential(module.Model()))
        finally:
            del sys.modules["source"]

    source = (
        "from torch import nn\nFACTOR = 2\nclass Model(nn.Linear):\n    def __init__(self): super().__init__(2, 2)\n"
    )
    assert built(source) == built(source) != built(source.replace("2\n", "3\n", 1))


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{", "\x00", "[" * 10_000, "3", "[]", "[1, 2]"])
def test_notes_that_are_no_graphs(folder, text):
    rewrite(folder, graphs=text)
    with pytest.raises(NetworkFileError, match=r"cannot load .*: the graphs in model.safetensors are not"):
        vp.MomentNet.from_pretrained(folder, Net().eval())


OPS = (
    *("os.system", "builtins.eval", "torch.load", "torch.ops.load_library", "operator.attrgetter", "prim.Print"),
    *("aten.set_.source_Tensor", "aten.relu_.default", "aten.add.out", "aten.from_file.default", "aten.save.default"),
    *(
        "aten.rand.default",
        "aten.__class__.default",
        "aten.relu.__class__",
        "varprop.__import__",
        "",
        None,
        3,
        ["aten"],
    ),
)


def first_row(change):
    return lambda graph: graph["rows"].__setitem__(0, change(graph["rows"][0]))


def last_row(change):
    return lambda graph: graph["rows"].__setitem__(-1, change(graph["rows"][-1]))


def nested(depth):
    return [nested(depth - 1)] if depth else 1


TAMPERED = [
    *((first_row(lambda row, op=op: [op, *row[1:]]), "row 0.*none of the ops") for op in OPS),
    (first_row(lambda row: ["operator.mul", [10**9, 10**9], {}]), "row 0.*no node"),
    (first_row(lambda row: ["operator.mul", [{"node": 0}, "text"], {}]), "row 0.*takes no 'text'"),
    (first_row(lambda row: [row[0], [*row[1], *[1] * 20], {}]), "row 0.*not its arguments"),
    (first_row(lambda row: [row[0], row[1][:1], {}]), "row 0.*not its arguments"),
    (first_row(lambda row: [row[0], row[1], {"x=print('run'),y": 1}]), "row 0.*not its arguments"),
    (first_row(lambda row: [row[0], [row[1][0], "weight"], {}]), "row 0.*takes no 'weight'"),
    (first_row(lambda row: [row[0], [{"node": 10**6}, *row[1][1:]], {}]), "row 0.*refers to 1000000"),
    (first_row(lambda row: [row[0], [{"node": -1}, *row[1][1:]], {}]), "row 0.*refers to -1"),
    (first_row(lambda row: [row[0], [{"node": "x"}, *row[1][1:]], {}]), "row 0.*refers to 'x'"),
    (first_row(lambda row: [row[0], [[1] * 100_000], {}]), "row 0.*too many"),
    (first_row(lambda row: [row[0], [nested(50)], {}]), "row 0.*too deeply"),
    (first_row(lambda row: [row[0], [10**30], {}]), "row 0.*no argument"),
    (first_row(lambda row: [row[0], [{"pickle": "x"}], {}]), "row 0.*no pickle"),
    (first_row(lambda row: [row[0], [{"dtype": "load"}], {}]), "row 0.*no dtype"),
    (first_row(lambda row: [row[0], [{"function": {"inputs": -1}}], {}]), "row 0.*makes no sense"),
    (first_row(lambda row: [row[0]]), "row 0.*no op with its arguments"),
    (first_row(lambda row: ["aten.full.default", [[2**20, 2**20], 1.0], {}]), "row 0.*too large"),
    (first_row(lambda row: [row[0], [row[1][0], row[1][2], row[1][2]], {}]), "row 0, 'aten.linear.default'"),  # shapes
    (last_row(lambda row: [row[0], [row[1][0], *row[1][2:]], {}]), "row .*'aten.linear.default'"),
    (lambda graph: graph["tensors"][0].__setitem__(1, "other"), "no tensor 'other'"),
    (lambda graph: graph["tensors"][0].__setitem__(0, "_apply"), "no tensor"),
    (lambda graph: graph["tensors"][0].__setitem__(3, 7), "not ..*float32.*7"),
    (lambda graph: graph["tensors"][0].__setitem__(2, "float64"), "not ..*float64"),
    (lambda graph: graph["inputs"][0].__setitem__(-1, 5), "a size of 5"),
    (lambda graph: graph["inputs"][0].__setitem__(1, "x; print()"), "x; print"),
    (lambda graph: graph.update(ranges={"s1": ["a", 3]}), "range of sizes"),
    (lambda graph: graph.update(ending="load"), "no ending 'load'"),
    (lambda graph: graph.update(output=10**6), "is wrong"),
    (lambda graph: graph.update(rows={}), "no list"),
    (lambda graph: graph.pop("marks"), "marks"),
    (last_row(lambda row: ["aten.neg.default", row[1][:1], {}]), "not the one that config.json tells of"),
]


@pytest.mark.parametrize(("change", "expected"), TAMPERED)
def test_graphs_that_make_no_sense(folder, change, expected, capsys):
    (graph,) = stored(folder)
    change(graph)
    rewrite(folder, graphs=json.dumps([graph]))
    with pytest.raises(NetworkFileError, match=expected) as caught:
        vp.MomentNet.from_pretrained(folder, Net().eval())
    assert str(caught.value).startswith(f"cannot load {folder}: a graph in model.safetensors is ")
    assert not capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Chain ends in softmax")
def test_constants_are_what_their_names_say(tmp_path):
    saved(Chain().eval(), {"x": torch.randn(2, 4)}, tmp_path)
    tensors, text = load_file(tmp_path / WEIGHTS), json.dumps(stored(tmp_path))
    (name,) = (key for key in tensors if key.startswith("constant."))
    tensors[name] = tensors[name] + 1
    rewrite(tmp_path, tensors, text)
    with pytest.raises(NetworkFileError, match="is not what its name says"):
        vp.MomentNet.from_pretrained(tmp_path, Chain().eval())
