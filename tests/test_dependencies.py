"""What a user installs with varprop: pinned, consistent, freely licensed. Needs no network.

Known vulnerabilities are not in any file of ours: ``pip-audit -r constraints.txt`` asks for them where there is a
network.
"""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

requirements = pytest.importorskip("packaging.requirements")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_FOR_USERS = {"dev", "docs"}
OF_THE_MACHINE = "setuptools", "nvidia-", "cuda-", "triton"  # with Python, and with builds of torch for GPUs
FREE = re.compile(r"\b(Apache|MIT|BSD|0BSD|PSF|Python Software Foundation|ISC|MPL|Mozilla|HPND)\b", re.IGNORECASE)
STRICT = re.compile(r"\b[AL]?GPL|General Public License", re.IGNORECASE)


def key(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(lines, extras=("",)):
    for line in lines:
        requirement = requirements.Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def installed():
    """Every package that varprop and its extras ask for, with all that those ask for, and who asks for what."""
    extras = [some for name, some in PROJECT["optional-dependencies"].items() if name not in NOT_FOR_USERS]
    lines = PROJECT["dependencies"] + [line for some in extras for line in some]
    left = [("varprop", requirement) for requirement in wanted(lines)]
    found, seen = [], set()
    while left:
        asker, requirement = left.pop()
        name = key(requirement.name)
        if name == "varprop" or (name, *sorted(requirement.extras), asker) in seen:
            continue
        seen.add((name, *sorted(requirement.extras), asker))
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            package = None  # of extras that tests do without
        found.append((asker, requirement, package))
        if package is not None:
            left += [(name, each) for each in wanted(package.requires or (), ("", *requirement.extras))]
    return found


INSTALLED = installed()
PACKAGES = {
    key(package.name): package
    for _, _, package in INSTALLED
    if package is not None and not key(package.name).startswith(OF_THE_MACHINE)
}


def test_each_is_installed_as_it_is_pinned():
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pinned = {key(name): version for name, _, version in (line.partition("==") for line in lines if line)}
    assert {"torch", "numpy", "transformers", "fastapi"} <= PACKAGES.keys()
    assert {name: package.version.partition("+")[0] for name, package in PACKAGES.items()} == {
        name: pinned.get(name) for name in PACKAGES
    }


def test_each_has_what_it_asks_for():
    wrong = [
        f"{asker} wants {requirement}, there is {package.version}"
        for asker, requirement, package in INSTALLED
        if package is not None and not requirement.specifier.contains(package.version, prereleases=True)
    ]
    assert wrong == []


def test_each_comes_from_the_index():
    assert [name for name, package in PACKAGES.items() if package.read_text("direct_url.json")] == []


def test_each_has_a_licence_that_asks_for_little():
    for name, package in PACKAGES.items():
        about = package.metadata
        classifiers = [line for line in about.get_all("Classifier") or () if line.startswith("License")]
        stated = " ".join([about.get("License-Expression") or "", (about.get("License") or "")[:200], *classifiers])
        assert FREE.search(stated), f"{name}: {stated}"
        assert not STRICT.search(stated), f"{name}: {stated}"
