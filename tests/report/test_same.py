"""The same rows give the same files, byte for byte, whatever the process that writes them."""

import os
import subprocess
import sys

import numpy as np

from tests.report.test_keeping import norms
from tests.report.test_tables import METHODS
from varprop.evaluation.curves import percentiles
from varprop.report import Results, Row

CODE = "import sys; from varprop.report import write_report; write_report(sys.argv[1], sys.argv[2])"


def fill(folder):
    results = Results(folder)
    rng = np.random.default_rng(0)
    for method in METHODS:
        for seed in range(2):
            confidence, right = rng.random(60).round(2), (rng.random(60) < 0.8).astype(float)
            few = {"aurc": 0.1 * rng.random(), "ece": rng.random()}
            paths = [f"blocks.{i}.{name}" for i in range(2) for name in ("norm1", "norm2", "mlp.1")]
            row = Row(
                "digits",
                method,
                seed,
                60,
                few,
                cost={"sample": float(1 + len(method))},
                scales={path: float(np.exp(rng.normal())) for path in paths} if method == "CVP" else None,
                curve=percentiles(confidence, right),
                fidelity=[{"path": "head", "variance_ratio": 1.1, "mean_error": 0.1}] if method == "CVP" else None,
                config={"paper": "CIFAR-10 (sub-tiny ViT)", "title": "Digits", "stand_in": True},
                time="2026-11-15T09:00:00+00:00",
            )
            held_out = {"held_out_confidence": confidence, "held_out_correctness": right}
            results.add(row, {"confidence": confidence, "correctness": right, **held_out} if seed == 0 else None)
    results.add_norms("synthetic", [norms()])
    results.add_examples(np.zeros((2, 3, 3), np.uint8), ["zero"])


def test_a_report_can_be_made_again_byte_for_byte(tmp_path):
    fill(tmp_path / "results")
    running = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", CODE, str(tmp_path / "results"), str(tmp_path / seed)]
        running.append(subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC-{seed}"}))
    assert [process.wait() for process in running] == [0, 0]
    first, second = ({p.relative_to(tmp_path / s): p.read_bytes() for p in (tmp_path / s).rglob("*.*")} for s in "12")
    assert {path.suffix for path in first} == {".html", ".png", ".pdf", ".csv", ".md", ".tex", ".txt"}
    assert [str(path) for path in first if first[path] != second.get(path)] == []
    assert set(first) == set(second)
    names = {path.name for path in first}
    assert {"teaser.pdf", "digits-blocks.png", "synthetic-norms.csv", "ablation-order.tex", "norms.csv"} <= names
