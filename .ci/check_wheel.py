"""Check a varprop installed without extras: its version, its files, and every module the checkout has."""

import importlib
import importlib.metadata
import importlib.util
import subprocess
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
names = [".".join(module.parts).removesuffix(".__init__") for module in modules]
for name in names:
    # Commands and report need packages of extras; what starts them must say so instead of failing to import. Some
    # integrations subclass what another package has; the server is an application of FastAPI. Tiles are Triton's own
    # code, read where Triton is.
    subclasses = tuple(f"varprop.integrations.{name}" for name in ("estimators", "hub", "lightning", "trainer"))
    extra = (
        "varprop.cli.",
        "varprop.report.",
        "varprop.kernels.triton_kernels",
        "varprop.deployment.serving",
        *subclasses,
    )
    if not name.startswith(extra) or name == "varprop.cli.entry":
        importlib.import_module(name)
held = {Path(str(file)).parts[0] for file in importlib.metadata.files("varprop") or ()}
assert held <= {"varprop", f"varprop-{installed}.dist-info", "..", "bin"}, f"the wheel holds more than varprop: {held}"
assert importlib.util.find_spec("experiments") is None, "the experiments are in the wheel"
command = subprocess.run(
    [Path(sys.executable).parent / "varprop", "--help"], capture_output=True, text=True, check=False
)
assert command.returncode == 2, command
assert "varprop[cli]" in command.stderr, command.stderr
pages = [path.relative_to(source) for path in (source / "varprop").glob("*/page/*")]
missing = [str(path) for path in pages if not (home.parent / path).is_file()]
assert pages, "there are no pages"
assert not missing, f"the wheel lacks {missing}"
print(f"varprop {installed}: {len(modules)} modules imported from {home}")
