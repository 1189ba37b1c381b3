"""Every Python block of the documents runs, in order, as a reader would run them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_python_blocks_run(name, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert blocks, "no Python block found"
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, name, "exec"), names)  # noqa: S102 (our own documents)
