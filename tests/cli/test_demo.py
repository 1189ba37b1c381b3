"""The demo, on a few steps of training."""

import gzip
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from varprop.cli import app, demo
from varprop.evaluation.results import Results

pytestmark = [
    pytest.mark.second,
    pytest.mark.filterwarnings("ignore:calibration ended after", "ignore:calibration raised the NLL"),
]


@pytest.fixture
def short(monkeypatch, tmp_path):
    """Digits, few epochs, a narrow network, no drawing."""
    monkeypatch.setattr(demo, "FASHION", tmp_path / "nothing")
    monkeypatch.setattr(demo, "EPOCHS", 15)
    monkeypatch.setattr(demo, "WIDTH", 32)
    monkeypatch.setattr(demo, "SIZES", (2000, 300, 600, 597))
    monkeypatch.setattr(demo, "NOISE", 0.1)
    # What a test has changed holds in a thread, and would not in another process.
    monkeypatch.setattr(demo, "ProcessPoolExecutor", lambda workers, _: ThreadPoolExecutor(workers))
    monkeypatch.setattr(app, "write_report", lambda folder: folder / "report.html")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_rows_table_sentence_and_report(varprop, short, monkeypatch):
    cost = {"plain": 2.0, "sample": 1.0}
    monkeypatch.setattr(demo, "relative_costs", lambda methods, *_: {method.slug: cost for method in methods})
    found = varprop("demo", "--seeds", "3", "--samples", "2", "--costs")
    assert found.code == 0, found.err
    results = Results("results/demo")
    rows = results.rows
    assert [(row.method, row.seed) for row in rows] == [(m, 3) for m in ("mean", "temperature", "mc-2", "cvp")]
    assert {(row.row, row.examples) for row in rows} == {("noisy-digits", 597)}
    assert [row.cost for row in rows] == [cost] * 4
    assert results.examples("noisy-digits").images.shape[1:] == (10, 10)
    assert all(entry["calibrated"] is False for entry in rows[3].fidelity)
    assert len(results.scores(rows[3])["held_out_confidence"]) == 600  # not the 300 of the calibration
    out = " ".join(found.out.split())
    assert "report: results/demo/report.html" in out
    assert "errors, certified: CVP answers" in out
    assert "more than two standard errors" in out or "within noise" in out
    assert "it/s" not in found.err, "a progress bar where there is no terminal"
    assert "seeds/s" not in found.err


def test_no_digit_is_in_training_and_elsewhere(monkeypatch):
    """Noise apart, which is left out here."""
    monkeypatch.setattr(demo, "NOISE", 0.0)
    monkeypatch.setattr(demo, "SIZES", (2000, 500, 500, 500))
    data = demo._digits()

    def shapes(part):
        """Wherever they are in the image."""
        rows = [image[0][image[0].amax(1) > -1][:, image[0].amax(0) > -1] for image in part.images]
        return {(tuple(shape.shape), tuple(shape.flatten().tolist())) for shape in rows}

    trained = shapes(data.train)
    assert 500 < len(trained) <= 900
    assert not trained & shapes(data.test)
    assert shapes(data.calibration) & shapes(data.certification)  # drawn alike
    assert float(data.train.images.min()) == -1
    assert len(data.test.labels.unique()) == 10


def test_without_scikit_learn(refused, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "FASHION", tmp_path / "nothing")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "pip install 'varprop[demo]'" in refused("demo")


def test_fashion_mnist_is_taken_where_it_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "FASHION", tmp_path)
    rng = np.random.default_rng(0)
    for part, size in (("train", 60_000), ("t10k", 10_000)):
        head = struct.pack(">IIII", 2051, size, 28, 28)
        images = np.zeros((size, 784), np.uint8)
        images[:, 0] = labels = rng.integers(0, 10, size).astype(np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes(), 1))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head[:8] + labels.tobytes(), 1))
    data = demo.read_data()
    for part in (data.train, data.calibration, data.certification, data.test):
        assert torch.equal(((part.images[:, 0, 0, 0] + 1) * 127.5).round().long(), part.labels)
        assert float(part.images.min()) == -1
    assert data.config["images"]["test"] == 10_000
