"""Data scored in shards: every row once, in its order, whatever happens in between."""

import datetime
import errno
import io
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tarfile
import threading
import time

import numpy as np
import pytest

import varprop.posterior.file
from tests.deployment.conftest import softmax, write_classifier
from varprop.deployment import scoring, sources
from varprop.deployment.scoring import MANIFEST, here, score
from varprop.errors import InputError, NetworkFileError, ResultsError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write_rows(folder, count, *, files=2, group=7):
    """``x`` [count, 4] in several Parquet files, with a key."""
    folder.mkdir()
    x = np.random.default_rng(1).normal(size=(count, 4)).astype(np.float32)
    for number, chosen in enumerate(np.array_split(np.arange(count), files)):
        table = arrow.table({"id": [f"r{i}" for i in chosen], "input": x[chosen].tolist(), "other": chosen})
        parquet.write_table(table, folder / f"{number}.parquet", row_group_size=group)
    return x


def read(folder):
    return parquet.read_table(folder)


def assert_scored(folder, x):
    found = read(folder)
    assert found["row"].to_pylist() == list(range(len(x)))
    probs = softmax(x)
    np.testing.assert_allclose(np.array(found["probs"].to_pylist()), probs, rtol=1e-5)
    np.testing.assert_allclose(found["confidence"].to_numpy(), probs.max(1), rtol=1e-5)
    assert found["label"].to_pylist() == [("cat", "dog", "owl")[i] for i in probs.argmax(1)]
    assert found["abstain"].to_pylist() == [bool(p < 0.5) for p in found["confidence"].to_pylist()]
    assert found["problem"].null_count == len(x)
    return found


def test_rows_keep_their_order_and_their_keys(classifier, tmp_path):
    x = write_rows(tmp_path / "data", 100)
    done = score(classifier, tmp_path / "data", tmp_path / "out", key=["id"], rows=11, batch_size=4, progress=False)
    assert (done.rows, done.problems) == (100, 0)
    assert assert_scored(tmp_path / "out", x)["id"].to_pylist() == [f"r{i}" for i in range(100)]
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["complete"]
    assert manifest["threshold"] == 0.5
    assert len(manifest["model"]["sha256"]) == 64
    assert {"varprop", "torch"} <= manifest["versions"].keys()
    assert sum(shard["rows"] for shard in manifest["shards"]) == manifest["rows"] == 100


