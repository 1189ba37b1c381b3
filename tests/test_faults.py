"""What users have survives: processes that are killed, disks that are full, folders that are locked."""

import functools
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import time
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import varprop as vp
from tests import ranks
from tests.deployment.conftest import write_classifier
from varprop.errors import ExportError, GroupError, NetworkFileError, ResultsError

FILES = "config.json", "model.safetensors"


def model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3)).eval()


def held_out():
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    return x, (x[:, :3] + 0.5 * x.flip(1)[:, :3]).argmax(1)


def calibrate(folder, group=None):
    torch.set_num_threads(1)
    vp.fit(model(0), held_out(), progress=False, group=group).save_pretrained(folder)


def saved(folder):
    return [(folder / name).read_bytes() for name in FILES]


@functools.cache
def processes():
    """Processes that begin with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "scipy.interpolate", "varprop", __name__])
    first = context.Process(target=int)
    first.start()
    first.join()
    return context


def run(function, *args, stop=None):
    """Run it in a process of its own, killed after ``stop`` seconds; returns how long it took."""
    process, started = processes().Process(target=function, args=args), time.perf_counter()
    process.start()
    process.join(stop)
    if stop is None:
        assert process.exitcode == 0
    process.kill()
    process.join()
    return time.perf_counter() - started


# --- killed ------------------------------------------------------------------------------------------------


def save_earlier(folder):
    network = model(7)
    vp.Propagated(vp.propagate(network, vp.Posterior.isotropic(network))).save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_killed_twenty_times_while_calibrating(tmp_path):
    reference, folder = tmp_path / "reference", tmp_path / "net"
    seconds, rng = run(calibrate, reference), random.Random(0)
    save_earlier(folder)
    earlier, kept = saved(folder), 0
    for _ in range(20):
        run(calibrate, folder, stop=rng.uniform(0, seconds))
        assert saved(folder) in (earlier, saved(reference))
        kept += saved(folder) == earlier
    assert kept, "all of them had finished"
    run(calibrate, folder)
    assert saved(folder) == saved(reference)


def uncaptured(var):
    network = nn.Linear(300, 300)
    return vp.Propagated(vp.propagate(network, vp.Posterior.isotropic(network, std=var**0.5)))


def save_forever(folder):
    for predictor in itertools.cycle([uncaptured(0.5), uncaptured(0.25)]):
        predictor.save_pretrained(folder)


@pytest.mark.parametrize(
    "kills", [pytest.param(10, marks=pytest.mark.second), pytest.param(50, marks=pytest.mark.slow)]
)
def test_killed_while_saving(tmp_path, kills):
    folder = tmp_path / "net"
    uncaptured(1.0).save_pretrained(folder)
    rng, found = random.Random(0), set()
    for number in range(kills):
        process = processes().Process(target=save_forever, args=(folder,))
        before = (folder / "config.json").stat().st_mtime_ns
        process.start()
        for _ in range(1 + number % 2):  # saves that are whole
            while (folder / "config.json").stat().st_mtime_ns == before:
                time.sleep(0.001)
            before = (folder / "config.json").stat().st_mtime_ns
        process.join(rng.uniform(0, 0.02))
        process.kill()
        process.join()
        var = torch.unique(vp.load(folder, nn.Linear(300, 300)).net.var["weight"])  # of one network, not of two
        found.add(round(float(var), 3))
    assert found == {0.5, 0.25}
    uncaptured(1.0).save_pretrained(folder)
    assert (folder / "README.md").read_text().endswith("confidence.\n")


def share(rank, folder):
    """Calibrate as one of two processes, of which the second is killed in the middle."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(minutes=5)
    )
    if rank == 1:
        passes, real = iter(range(5)), vp.MomentNet.__call__

        def dying(net, *args):
            if next(passes, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(net, *args)

        vp.MomentNet.__call__ = dying
    try:
        calibrate(folder / "net", group=dist.group.WORLD)
    except GroupError as error:
        (folder / "said").write_text(str(error))
    os._exit(0)  # gloo's threads may abort a process that ends the usual way


@pytest.mark.second
@ranks.needs_gloo
@pytest.mark.filterwarnings("ignore")
def test_a_process_of_a_group_that_dies(tmp_path):
    save_earlier(tmp_path / "net")
    before = saved(tmp_path / "net")
    both = [processes().Process(target=share, args=(rank, tmp_path)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(240)
    assert both[1].exitcode == -signal.SIGKILL
    assert "one of them may have ended" in (tmp_path / "said").read_text()
    assert saved(tmp_path / "net") == before


# --- full and locked ---------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """A file system of one megabyte, and a function that changes how it is mounted."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options):
        return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)

    if os.name != "posix" or mount("size=1m").returncode:
        pytest.skip("file systems can only be mounted by root")
    yield place, mount
    subprocess.run(["umount", place], check=True)


def fill(disk):
    """Take all of it but some kilobytes."""
    (disk / "full").write_bytes(b"x")
    with (disk / "full").open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass


STATES = ["full", "locked"]


def spoil(disk, mount, state):
    if state == "full":
        fill(disk)
    else:
        assert mount("remount,ro").returncode == 0


def repair(disk, mount, state):
    if state == "full":
        (disk / "full").unlink()
    else:
        assert mount("remount,rw,size=1m").returncode == 0


@pytest.mark.parametrize("state", STATES)
def test_saving_where_nothing_can_be_written(disk, state):
    place, mount = disk
    folder = place / "net"
    network = nn.Linear(64, 64)
    predictor = vp.Propagated(vp.propagate(network, vp.Posterior.isotropic(network)))
    predictor.save_pretrained(folder)
    before = saved(folder)
    spoil(place, mount, state)
    for target in (folder, place / "new"):
        with pytest.raises(NetworkFileError, match=f"cannot save {target}: .*(No space|Read-only)"):
            predictor.save_pretrained(target)
    assert saved(folder) == before
    repair(place, mount, state)
    predictor.save_pretrained(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", *FILES]


@pytest.mark.second
@pytest.mark.parametrize("state", STATES)
def test_scoring_where_nothing_can_be_written(disk, tmp_path, state):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    place, mount = disk
    file = write_classifier(tmp_path / "classifier.onnx")
    x = np.random.default_rng(0).normal(size=(4000, 4)).astype(np.float32)
    parquet.write_table(arrow.table({"input": x.tolist()}), tmp_path / "data.parquet")
    settings = {"rows": 500, "progress": False}
    vp.score(file, tmp_path / "data.parquet", tmp_path / "expected", **settings)
    out = place / "out"

    def interrupted(job, shards):
        for number, shard in enumerate(shards):
            if number == 3:
                spoil(place, mount, state)
            job.score(shard)
            yield len(shard)

    with pytest.raises((ResultsError, OSError), match="No space|Read-only"):
        vp.score(file, tmp_path / "data.parquet", out, engine=interrupted, **settings)
    assert len(list(out.glob("part-*"))) == 3
    if state == "locked":
        with pytest.raises((ResultsError, OSError), match="Read-only"):
            vp.score(file, tmp_path / "data.parquet", out, **settings)
    repair(place, mount, state)
    assert vp.score(file, tmp_path / "data.parquet", out, **settings).rows == 4000
    assert parquet.read_table(out) == parquet.read_table(tmp_path / "expected")


@pytest.mark.second
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["net.pt2", pytest.param("net.onnx", marks=pytest.mark.slow)])
def test_exporting_where_nothing_can_be_written(disk, state, name):
    place, mount = disk
    network = nn.Linear(64, 64)
    predictor = vp.Propagated(vp.propagate(network, vp.Posterior.isotropic(network)))
    (place / name).write_text("the last good one")
    spoil(place, mount, state)
    with pytest.raises(ExportError, match="cannot write .* what lay there before stays"):
        vp.export(predictor, place / name, torch.randn(2, 64))
    assert (place / name).read_text() == "the last good one"
    assert not list(place.glob(".*.export-*"))
