"""Folders that are not loaded, each with the reason."""

import copy
import dataclasses
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import varprop as vp
from tests.models import make, posterior_of
from tests.network.saved import Net, captured, edit, rewrite, uncaptured
from varprop.errors import NetworkFileError
from varprop.graph.signature import Call

RULE = vp.rule(torch.ops.aten.i0.default)(lambda x: x)


def reason(folder, model=None, **options):
    with pytest.raises(NetworkFileError) as caught:
        vp.MomentNet.from_pretrained(folder, Net().eval() if model is None else model, **options)
    assert str(caught.value).startswith(f"cannot load {folder}: ")
    return str(caught.value)


# --- the folder ------------------------------------------------------------------------------------------


def test_where_there_is_nothing(tmp_path, folder):
    assert "there is no such folder" in reason(tmp_path / "nothing")
    assert "it has no config.json" in reason(tmp_path)
    assert "it is a file, not a folder" in reason(folder / "config.json")
    (folder / "model.safetensors").unlink()
    assert "it has no model.safetensors" in reason(folder)


@pytest.mark.parametrize("text", ["", "{", "\x00", "[" * 100_000])
def test_not_json(folder, text):
    (folder / "config.json").write_text(text)
    assert "its config.json is not JSON" in reason(folder)


def test_something_else(folder):
    for text in ("[]", "{}", '{"model_type": "bert"}'):
        (folder / "config.json").write_text(text)
        assert "not that of a propagated network" in reason(folder)


@pytest.mark.parametrize("version", [2, "1", None])
def test_another_format(folder, version):
    edit(folder, lambda config: config.update(version=version))
    assert f"version {version!r}, and this varprop reads version 1" in reason(folder)


@pytest.mark.parametrize("keep", [0, 8, 100, -1])
def test_truncated(folder, keep):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    assert f"has {len(whole[:keep])} bytes, and had {len(whole)} when it was saved" in reason(folder)


def test_tampered(folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert "model.safetensors changed after it was saved (checksum mismatch)" in reason(folder)


def test_entries_that_are_missing_or_of_the_wrong_kind(folder):
    whole = (folder / "config.json").read_text()
    for key in ("architecture", "calls", "rules", "layout", "weights", "scales", "versions"):
        for value in (None, 3, "x"):
            edit(folder, lambda config, key=key, value=value: config.update({key: value}))
            assert f"lacks a usable '{key}'" in reason(folder)
            (folder / "config.json").write_text(whole)
    edit(folder, lambda config: config.update(output=[1]))
    assert "lacks a usable 'output'" in reason(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"structure": {"pickle": "x"}},
        {"structure": "tensor"},
        {"structure": {"tuple": [{"tuple": []}, {"dict": [["x", {"constant": {}}]]}]}},
        {"structure": {"tuple": [{"tuple": []}, {"dict": [["x", {"dtype": "load"}]]}]}},
        {"structure": {"tuple": [{"tuple": []}, {"dict": [["x", {"device": "here"}]]}]}},
        {"inputs": []},
        {"inputs": [{"dtype": "float32", "shape": [2, -4]}]},
        {"inputs": [{"dtype": "float32", "shape": "24"}]},
        {"inputs": [{"dtype": "float32", "shape": [10**9, 4]}]},
        {"inputs": [{"dtype": "nn", "shape": [2, 4]}]},
    ],
)
def test_calls_that_make_no_sense(folder, change):
    edit(folder, lambda config: config["calls"][0].update(change))
    assert "a call in its config.json" in reason(folder)


def test_a_call_too_large_to_be_captured_on_loading(tmp_path):
    """It is left out when the network is saved, and captured when it is made."""
    net = copy.deepcopy(captured())
    huge = torch.empty(10**9, 4, device="meta")
    net._plans[0] = dataclasses.replace(net._plans[0], call=Call(net._plans[0].call.structure, [huge]))
    with pytest.warns(UserWarning, match=r"is not saved.*inputs of 16 GB"):
        net.save_pretrained(tmp_path)
    assert vp.MomentNet.from_pretrained(tmp_path, Net().eval()).signatures == []


