"""save_pretrained and from_pretrained: what comes back is what was saved, bit for bit, here and in another process."""

import copy
import functools
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import varprop as vp
from tests.models import make, posterior_of
from tests.network.saved import no_capture
from varprop.graph.registry import scale_path
from varprop.rules import NAMED

LOADER = """
import sys, torch
from safetensors.torch import load_file, save_file
import varprop as vp
torch.set_num_threads(1)
folder = sys.argv[1]
net = vp.MomentNet.from_pretrained(folder)
assert len(net.signatures) == 1, net.signatures
batch = load_file(f"{folder}/batch.safetensors")
mean, var = net(**{name: batch[name] for name in sorted(batch, reverse=True)})  # as they were given: ids, mask
assert len(net.signatures) == 1, net.signatures
save_file({"mean": mean, "var": var}, f"{folder}/fresh.safetensors")
"""


class Convolutions(nn.Sequential):
    def __init__(self, width=6):
        super().__init__(
            nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(width, 4),
        )  # fmt: skip


class Switch(nn.Module):
    """Calls of every kind: constants, containers, Moments, an optional argument."""

    def __init__(self):
        super().__init__()
        self.inner, self.act, self.outer = nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3)
        self.register_buffer("shift", torch.full((3,), 0.25), persistent=False)

    def forward(self, x, factor=1.0, *, batch=None, kind=torch.float32, where=None):
        y = self.outer(self.act(self.inner(x))) * factor + self.shift
        if batch is not None:
            y = y + batch["extra"][0].to(kind)
        return {"y": y, "half": y[:, :2] if where is None else y}


def convolutions():
    torch.manual_seed(0)
    model = Convolutions()
    for _ in range(3):
        model(torch.randn(8, 3, 9, 9) * 2 + 1)  # running statistics of its own
    return model.eval()


def assert_same(a, b):
    assert a.mean.dtype == b.mean.dtype
    assert torch.equal(a.mean, b.mean)
    assert torch.equal(a.var, b.var)
    assert bool((a.var > 0).any())


def with_scales(net):
    """As after a calibration: every scale has a value of its own."""
    for index, name in enumerate(net.scales):
        with torch.no_grad():
            net.scale[scale_path(name)].fill_(0.1 * (index + 1))
    return net


@pytest.fixture(scope="module")
def transformers_net(tmp_path_factory):
    """By family: the folder of a saved network, the network, a batch, and the network that comes back."""

    @functools.cache
    def save(name):
        model, batch = make(name, **({"attn_implementation": "eager"} if name == "bert" else {}))
        net = vp.propagate(model, posterior_of(model), rules=vp.STREAMLINING if name == "gpt2" else vp.CVP)
        net.capture(**batch)
        folder = tmp_path_factory.mktemp(name)
        with_scales(net).save_pretrained(folder)
        save_file(batch, folder / "batch.safetensors")
        state = torch.random.get_rng_state()
        with no_capture():
            loaded = vp.MomentNet.from_pretrained(folder)
        assert torch.equal(torch.random.get_rng_state(), state)
        return folder, net, batch, loaded

    return save


@pytest.mark.parametrize("name", ["bert", "gpt2", pytest.param("llama", marks=pytest.mark.second)])
def test_transformers_come_back_without_the_model(transformers_net, name):
    folder, net, batch, loaded = transformers_net(name)
    assert loaded.scales == net.scales
    assert loaded.rules is net.rules
    assert loaded.signatures == net.signatures
    assert list(loaded.state_dict()) == list(net.state_dict())
    assert dict([*loaded.buffer]).keys() == dict([*net.buffer]).keys()
    assert_same(loaded(**batch), net(**batch))
    assert loaded.signatures == net.signatures
    config = json.loads((folder / "config.json").read_text())["architecture"]
    assert config["attention"] == loaded._model[0].config._attn_implementation
    assert config["attention"] == ("eager" if name == "bert" else "sdpa")