def test_finished_shards_are_not_scored_again(classifier, tmp_path):
    x = write_rows(tmp_path / "data", 30)

    def stops(job, shards):
        yield from list(here(job, shards[:2]))
        raise KeyboardInterrupt

    settings = {"rows": 5, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        score(classifier, tmp_path / "data", tmp_path / "out", engine=stops, **settings)
    assert not json.loads((tmp_path / "out" / MANIFEST).read_text())["complete"]
    (tmp_path / "out" / "part-000001.parquet").write_bytes(b"cut short")
    seen = []

    def watched(job, shards):
        seen.extend(shard.number for shard in shards)
        return here(job, shards)

    score(classifier, tmp_path / "data", tmp_path / "out", engine=watched, **settings)
    assert seen == [1, 2, 3, 4, 5]
    assert_scored(tmp_path / "out", x)


def test_scores_of_something_else_are_not_mixed_in(classifier, tmp_path):
    write_rows(tmp_path / "data", 10)
    score(classifier, tmp_path / "data", tmp_path / "out", progress=False)
    other = write_classifier(tmp_path / "other.onnx", threshold=0.7)
    with pytest.raises(ResultsError, match="another model, threshold: choose another folder"):
        score(other, tmp_path / "data", tmp_path / "out", progress=False)
    with pytest.raises(ResultsError, match="another rows_per_shard"):
        score(classifier, tmp_path / "data", tmp_path / "out", rows=3, progress=False)
    with pytest.raises(ResultsError, match="another key"):
        score(classifier, tmp_path / "data", tmp_path / "out", key=["id"], progress=False)
    with pytest.raises(ResultsError, match="no scores"):
        score(classifier, tmp_path / "data", tmp_path / "data", progress=False)


def test_a_full_disk_keeps_what_was_finished(classifier, tmp_path, monkeypatch):
    x = write_rows(tmp_path / "data", 30)
    sync, written = os.fsync, []

    def full(descriptor):
        written.append(descriptor)
        if len(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(varprop.posterior.file.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            score(classifier, tmp_path / "data", tmp_path / "out", rows=5, progress=False)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        MANIFEST,
        "part-000000.parquet",
        "part-000001.parquet",
    ]
    score(classifier, tmp_path / "data", tmp_path / "out", rows=5, progress=False)
    assert_scored(tmp_path / "out", x)


def test_a_folder_that_cannot_be_written_to(classifier, tmp_path):
    write_rows(tmp_path / "data", 3)
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="choose another folder"):
        score(classifier, tmp_path / "data", tmp_path / "file" / "out", progress=False)


def test_rows_that_cannot_be_read_are_told_of(classifier, tmp_path):
    rows = [[1.0, 2, 3, 4], [1.0, 2], None, [float("nan"), 0, 0, 0]]
    (tmp_path / "data").mkdir()
    parquet.write_table(arrow.table({"input": rows}), tmp_path / "data" / "0.parquet")
    done = score(classifier, tmp_path / "data", tmp_path / "out", progress=False)
    assert (done.rows, done.problems) == (4, 3)
    problems = read(tmp_path / "out")["problem"].to_pylist()
    assert problems[0] is None
    assert "shape [2], not [4]" in problems[1]
    assert "lacks input" in problems[2]
    assert "NaN" in problems[3]
    assert read(tmp_path / "out")["probs"].to_pylist()[1:] == [None] * 3
    score(classifier, tmp_path / "data", tmp_path / "each", rows=1, progress=False)
    assert read(tmp_path / "each") == read(tmp_path / "out")


def test_keys_keep_their_types(classifier, tmp_path):
    """Also where a whole file of the scores has none of them."""
    keys = {"id": [None, None, 3, 4], "when": [None, None, datetime.date(2020, 1, 1), None]}
    parquet.write_table(arrow.table({"input": [[1.0, 2, 3, 4]] * 4, **keys}), tmp_path / "x.parquet")
    score(classifier, tmp_path / "x.parquet", tmp_path / "out", key=list(keys), rows=2, progress=False)
    found = read(tmp_path / "out")
    assert {name: found[name].to_pylist() for name in keys} == keys


def test_other_data_in_files_of_the_same_size(classifier, tmp_path):
    write_rows(tmp_path / "data", 10)
    score(classifier, tmp_path / "data", tmp_path / "out", progress=False)
    file = tmp_path / "data" / "0.parquet"
    table = parquet.read_table(file)
    other = arrow.table({"id": table["id"], "input": table["input"][::-1], "other": table["other"]})
    parquet.write_table(other, file, row_group_size=7)
    with pytest.raises(ResultsError, match="another data"):
        score(classifier, tmp_path / "data", tmp_path / "out", progress=False)


def test_a_column_that_is_not_there(classifier, tmp_path):
    parquet.write_table(arrow.table({"features": [[1.0, 2, 3, 4]]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="no column input; it has features"):
        score(classifier, tmp_path / "x.parquet", tmp_path / "out", progress=False)
    with pytest.raises(InputError, match="key 'label' is also the name of a column of the scores: rename it"):
        score(classifier, tmp_path / "x.parquet", tmp_path / "out", key=["label"], progress=False)
    score(classifier, tmp_path / "x.parquet", tmp_path / "out", column="features", progress=False)
    assert read(tmp_path / "out").num_rows == 1


def test_tar_files(classifier, tmp_path):
    x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
            for index in range(number * 5, min(9, number * 5 + 5)):
                buffer = io.BytesIO()
                np.save(buffer, x[index] if index != 4 else np.array([{}], dtype=object))
                if index == 5:  # which would be 40 TB
                    header = {"descr": "<f4", "fortran_order": False, "shape": (10**13,)}
                    np.lib.format.write_array_header_1_0(buffer := io.BytesIO(), header)
                for ending, content in (("input.npy", buffer.getvalue()), ("json", b'{"name": "n%d"}' % index)):
                    member = tarfile.TarInfo(f"a/{index}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
            link = tarfile.TarInfo("a/z.input.npy")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
    done = score(classifier, tmp_path, tmp_path / "out", key=["name"], rows=2, progress=False)
    found = read(tmp_path / "out")
    assert (done.rows, done.problems) == (9, 2)
    assert found["__key__"].to_pylist() == [f"a/{i}" for i in range(9)]
    assert found["name"].to_pylist()[:4] == ["n0", "n1", "n2", "n3"]
    assert "allow_pickle=False" in found["problem"].to_pylist()[4]
    assert "Unable to allocate" in found["problem"].to_pylist()[5]
    kept = [i for i in range(9) if i not in (4, 5)]
    probs = [found["probs"].to_pylist()[i] for i in kept]
    np.testing.assert_allclose(np.array(probs), softmax(x[kept]), rtol=1e-5)


def test_a_hugging_face_data_set(classifier, tmp_path):
    x = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    folder = tmp_path / "saved"
    folder.mkdir()
    table = arrow.table({"input": arrow.FixedShapeTensorArray.from_numpy_ndarray(x)})
    with arrow.ipc.new_stream(str(folder / "data-0.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=3)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    score(classifier, folder, tmp_path / "out", rows=4, progress=False)
    assert_scored(tmp_path / "out", x)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../classifier.onnx"}]}))
    with pytest.raises(InputError, match="leads outside of the data"):
        score(classifier, folder, tmp_path / "out2", progress=False)


def test_images_outside_of_the_data_are_not_read(tmp_path):
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "b.png").write_bytes(b"of the data")
    (tmp_path / "images" / "a.png").symlink_to(tmp_path / "secret.png")
    (piece,) = sources.pieces_of(tmp_path / "images")
    outside, own = piece.rows(0, 2, ["image"])
    assert "leads outside" in outside[sources.PROBLEM]
    assert "image" not in outside
    assert own == {"path": "b.png", "image": b"of the data"}
    image = arrow.array([{"bytes": None, "path": "../secret.png"}, {"bytes": b"own", "path": "x"}])
    parquet.write_table(arrow.table({"image": image}), tmp_path / "images" / "0.parquet")
    (piece,) = sources.pieces_of(tmp_path / "images")
    outside, own = piece.rows(0, 2, ["image"])
    assert "leads outside" in outside[sources.PROBLEM]
    assert own == {"image": b"own"}


def test_what_is_not_opened(classifier, tmp_path):
    write_rows(tmp_path / "data", 3)
    archive = tmp_path / "model.pt2"
    archive.write_bytes(b"")
    with pytest.raises(NetworkFileError, match="may hold code"):
        score(archive, tmp_path / "data", tmp_path / "out", progress=False)
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(classifier.read_bytes()[:-200])
    with pytest.raises(NetworkFileError, match="no file of vp.export, or damaged"):
        score(damaged, tmp_path / "data", tmp_path / "out", progress=False)


def test_memory_does_not_grow_with_the_data(classifier, tmp_path, monkeypatch):
    """No more rows are alive at a time than a batch has."""
    write_rows(tmp_path / "data", 200, files=1, group=200)
    alive, most = set(), []

    class Watched(dict):
        def __init__(self, *args):
            super().__init__(*args)
            alive.add(id(self))
            most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    rows = sources.Parquet.rows
    monkeypatch.setattr(sources.Parquet, "rows", lambda *args: (Watched(row) for row in rows(*args)))
    score(classifier, tmp_path / "data", tmp_path / "out", rows=100, batch_size=10, progress=False)
    assert len(most) == 200
    assert max(most) <= 21  # a batch, the one after it, and the row that is being read


# --- killed -----------------------------------------------------------------------------------------------


def _score(model, data, out):
    score(model, data, out, rows=10, batch_size=10, progress=False)


@pytest.mark.parametrize(
    ("kills", "rows"),
    [pytest.param(5, 500, marks=pytest.mark.second), pytest.param(50, 4000, marks=pytest.mark.slow)],
)
def test_killed_at_random_moments(classifier, tmp_path, kills, rows):
    x = write_rows(tmp_path / "data", rows, group=100)
    context, rng = multiprocessing.get_context("forkserver"), random.Random(0)
    context.set_forkserver_preload(["varprop.deployment.scoring", "onnxruntime", "pyarrow.parquet", __name__])
    killed, out = 0, tmp_path / "out"
    while True:
        process = context.Process(target=_score, args=(classifier, tmp_path / "data", out))
        process.start()
        before = len(list(out.glob("part-*")))
        while killed < kills and len(list(out.glob("part-*"))) == before and process.is_alive():
            time.sleep(0.001)  # until it is at work
        if killed == kills or not process.is_alive():
            process.join()
            assert process.exitcode == 0
            break
        process.join(rng.uniform(0, 0.02))
        process.kill()
        process.join()
        killed += 1
    assert killed == kills
    assert_scored(out, x)
    assert not list(out.glob(".*"))


@pytest.mark.slow
def test_memory_stays_the_same_over_many_rows(classifier, tmp_path):
    psutil = pytest.importorskip("psutil")
    write_rows(tmp_path / "data", 100_000, group=1000)
    used = []

    def watched(job, shards):
        for done in here(job, shards):
            used.append(psutil.Process().memory_info().rss)
            yield done

    score(classifier, tmp_path / "data", tmp_path / "out", rows=1000, engine=watched, progress=False)
    assert len(used) == 100
    assert max(used[10:]) < 1.05 * used[10]


@pytest.mark.slow
def test_two_processes_of_torchrun(classifier, tmp_path):
    x = write_rows(tmp_path / "data", 200)
    code = "import sys; from varprop.deployment.scoring import score; score(*sys.argv[1:], rows=9, progress=False)"
    (tmp_path / "main.py").write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", tmp_path / "main.py"]
    subprocess.run([*command, classifier, tmp_path / "data", tmp_path / "out"], check=True)
    assert_scored(tmp_path / "out", x)
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["complete"]


def test_a_process_that_died_leaves_its_shards_to_the_next_run(classifier, tmp_path, monkeypatch):
    x = write_rows(tmp_path / "data", 50)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert score(classifier, tmp_path / "data", tmp_path / "out", rows=6, progress=False) is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert score(classifier, tmp_path / "data", tmp_path / "out", rows=6, progress=False).rows == 50
    assert_scored(tmp_path / "out", x)


def test_processes_that_start_one_after_the_other_share_all_shards(classifier, tmp_path, monkeypatch):
    x = write_rows(tmp_path / "data", 50)
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in (2, 0, 1):
        monkeypatch.setenv("RANK", str(rank))
        done = score(classifier, tmp_path / "data", tmp_path / "out", rows=6, progress=False)
        assert (done is not None) == (rank == 1)
    assert_scored(tmp_path / "out", x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_of_ray_one_of_which_dies(classifier, tmp_path):
    ray, psutil = pytest.importorskip("ray"), pytest.importorskip("psutil")
    x = write_rows(tmp_path / "data", 2000)
    killed = []

    def kill_one():
        while not killed:
            time.sleep(0.05)
            if len(list((tmp_path / "out").glob("part-*"))) > 5:
                for process in psutil.Process().children(recursive=True):
                    if not killed and "ray::MapWorker" in process.name() + "".join(process.cmdline()):
                        process.kill()
                        killed.append(process.pid)

    ray.init(num_cpus=2, log_to_driver=False)
    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    try:
        score(classifier, tmp_path / "data", tmp_path / "out", rows=5, engine=scoring.on_ray(2), progress=False)
    finally:
        ray.shutdown()
    assert killed
    assert_scored(tmp_path / "out", x)
