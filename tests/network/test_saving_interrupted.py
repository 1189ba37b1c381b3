"""Networks that are not saved, and saves that are cut short."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import varprop as vp
from tests.network.saved import Net, uncaptured
from varprop.errors import NetworkFileError
from varprop.network import storage

FILES = ["config.json", "model.safetensors"]


@pytest.fixture
def folder(tmp_path):
    uncaptured(1e-3).save_pretrained(tmp_path / "net")
    return tmp_path / "net"


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def held(folder):
    """The variance of the network in the folder, which is the same for all of its weights."""
    (var,) = torch.unique(vp.MomentNet.from_pretrained(folder, Net().eval()).var["outer.bias"]).tolist()
    return pytest.approx(var)


def test_other_things_are_not_overwritten(tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"mine")
    (tmp_path / "file").write_text("mine")
    for name in ("hf", "weights"):
        with pytest.raises(
            NetworkFileError, match="cannot save .*: the folder holds something else .*: give a new one"
        ):
            uncaptured().save_pretrained(tmp_path / name)
    with pytest.raises(NetworkFileError, match="cannot save .*File exists"):
        uncaptured().save_pretrained(tmp_path / "file")
    found = [path.name for path in tmp_path.rglob("*")]
    assert sorted(found) == sorted(["hf", "config.json", "weights", "model.safetensors", "file"])


def test_foreign_files_stay(folder):
    (folder / "README.md").write_text("mine")
    uncaptured(0.5).save_pretrained(folder)
    assert files(folder) == ["README.md", *FILES]
    assert held(folder) == 0.5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(folder):
    folder.chmod(0o500)
    with pytest.raises(NetworkFileError, match="cannot save .*Permission denied"):
        uncaptured().save_pretrained(folder)


@pytest.mark.parametrize("written", ["tensors", "config"])
@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(28, "No space left on device")])
def test_a_disk_that_is_full_or_locked(folder, monkeypatch, written, error):
    def fail(content, path, *_, **__):
        (path if written == "tensors" else content).write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(*((storage, "save_tensors") if written == "tensors" else (Path, "write_text")), fail)
    with pytest.raises(NetworkFileError, match=f"cannot save {folder}: .*{error.strerror}"):
        uncaptured(0.5).save_pretrained(folder)
    assert held(folder) == 1e-3
    assert files(folder) == FILES


def test_tensors_that_cannot_be_stored(tmp_path):
    net = uncaptured()
    net.buffer["odd"] = torch.zeros(2, dtype=torch.complex128)
    with pytest.raises(NetworkFileError, match="some tensors cannot be stored: torch.complex128"):
        net.save_pretrained(tmp_path)


def interrupt(folder, net, renames, killed):
    """Save, stopped at the rename after this many; a killed process cleans nothing up."""
    left, real = renames, Path.replace

    def replace(path, target):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        if killed:
            patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
        with pytest.raises(KeyboardInterrupt):
            net.save_pretrained(folder)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("renames", [0, 1, 2])
def test_an_interrupted_save_leaves_the_old_network_or_the_new_one(folder, renames, killed):
    interrupt(folder, uncaptured(0.5), renames, killed)
    assert held(folder) == (0.5 if renames == 2 else 1e-3)
    for path in folder.iterdir():
        os.utime(path, (0, 0))  # that was long ago
    uncaptured(0.25).save_pretrained(folder)  # and the next save is whole again
    assert held(folder) == 0.25
    assert files(folder) == FILES  # nothing is left of the one before


def test_what_another_process_writes_now_is_left_alone(folder):
    (folder / ".model.safetensors.new.1234.tmp").write_bytes(b"half of it")
    uncaptured(0.25).save_pretrained(folder)
    assert files(folder) == [".model.safetensors.new.1234.tmp", *FILES]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_two_interrupts_in_a_row(folder, renames, killed):
    interrupt(folder, uncaptured(0.5), 2, killed)  # the new tensors have no name yet
    interrupt(folder, uncaptured(0.25), renames, killed)
    assert held(folder) == (0.25 if renames == 3 else 0.5)


def test_a_network_saved_while_another_process_loads(folder, monkeypatch):
    real, times = storage.read_tensors, []

    def slow(*args):
        tensors = real(*args)
        if not times:
            uncaptured(0.5).save_pretrained(folder)
        times.append(1)
        return tensors

    monkeypatch.setattr(storage, "read_tensors", slow)
    assert held(folder) == 0.5
    assert len(times) == 2


SAVER = """
import sys
from tests.network.saved import uncaptured
nets = uncaptured(0.5), uncaptured(0.25)
print("ready", flush=True)
while True:
    for net in nets:
        net.save_pretrained(sys.argv[1])
"""


def test_loading_while_another_process_saves(folder):
    with subprocess.Popen([sys.executable, "-c", SAVER, str(folder)], stdout=subprocess.PIPE, text=True) as saver:
        try:
            assert saver.stdout.readline() == "ready\n"
            found = {var for _ in range(60) for var in (0.5, 0.25, 1e-3) if held(folder) == var}
        finally:
            saver.kill()
    assert found & {0.5, 0.25}


def test_a_folder_that_never_rests(folder, monkeypatch):
    real, next_one = storage.read_tensors, itertools.count(1)

    def busy(*args):
        tensors = real(*args)
        uncaptured(next(next_one)).save_pretrained(folder)
        return tensors

    monkeypatch.setattr(storage, "read_tensors", busy)
    monkeypatch.setattr(storage, "ATTEMPTS", 3)
    with pytest.raises(
        NetworkFileError, match="cannot load .*: another process keeps saving there: load it afterwards"
    ):
        held(folder)
