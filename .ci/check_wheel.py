"""Check an installed varprop: its version, its typing marker, and every module the checkout has."""

import importlib
import importlib.metadata
import sys
import tomllib
from pathlib import Path

checkout = Path(sys.argv[1]).resolve()
varprop = importlib.import_module("varprop")
home = Path(varprop.__file__).resolve().parent
assert not home.is_relative_to(checkout), f"imported from the checkout: {home}"

expected = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"]
installed = importlib.metadata.version("varprop")
assert installed == expected, f"the wheel is version {installed}, the checkout {expected}"
assert getattr(varprop, "__version__", expected) == expected, f"varprop.__version__ is {varprop.__version__}"
assert (home / "py.typed").is_file(), "py.typed is not in the wheel"

source = checkout / "src"
modules = [path.relative_to(source).with_suffix("") for path in sorted((source / "varprop").rglob("*.py"))]
for module in modules:
    importlib.import_module(".".join(module.parts).removesuffix(".__init__"))
print(f"varprop {installed}: {len(modules)} modules imported from {home}")
