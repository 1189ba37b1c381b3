"""A command as the shell sees it."""

import sys
from types import SimpleNamespace

import pytest

from varprop.cli import shell


def runner(app, name, capsys, monkeypatch):
    """A function of the arguments: exit code, what the command printed, what it complained about."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*args):
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            shell.run(app, name)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=stop.value.code or 0, out=out, err=err)

    return run


def complaint(run):
    """A function of the arguments: the one line a wrong use is answered with."""

    def refused(*args):
        found = run(*args)
        lines = [line for line in found.err.splitlines() if line.strip()]
        assert found.code == 2, found
        assert "Traceback" not in found.out + found.err
        assert len(lines) == 1, found.err
        assert lines[0].startswith("error: ")
        return lines[0]

    return refused
