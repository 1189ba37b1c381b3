"""save and load: whole files come back exactly, anything else is refused with the reason."""

import json
import os
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from varprop.errors import PosteriorError, PosteriorFileError
from varprop.posterior import Posterior


def posterior():
    torch.manual_seed(0)
    mean = {
        "blocks.1.weight": torch.randn(3, 4),
        "scalar": torch.randn(()),
        "empty": torch.zeros(0, 2),
        "half": torch.randn(5).bfloat16(),
        "double": torch.randn(2, dtype=torch.float64),
    }
    return Posterior.from_tensors(mean, {name: tensor.square() for name, tensor in mean.items()})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "posterior.safetensors"
    posterior().save(path)
    return path


def reason(path):
    with pytest.raises(PosteriorFileError) as caught:
        Posterior.load(path)
    assert f"cannot load {path}: " in str(caught.value)
    return str(caught.value)


def test_round_trip_is_exact(path):
    saved, loaded = posterior(), Posterior.load(path)
    assert set(loaded) == set(saved)
    for name in saved:
        for before, after in zip(saved[name], loaded[name], strict=True):
            assert before.dtype == after.dtype
            assert torch.equal(before, after)
    seeds = [p.sample(torch.Generator().manual_seed(3)) for p in (saved, loaded)]
    assert all(torch.equal(seeds[0][name], seeds[1][name]) for name in saved)


def test_the_file_is_plain_safetensors(path):
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        keys = set(file.keys())
    assert metadata["format"] == "varprop.posterior"
    assert metadata["version"] == "1"
    assert keys == {f"{role}.{name}" for role in ("mean", "var") for name in posterior()}


def test_an_empty_posterior_and_a_channels_last_one(tmp_path):
    Posterior.from_tensors({}, {}).save(tmp_path / "empty")
    assert len(Posterior.load(tmp_path / "empty")) == 0
    weight = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    Posterior.from_tensors({"w": weight}, {"w": weight}).save(str(tmp_path / "conv"))
    assert torch.equal(Posterior.load(str(tmp_path / "conv"))["w"].mean, weight)


def test_files_without_a_checksum_are_read(tmp_path):
    metadata = {"format": "varprop.posterior", "version": "1"}
    save_file({"mean.w": torch.ones(2), "var.w": torch.ones(2)}, tmp_path / "p", metadata)
    assert Posterior.load(tmp_path / "p").names == ("w",)


def test_saving_replaces_the_file_and_leaves_nothing_else(path):
    Posterior.from_tensors({"w": torch.ones(1)}, {"w": torch.ones(1)}).save(path)
    assert Posterior.load(path).names == ("w",)
    assert os.listdir(path.parent) == [path.name]  # noqa: PTH208


def test_a_failed_save_keeps_the_old_file(path, monkeypatch):
    def full(tensors, filename, metadata):
        filename.write_bytes(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr("varprop.posterior.file.save_file", full)
    with pytest.raises(PosteriorFileError, match=r"cannot save .*posterior.safetensors: No space left"):
        posterior().save(path)
    assert len(Posterior.load(path)) == 5
    assert os.listdir(path.parent) == [path.name]  # noqa: PTH208


def test_where_it_cannot_be_saved(tmp_path):
    with pytest.raises(PosteriorFileError, match=r"the folder .*missing does not exist; create it first"):
        posterior().save(tmp_path / "missing" / "p.safetensors")
    with pytest.raises(PosteriorFileError, match="it is a folder; add a file name"):
        posterior().save(tmp_path)


def test_where_there_is_nothing_to_load(tmp_path):
    assert "there is no such file" in reason(tmp_path / "nothing")
    assert "it is a folder" in reason(tmp_path)


def test_bytes_that_are_no_whole_safetensors_file(path):
    whole = path.read_bytes()
    for content in (b"", b"not a tensor file at all", b"\x80\x04\x95" + bytes(100), whole[:4], whole[:20], whole[:-1]):
        path.write_bytes(content)
        assert "not a whole safetensors file" in reason(path)
    torch.save({"mean.w": torch.ones(1)}, path)
    assert "not a whole safetensors file" in reason(path)


def test_another_safetensors_file(path):
    save_file({"weight": torch.ones(2)}, path)
    assert "not a posterior" in reason(path)
    save_file({"weight": torch.ones(2)}, path, {"format": "pt"})
    assert "not a posterior" in reason(path)


def rewritten(path, tensors, version="1"):
    save_file(tensors, path, {"format": "varprop.posterior", "version": version})
    return reason(path)


def test_tampered_contents(path):
    one, two = torch.ones(2), torch.ones(2)
    assert "format version '2'" in rewritten(path, {"mean.w": one, "var.w": two}, "2")
    assert "unexpected tensor 'std.w'" in rewritten(path, {"mean.w": one, "std.w": two})
    assert "unexpected tensor 'mean'" in rewritten(path, {"mean": one})
    assert "'w' has a mean but no variance" in rewritten(path, {"mean.w": one})
    assert "is negative in 2 of 2" in rewritten(path, {"mean.w": one, "var.w": -one})
    assert "shape (2,), the variance (3,)" in rewritten(path, {"mean.w": one, "var.w": torch.ones(3)})
    assert "not floating point" in rewritten(path, {"mean.w": one.long(), "var.w": two.long()})


def test_a_header_that_asks_for_too_much(path):
    data = path.read_bytes()
    path.write_bytes(struct.pack("<Q", 2**60) + data[8:])
    assert "not a whole safetensors file" in reason(path)
    header = {"mean.w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    assert "not a whole safetensors file" in reason(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_every_flipped_bit_is_noticed(path, where, bit):
    whole = path.read_bytes()
    data = bytearray(whole)
    data[int(where * len(data))] ^= 1 << bit
    broken = path.with_name("broken")
    broken.write_bytes(bytes(data))
    try:
        loaded = Posterior.load(broken)
    except PosteriorFileError as error:
        assert str(broken) in str(error)
    else:
        # Only a flip that leaves every tensor as it was (in the checksum's own name, or in padding) may pass.
        saved = posterior()
        assert set(loaded) == set(saved)
        assert all(torch.equal(a, b) for name in saved for a, b in zip(saved[name], loaded[name], strict=True))


def test_file_errors_are_posterior_errors(tmp_path):
    with pytest.raises(PosteriorError):
        Posterior.load(tmp_path / "nothing")
