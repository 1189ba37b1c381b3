"""Every example runs as a reader would run it, and prints what it is there to show: half a minute of a core each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.second, pytest.mark.timeout(1500)]
EXAMPLES = Path(__file__).parents[1] / "examples"
# Their parts are run in tests/optim/test_trainers.py.
TRAINERS = {"train_digits", "train_with_lightning", "train_with_trainer"}


def run(name, *needed):
    for package in ("sklearn", *needed):
        pytest.importorskip(package)
    found = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", EXAMPLES / f"{name}.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,  # on a machine that is busy with other things
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def numbers(line):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", line)]


def metrics(text, name):
    line = next(line for line in text.splitlines() if line.strip().startswith(f"{name}:"))
    return {key: float(value) for key, value in re.findall(r"(\w+) ([\d.]+)", line)}


def test_every_example_is_tested():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} - TRAINERS <= tested


@pytest.mark.slow
def test_hf_classifier():
    text = run("hf_classifier", "transformers")
    plain, propagated = metrics(text, "plain network"), metrics(text, "propagated")
    assert propagated["accuracy"] > 0.8
    assert propagated["nll"] < plain["nll"] + 0.02
    surest, least = (numbers(line)[-1] for line in text.splitlines() if "of a batch" in line)
    assert least < 0.6 < 0.95 < surest
    assert "the same after saving and loading: True" in text


@pytest.mark.slow
def test_resnet_swag():
    text = run("resnet_swag", "transformers")
    plain, propagated = metrics(text, "plain network"), metrics(text, "propagated")
    assert propagated["accuracy"] > 0.93
    assert propagated["nll"] < plain["nll"] + 0.02
    updated = next(line for line in text.splitlines() if "new statistics" in line)
    assert numbers(updated)[-1] == plain["accuracy"]


@pytest.mark.slow
def test_regression():
    text = run("regression")
    before, after = (numbers(line) for line in text.splitlines() if "calibration:" in line)
    assert 85 < before[0] < 98
    assert 90 < after[0] < 98
    assert "paired: NLL" in text


def test_selective_prediction():
    text = run("selective_prediction")
    everything = numbers(text.splitlines()[0])[0]
    kept = [numbers(line) for line in text.splitlines() if "on test data" in line]
    assert len(kept) == 2
    for budget, _, expected, answered, wrong in kept:
        assert wrong <= budget < everything
        assert answered == pytest.approx(expected, abs=8)
    assert kept[1][3] < kept[0][3]  # a smaller budget buys fewer answers
    assert "refused. no threshold keeps the risk at or below 0.001" in text