def test_tensors_that_make_no_sense(folder):
    tensors = load_file(folder / "model.safetensors")
    one = torch.ones(1)
    for change, expected in [
        ({"std.inner.weight": one}, "unexpected tensor 'std.inner.weight'"),
        ({"mean.other": one}, "parameter 'other' was saved, but is not in the model"),
        ({"buffer.other": one}, "buffer 'other' was saved, but is not in the model"),
        (
            {"mean.inner.bias": None, "var.inner.bias": None},
            "parameter 'inner.bias' is in the model, but was not saved",
        ),
        ({"var.other": one}, "'other' has a variance but no mean"),
        ({"var.inner.bias": -torch.ones(6)}, "is negative in 6 of 6"),
        ({"var.inner.bias": one}, "has shape (6,), the variance (1,)"),
        ({"scale.act.log_alpha": None}, "disagree about the scales act.log_alpha"),
        ({"scale.act.log_alpha": one}, "disagree about the scales act.log_alpha"),
        ({"scale.other": one[0]}, "disagree about the scales other"),
        ({"scale.act.log_alpha": one[0] * torch.nan}, "no positive, finite number: act (nan)"),
        ({"scale.act.log_alpha": one[0] * 1000}, "no positive, finite number: act (inf)"),
        ({"mean.inner.bias": one.half(), "var.inner.bias": one.half()}, "torch.float16 is not supported"),
    ]:
        changed = {key: tensor for key, tensor in (tensors | change).items() if tensor is not None}
        rewrite(folder, changed)
        assert expected in reason(folder)
    edit(folder, lambda config: config.update(layout={"mean.inner.weight": [0, 0]}))
    assert "a layout it cannot have" in reason(folder)


# --- model, rules, output --------------------------------------------------------------------------------


def test_a_model_that_must_be_given(folder):
    with pytest.raises(NetworkFileError, match=r"it holds a Net of tests.network.saved, .*: give one as model="):
        vp.MomentNet.from_pretrained(folder)
    assert "it holds a Net, and the model given is a Linear" in reason(folder, nn.Linear(4, 3))
    with pytest.raises(vp.errors.TrainingModeError, match=r"call model.eval\(\) first"):
        vp.MomentNet.from_pretrained(folder, nn.Sequential(nn.Dropout()))


def test_every_difference_is_listed(folder):
    model = Net(8).eval()
    model.more = nn.BatchNorm1d(2, affine=False).eval()
    lines = reason(folder, model).splitlines()
    assert lines[1:] == [
        "  parameter 'inner.weight' has shape [8, 4] in the model, [6, 4] in the file",
        "  parameter 'inner.bias' has shape [8] in the model, [6] in the file",
        "  parameter 'outer.weight' has shape [3, 8] in the model, [3, 6] in the file",
        "  buffer 'more.running_mean' is in the model, but was not saved",
        "  buffer 'more.running_var' is in the model, but was not saved",
        "  buffer 'more.num_batches_tracked' is in the model, but was not saved",
    ]


def test_a_model_with_the_right_tensors_that_computes_something_else(folder):
    other = Net(heads=3).eval()
    assert "it computes something else in the call float32[" in reason(folder, other)
    edit(folder, lambda config: config["versions"].update(torch="1.0"))  # other versions may capture other graphs
    with pytest.warns(UserWarning, match="captured as another graph than the one saved with .*compare some outputs"):
        vp.MomentNet.from_pretrained(folder, other)


