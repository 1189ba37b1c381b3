"""Networks that are not saved, and saves that are cut short."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import varprop as vp
from tests.models import posterior_of
from tests.network.saved import Net, network
from varprop.errors import NetworkFileError
from varprop.network import saving


def test_float16_is_not_saved(tmp_path):
    model = Net().half().eval()
    with pytest.raises(NetworkFileError, match="cannot save .*: torch.float16 is not supported: use float32"):
        vp.propagate(model, posterior_of(model)).save_pretrained(tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_other_things_are_not_overwritten(tmp_path, made):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"mine")
    (tmp_path / "file").write_text("mine")
    for name in ("hf", "weights"):
        with pytest.raises(
            NetworkFileError, match="cannot save .*: the folder holds something else .*: give a new one"
        ):
            made.save_pretrained(tmp_path / name)
    with pytest.raises(NetworkFileError, match="cannot save .*File exists"):
        made.save_pretrained(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["hf", "config.json", "weights", "model.safetensors", "file"]
    )


def test_foreign_files_stay(folder, made):
    (folder / "README.md").write_text("mine")
    network(0.5).save_pretrained(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert bool((vp.MomentNet.from_pretrained(folder, Net().eval()).var["outer.bias"] == 0.5).all())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(folder, made):
    folder.chmod(0o500)
    with pytest.raises(NetworkFileError, match="cannot save .*Permission denied"):
        made.save_pretrained(folder)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(28, "No space left on device")])
def test_a_disk_that_is_full_or_locked(folder, monkeypatch, error):
    def fail(tensors, path, metadata):
        path.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(saving, "save_file", fail)
    with pytest.raises(NetworkFileError, match=f"cannot save {folder}: .*{error.strerror}"):
        network(0.5).save_pretrained(folder)
    assert_holds(folder, 1e-3)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_tensors_that_cannot_be_stored(tmp_path):
    net = network()
    net.buffer.set("odd", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(NetworkFileError, match="some tensors cannot be stored: torch.complex128"):
        net.save_pretrained(tmp_path)


def assert_holds(folder, var):
    assert torch.unique(vp.MomentNet.from_pretrained(folder, Net().eval()).var["outer.bias"]).tolist() == [
        pytest.approx(var)
    ]


KILLED = """
import os, sys
from pathlib import Path
import torch
from tests.network.saved import network

net, left, real = network(0.5), int(sys.argv[2]), Path.replace

def replace(path, target):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    return real(path, target)

Path.replace = replace
net.save_pretrained(sys.argv[1])
os._exit(0 if left == 0 else 1)
"""


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_a_killed_save_leaves_the_old_network_or_the_new_one(folder, renames):
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(renames)], check=False, cwd=root)
    assert run.returncode == (9 if renames < 3 else 0)
    assert_holds(folder, 0.5 if renames >= 2 else 1e-3)
    network(0.25).save_pretrained(folder)  # and the next save is whole again
    assert_holds(folder, 0.25)
    assert (folder / ".model.safetensors.new").exists() is False


def interrupt(folder, net, renames):
    """Save, with Ctrl-C at the rename after this many."""
    left, real = renames, Path.replace

    def replace(path, target):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            net.save_pretrained(folder)


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_an_interrupt_leaves_the_old_network_or_the_new_one(folder, renames):
    interrupt(folder, network(0.5), renames)
    assert_holds(folder, 0.5 if renames >= 2 else 1e-3)
    if renames < 2:
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_two_interrupts_in_a_row(folder, renames):
    interrupt(folder, network(0.5), 2)  # the new tensors have no name yet
    interrupt(folder, network(0.25), renames)
    assert_holds(folder, 0.25 if renames == 3 else 0.5)


def test_a_network_saved_while_another_process_loads(folder, monkeypatch):
    net, real, times = network(0.5), saving.read_tensors, []

    def slow(*args):
        tensors = real(*args)
        if not times:
            net.save_pretrained(folder)
        times.append(1)
        return tensors

    monkeypatch.setattr(saving, "read_tensors", slow)
    assert_holds(folder, 0.5)
    assert len(times) == 2
