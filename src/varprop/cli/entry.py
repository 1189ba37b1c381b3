"""Where the ``varprop`` command starts: it says what is missing before anything else is imported."""

from __future__ import annotations

import importlib.util
import sys

NEEDED = {"typer": "typer", "rich": "rich", "yaml": "pyyaml", "pandas": "pandas"}


def main() -> None:
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.stderr.write(f"error: the command line needs {', '.join(missing)}: pip install 'varprop[cli]'\n")
        sys.exit(2)
    from varprop.cli.app import main as run

    run()