def test_rules_that_must_be_given(tmp_path):
    variants = {
        "mine": vp.CVP.replace(vp.streamlining.ACTIVATION, name="mine"),
        "CVP": vp.CVP | RULE,
    }
    for name, rules in variants.items():
        folder = tmp_path / name
        uncaptured(rules=rules).save_pretrained(folder)
        assert f"rules '{name}' that are not varprop's own: give them as rules=" in reason(folder)
        assert f"saved with the rules '{name}', and rules= is 'STREAMLINING'" in reason(folder, rules=vp.STREAMLINING)
        assert vp.MomentNet.from_pretrained(folder, Net().eval(), rules).rules is rules
    assert "a changed CVP, and rules= is CVP itself" in reason(tmp_path / "CVP", rules=vp.CVP)
    edit(tmp_path / "mine", lambda config: config["rules"].update(library=True))
    assert "this varprop has no rules 'mine', only 'CVP', 'FACTORED', 'STREAMLINING'" in reason(tmp_path / "mine")


@pytest.mark.filterwarnings("ignore:no variance reaches the output")  # a softmax
def test_outputs(tmp_path):
    def half(result):
        return result["y"][:, :2]

    x = torch.randn(2, 4)
    uncaptured(output="y").save_pretrained(tmp_path / "y")
    assert vp.MomentNet.from_pretrained(tmp_path / "y", Net().eval()).output == "y"
    assert "saved with output='y', not 'logits'" in reason(tmp_path / "y", output="logits")
    net, folder = captured(output=half), tmp_path / "half"
    net.save_pretrained(folder)
    assert torch.equal(vp.MomentNet.from_pretrained(folder, Net().eval(), output=half)(x).var, net(x).var)
    assert "chosen by a function, test_outputs.<locals>.half: give it as output=" in reason(folder)
    assert "computes something else" in reason(folder, output=lambda result: result["y"])


def test_changed_models_of_transformers_must_be_given(tmp_path):
    model, _ = make("vit")
    model.vit.layernorm.eps = 0.5
    vp.propagate(model, posterior_of(model)).save_pretrained(tmp_path / "eps")
    model, _ = make("vit")
    model.classifier.register_forward_hook(lambda *_: None)
    vp.propagate(model, posterior_of(model)).save_pretrained(tmp_path / "hook")
    for name in ("eps", "hook"):
        with pytest.raises(
            NetworkFileError, match="it was changed after transformers had built it.*: give one as model="
        ):
            vp.MomentNet.from_pretrained(tmp_path / name)
    loaded = vp.MomentNet.from_pretrained(tmp_path / "eps", make("vit")[0])
    assert dict([*loaded.mean]).keys() == dict(model.named_parameters()).keys()


def test_nothing_but_models_of_transformers_is_imported(tmp_path):
    model, _ = make("vit", attn_implementation="eager")
    vp.propagate(model, posterior_of(model)).save_pretrained(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('run')")
    for change, expected in [
        ({"module": "evil"}, "is no model of transformers, and nothing else is rebuilt"),
        ({"module": "transformers_modules.evil"}, "is no model of transformers"),
        ({"module": "transformers.models.vit.modeling_vit.os"}, "is no model of transformers"),
        ({"module": "transformers.models.evil.modeling_evil"}, "has no model ViTForImageClassification in"),
        ({"class": "torch"}, "has no model torch in"),
        ({"class": "PreTrainedModel"}, "has no model PreTrainedModel in"),
        ({"class": "ViTConfig"}, "has no model ViTConfig in"),
        ({"attention": "evil/kernel"}, "attention 'evil/kernel' is not rebuilt, only None, 'eager', 'sdpa'"),
        ({"config": {"hidden_size": "x"}}, "cannot rebuild its ViTForImageClassification"),
        ({"config": {"hidden_size": 16, "num_attention_heads": 4}}, "but not the one that was saved"),
    ]:
        text = (tmp_path / "config.json").read_text()
        edit(tmp_path, lambda config, change=change: config["architecture"].update(change))
        sys.path.insert(0, str(tmp_path))
        try:
            with pytest.raises(NetworkFileError) as caught:
                vp.MomentNet.from_pretrained(tmp_path)
        finally:
            sys.path.remove(str(tmp_path))
        assert expected in str(caught.value)
        (tmp_path / "config.json").write_text(text)
