"""The shape of the package: which part may import which, and what must not be in it."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "varprop"
FILES = sorted(PACKAGE.rglob("*.py"))
EXPERIMENTS = sorted((ROOT / "experiments").rglob("*.py"))
PARTS = [path for path in FILES if path != PACKAGE / "__init__.py"]
PICKLERS = {"pickle", "dill", "cloudpickle", "shelve", "joblib"}
LOADERS = {"torch.export.load", "torch.jit.load", "torch.package.PackageImporter"}
SAFELY = {"torch.load"}

# Imports point one way: each part may use itself and the parts named here, nothing else.
MAY_IMPORT = {
    "errors": set(),
    "moments": set(),
    "sharing": {"errors"},
    "optim": {"errors"},
    "batch": {"errors", "moments"},
    "rules": {"errors", "moments"},
    "testing": {"errors", "moments", "rules"},
    "kernels": {"errors", "moments", "rules"},
    "graph": {"errors", "moments", "rules", "kernels"},
    "posterior": {"errors", "moments", "batch", "graph"},
    "network": {"errors", "moments", "rules", "posterior", "graph"},
    "metrics": {"errors"},
    "prediction": {"errors", "moments", "batch", "metrics", "rules", "kernels", "posterior", "graph", "network"},
    "calibration": {"errors", "moments", "sharing", "batch", "metrics", "rules", "posterior", "graph", "network"}
    | {"prediction"},
    "evaluation": {"errors", "moments", "sharing", "batch", "metrics", "rules", "posterior", "graph", "network"}
    | {"prediction", "calibration"},
    "deployment": {"errors", "moments", "graph", "posterior", "network", "prediction"},
    "report": {"errors", "evaluation"},
    "integrations": {"errors", "posterior", "network", "prediction", "calibration", "evaluation", "report"},
    "cli": {
        "errors",
        "batch",
        "optim",
        "rules",
        "posterior",
        "network",
        "prediction",
        "calibration",
        "evaluation",
        "deployment",
        "report",
    },
}


def name_of(path):
    return str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT))


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            # `from varprop import rules` names the part among the imported names.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", PARTS, ids=name_of)
def test_imports_point_one_way(path):
    part = part_of(path)
    assert part in MAY_IMPORT, f"{part} is new: say in MAY_IMPORT what it may import"
    used = {name.split(".")[1] for name in imports(ast.parse(path.read_text())) if name.startswith("varprop.")}
    assert used - {part} <= MAY_IMPORT[part]


def test_the_package_only_re_exports():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    for node in tree.body[1:]:
        assigned = isinstance(node, ast.Assign) and {"__all__", "__version__"} >= {ast.unparse(t) for t in node.targets}
        assert isinstance(node, ast.Import | ast.ImportFrom) or assigned, f"line {node.lineno}: {ast.unparse(node)}"


def test_every_folder_is_a_package():
    folders = {file.parent for file in [*FILES, *EXPERIMENTS]}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_package_knows_nothing_of_the_experiments():
    used = {name for path in FILES for name in imports(ast.parse(path.read_text())) if "experiments" in name}
    assert used == set()


def test_no_file_name_occurs_twice():
    names = [path.name for path in [*FILES, *EXPERIMENTS] if path.name != "__init__.py"]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize("path", [*FILES, *EXPERIMENTS], ids=name_of)
def test_files_are_small_and_named_after_a_field(path):
    assert path.stem not in {"utils", "util", "base", "common", "helpers", "misc"}
    assert len(path.read_text().splitlines()) <= 400


def unpickling(source):
    """What may run code while it reads a file. torch.load is fine if it is told, in so many words, to build tensors
    and plain containers only; passed on or renamed, nobody can see what it is told.
    """
    tree = ast.parse(source)
    yield from {name.split(".")[0] for name in imports(tree)} & PICKLERS
    yield from {name for name in imports(tree) if name in LOADERS or name in SAFELY}
    safe = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and any(ast.unparse(word) == "weights_only=True" for word in node.keywords)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name in LOADERS or (name in SAFELY and id(node) not in safe):
                yield f"line {node.lineno}: {name}"


@pytest.mark.parametrize("path", [*FILES, *EXPERIMENTS], ids=name_of)
def test_nothing_is_unpickled(path):
    assert list(unpickling(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "import joblib.memory",
        "from torch import load",
        "from torch.jit import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=safe)",
        "torch.load(path, **{'weights_only': True})",
        "torch.load(path, pickle_module=other)",
        "read = torch.load",
        "read(torch.load, weights_only=True)",
        "torch.load(torch.load(path), weights_only=True)",
        "torch.jit.load(path, weights_only=True)",
        "torch.export.load(path)",
        "torch.package.PackageImporter(path)",
    ],
)
def test_unpickling_is_seen(source):
    assert list(unpickling(source))


def test_loading_tensors_only_is_allowed():
    assert list(unpickling("torch.load(path, map_location='cpu', weights_only=True)")) == []


def test_importing_varprop_is_light():
    """Optional packages stay out, and importing changes no global setting of torch."""
    code = """
import sys, torch
before = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), torch.initial_seed()
import varprop
after = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), torch.initial_seed()
assert before == after, (before, after)
unwanted = {"transformers", "sklearn", "scipy", "ivon", "timm", "torchmetrics", "torchvision", "matplotlib"}
heavy = unwanted & set(sys.modules)
assert not heavy, heavy
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_versions_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    import varprop

    assert getattr(varprop, "__version__", version) == version


def test_constraints_pin_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if "==" in line}
    assert {re.split(r"[\[>]", name)[0].lower() for name in wanted} - {"varprop"} <= pinned
    assert "torch==2.13.0" in lines
