"""Models at their full size, with random weights, on a CPU: a process and a few minutes each, up to 16 GB of memory."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "full_size.py"


def names():
    return subprocess.run([sys.executable, SCRIPT], check=True, capture_output=True, text=True).stdout.splitlines()


def test_all_that_are_promised_are_there():
    assert len(names()) == 12


@pytest.mark.parametrize("number", range(12))
def test_it_is_captured_and_propagated(number):
    name = names()[number]
    library = name.partition(":")[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    found = subprocess.run([sys.executable, SCRIPT, name], check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]
    row = json.loads(found.stdout.splitlines()[-1])
    # ViLT reads values of its inputs: each set of them has a graph.
    assert row["graphs"] == (2 if "ViLT" in name else 1), "the second batch size took a graph of its own"
    assert row["std"] > 0