@pytest.mark.slow  # tests/test_path.py does it with small models
def test_in_a_fresh_process(transformers_net):
    folder, net, batch, _ = transformers_net("llama")
    run = subprocess.run([sys.executable, "-c", LOADER, str(folder)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert_same(vp.Moments(**load_file(folder / "fresh.safetensors")), net(**batch))


def test_a_rebuilt_model_is_the_mean_network(transformers_net):
    """It shares its memory with the network, so that errors about inputs are the model's own."""
    folder, net, batch, loaded = transformers_net("gpt2")
    rebuilt = loaded._model[0]
    assert rebuilt.lm_head.weight is rebuilt.transformer.wte.weight
    assert rebuilt.lm_head.weight.data_ptr() == loaded.mean["transformer.wte.weight"].data_ptr()
    torch.testing.assert_close(rebuilt(**batch).logits, net(**batch).mean, rtol=1e-4, atol=1e-5)
    with pytest.raises(vp.errors.InputError, match="GPT2LMHeadModel itself fails on these inputs: (?!.*meta)"):
        loaded(torch.randn(2, 7))
    keys = load_file(folder / "model.safetensors").keys()
    assert not any("lm_head" in key for key in keys)  # tied: saved once


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_model_that_is_given(tmp_path, dtype):
    model, x = convolutions().to(dtype), torch.randn(5, 3, 9, 9, dtype=dtype)
    net = vp.propagate(model, posterior_of(model))
    net.capture(x)
    with_scales(net).save_pretrained(tmp_path)
    with no_capture():
        loaded = vp.MomentNet.from_pretrained(tmp_path, Convolutions().eval())
    assert loaded.dtype == dtype
    assert loaded.scales == net.scales
    assert set(loaded.scales.values()) != {1.0}
    assert_same(loaded(x), net(x))
    assert len(loaded.signatures) == 1


def test_rules_of_the_library_come_back_by_name(tmp_path):
    model = convolutions()
    for rules in NAMED.values():
        vp.propagate(model, posterior_of(model), rules=rules).save_pretrained(tmp_path)
        assert vp.MomentNet.from_pretrained(tmp_path, Convolutions().eval()).rules is rules


def switch_calls():
    torch.manual_seed(1)
    x, noise = torch.randn(5, 4), vp.Moments(torch.randn(5, 3), torch.rand(5, 3))
    batch = {"extra": [torch.randn(5, 3), 7], "flag": True, 3: None}
    return [
        lambda net: net(x),
        lambda net: net(x, 2, where="half"),
        lambda net: net(x, 0.1, batch=batch, kind=torch.float64, where=torch.device("cpu")),
        lambda net: net(vp.Moments(x, x**2), batch={"extra": (noise,)}),
    ]


@pytest.mark.second
def test_every_call_comes_back(tmp_path):
    model, calls = Switch().eval(), switch_calls()
    net = vp.propagate(model, posterior_of(model), output="y")
    results = [call(net) for call in calls]
    net.save_pretrained(tmp_path)
    with no_capture():
        loaded = vp.MomentNet.from_pretrained(tmp_path, Switch().eval())
    assert loaded.signatures == net.signatures
    assert len(loaded.signatures) == 4
    for call, result in zip(calls, results, strict=True):
        assert_same(call(loaded), result)
    assert len(loaded.signatures) == 4
    assert loaded.output == "y"
    assert "shift" in loaded.buffer  # not in the model's state dict, and still not that of the model given


def test_a_call_that_json_cannot_hold_is_left_to_its_next_time(tmp_path):
    class Half(float):
        pass

    model, x = Switch().eval(), torch.randn(2, 4)
    net = vp.propagate(model, posterior_of(model), output="y")
    result = net(x, Half(0.5))
    with pytest.warns(UserWarning, match=r"the call float32\[.*4\] is not saved.*0.5 is a Half") as caught:
        net.save_pretrained(tmp_path)
    assert caught[0].filename == __file__
    loaded = vp.MomentNet.from_pretrained(tmp_path, Switch().eval())
    assert loaded.signatures == []
    assert loaded.scales == net.scales
    assert_same(loaded(x, Half(0.5)), result)


def test_before_anything_was_captured(tmp_path):
    model, given, x = Switch().eval(), Switch().eval(), torch.randn(2, 4)
    before = copy.deepcopy(given.state_dict())
    net = vp.propagate(model, posterior_of(model).restrict("outer"), output="y")
    net.save_pretrained(tmp_path)
    loaded = vp.MomentNet.from_pretrained(tmp_path, given)
    assert loaded.signatures == []
    assert set(dict([*loaded.var])) == {"outer.weight", "outer.bias"}
    assert_same(loaded(x), net(x))
    loaded.load_state_dict(net.state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())


def test_memory_layouts_come_back(tmp_path):
    model = convolutions().to(memory_format=torch.channels_last)
    net = vp.propagate(model, posterior_of(model).restrict("5"))
    net.save_pretrained(tmp_path)
    loaded = vp.MomentNet.from_pretrained(tmp_path, Convolutions().eval())
    assert loaded.mean["0.weight"].stride() == net.mean["0.weight"].stride()
    assert not loaded.mean["0.weight"].is_contiguous()
    assert torch.equal(loaded.mean["0.weight"], net.mean["0.weight"])


@pytest.mark.filterwarnings("ignore:calibration ended after")  # a few steps will do
def test_a_loaded_network_can_be_calibrated_moved_and_saved(tmp_path):
    model, given, x = convolutions(), Convolutions().eval(), torch.randn(60, 3, 9, 9)
    vp.propagate(model, posterior_of(model, 1e-2)).save_pretrained(tmp_path / "a")
    with torch.inference_mode():
        net = vp.MomentNet.from_pretrained(tmp_path / "a", given, device="cpu")
    settings = {"procedure": vp.FixedEpochs(2, lr=0.1), "progress": False, "scales": vp.OUTPUT_ONLY}
    net = vp.calibrate(net, [(x, torch.randint(4, (60,)))], **settings)
    net.double().save_pretrained(tmp_path / "b" / "c")
    again = vp.MomentNet.from_pretrained(tmp_path / "b" / "c", Convolutions().eval())
    assert again.scales == net.scales
    assert again.scales["(output)"] != 1.0
    assert_same(again(x.double()), net(x.double()))


def test_what_is_on_disk(tmp_path):
    model = Switch().eval()
    net = vp.propagate(model, posterior_of(model), output="y")
    net.capture(torch.randn(2, 4))
    folder = tmp_path / "net"
    previous = os.umask(0o022)
    try:
        net.save_pretrained(folder)
    finally:
        os.umask(previous)
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert files == {"config.json": 0o644, "model.safetensors": 0o644}  # others may read them
    config = json.loads((folder / "config.json").read_text())
    assert config["versions"]["varprop"] == vp.__version__
    assert config["architecture"] == {"class": "Switch", "module": __name__}
    assert config["rules"] == {"name": "CVP", "library": True}
    assert config["scales"] == ["act", "(output)"]
    assert config["calls"][0]["structure"] == {"tuple": [{"tuple": []}, {"dict": [["x", "tensor"]]}]}
    assert config["calls"][0]["inputs"] == [{"dtype": "float32", "shape": [2, 4]}]
    tensors = load_file(folder / "model.safetensors")
    assert {key.partition(".")[0] for key in tensors} == {"mean", "var", "buffer", "scale"}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux which memory is of a file")
def test_on_disk_weights_stay_in_their_file(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=0.1))
    net.save_pretrained(tmp_path)
    found = vp.MomentNet.from_pretrained(tmp_path, model, device="disk", accelerator="cpu")
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    for _, tensor in [*found.mean, *found.var]:
        assert any(low <= tensor.data_ptr() < high for low, high in ranges)
    x = torch.randn(5, 4)
    for a, b in zip(found(x), net(x), strict=True):
        torch.testing.assert_close(a, b)
    assert found.device.type == "cpu"
