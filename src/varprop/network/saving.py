"""A propagated network on disk: ``config.json`` says what it is, ``model.safetensors`` holds its tensors.

Nothing in the folder can run code: the model is rebuilt from its configuration, or given, and captured again.

A network saved over another one takes its place at one instant: the new tensors are written under a name of their own,
then ``config.json`` is replaced, whose checksum tells which file of tensors it means, and then the new file gets the
name of the old one. Other files in the folder stay. One process writes at a time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import varprop
from varprop.errors import NetworkFileError, PosteriorError
from varprop.graph.captured import fingerprint
from varprop.graph.export import Output
from varprop.graph.registry import scale_path
from varprop.graph.signature import Call, decode, dtype_name, encode
from varprop.network import rebuilding
from varprop.posterior.file import replacing
from varprop.posterior.tensors import checked
from varprop.rules import NAMED, RuleSet

if TYPE_CHECKING:
    from varprop.network.moment_net import MomentNet

Net = TypeVar("Net", bound="MomentNet")
Roles = dict[str, dict[str, Tensor]]

CONFIG, WEIGHTS, PENDING = "config.json", "model.safetensors", ".model.safetensors.new"
FORMAT, VERSION = "varprop.network", 1
FLOATS = (torch.float32, torch.float64, torch.bfloat16)
ATTEMPTS = 100  # to read a folder that another process saves to
ROLES = ("mean", "var", "buffer", "scale")


def save(net: MomentNet, path: str | os.PathLike[str], **more: Any) -> None:
    """Write the network to a folder; ``more`` are further entries of ``config.json``."""
    folder = Path(path)
    with _reported(f"cannot save {folder}"):
        roles = {role: dict([*getattr(net, role)]) for role in ROLES}
        _check_dtypes(roles)
        config = _describe(net) | more
        _claim(folder)
        _write(folder, config, {f"{role}.{key}": x for role, tensors in roles.items() for key, x in tensors.items()})


def load(
    kind: type[Net],
    path: str | os.PathLike[str],
    model: nn.Module | None,
    rules: RuleSet | None,
    output: Output,
    device: torch.device,
) -> Net:
    """The network that was saved in a folder, with all of its calls captured."""
    folder = Path(path)
    with _reported(f"cannot load {folder}"):
        config, tensors = _read(folder, device)
        chosen, selected, calls = _rules(config, rules), _output(config, output), _calls(config)
        record = _entry(config, "architecture", dict)
        built = rebuilding.rebuild(record) if model is None else model
        roles = _roles(tensors)
        _check(config, roles)
        rebuilding.check(built, record, roles["mean"], roles["buffer"])
        if model is None:
            rebuilding.fill(built, roles["mean"], roles["buffer"])
    net = kind.__new__(kind)
    net._set_up(built, chosen, selected)
    _fill(net, roles, config["scales"])
    net.temperature = float(config["temperature"])
    net.capture_outlines(calls)
    with _reported(f"cannot load {folder}"):
        _compare(net, config)
    return net


@contextmanager
def _reported(doing: str) -> Iterator[None]:
    """Whatever goes wrong with files is one kind of error, which says what was being done."""
    try:
        yield
    except (NetworkFileError, PosteriorError, SafetensorError, OSError) as error:
        raise NetworkFileError(f"{doing}: {error}") from error


# --- what config.json says -------------------------------------------------------------------------------


def _describe(net: MomentNet) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "versions": _versions(),
        "architecture": rebuilding.describe(net.lifting.model),
        "dtype": dtype_name(net.dtype),
        # By its contents: ``CVP | rule`` is called CVP as well.
        "rules": {"name": net.rules.name, "library": net.rules == NAMED.get(net.rules.name)},
        "output": {"function": getattr(net.output, "__qualname__", "?")} if callable(net.output) else net.output,
        "scales": net.scale_names,
        "temperature": net.temperature,
        "calls": list(_records(net)),
    }


def _versions() -> dict[str, str]:
    versions = {"varprop": varprop.__version__, "torch": str(torch.__version__)}
    if "transformers" in sys.modules:
        versions["transformers"] = sys.modules["transformers"].__version__
    return versions


def _records(net: MomentNet) -> Iterator[dict[str, Any]]:
    for plan in net._plans:
        if plan.captured.pins:
            continue  # values of inputs are not saved: it is captured when the call is made
        try:
            yield encode(plan.call) | {"graph": fingerprint(plan.captured), "device": net.device.type}
        except TypeError as error:
            warnings.warn(
                f"the call {plan.signature.describe()} is not saved, and will be captured when it is made: {error}",
                stacklevel=5,
            )


def read_config(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says, if it is one of ours."""
    if not folder.is_dir():
        raise NetworkFileError("it is a file, not a folder" if folder.exists() else "there is no such folder")
    if not (folder / CONFIG).is_file():
        raise NetworkFileError(f"it has no {CONFIG}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise NetworkFileError(f"its {CONFIG} is not JSON ({error})") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise NetworkFileError(f"its {CONFIG} is not that of a propagated network")
    if config.get("version") != VERSION:
        raise NetworkFileError(
            f"its format has version {config.get('version')!r}, and this varprop reads version {VERSION}: "
            "a newer varprop may have written it"
        )
    return {"temperature": 1.0} | config  # which networks of version 0.1 do not have


def _entry(record: Mapping[str, Any], key: str, kind: type) -> Any:
    """What ``config.json`` says about ``key``, which must be there and of this type."""
    if not isinstance(record.get(key), kind):
        raise NetworkFileError(f"its {CONFIG} lacks a usable {key!r}")
    return record[key]


def _rules(config: Mapping[str, Any], given: RuleSet | None) -> RuleSet:
    record = _entry(config, "rules", dict)
    name, library = _entry(record, "name", str), _entry(record, "library", bool)
    if given is not None:
        if given.name != name:
            raise NetworkFileError(f"it was saved with the rules {name!r}, and rules= is {given.name!r}")
        if not library and given == NAMED.get(name):
            raise NetworkFileError(f"it was saved with a changed {name}, and rules= is {name} itself")
        return given
    if not library:
        raise NetworkFileError(f"it was saved with rules {name!r} that are not varprop's own: give them as rules=")
    if name not in NAMED:
        raise NetworkFileError(f"this varprop has no rules {name!r}, only {', '.join(map(repr, NAMED))}: update it")
    return NAMED[name]


def _output(config: Mapping[str, Any], given: Output) -> Output:
    saved = config.get("output")
    if isinstance(saved, dict):
        if not callable(given):
            raise NetworkFileError(f"its output was chosen by a function, {saved.get('function')}: give it as output=")
        return given
    if saved is not None and type(saved) not in (str, int):
        raise NetworkFileError(f"its {CONFIG} lacks a usable 'output'")
    if given is not None and given != saved:
        raise NetworkFileError(f"it was saved with output={saved!r}, not {given!r}")
    return saved


def _calls(config: Mapping[str, Any]) -> list[Call]:
    try:
        return [decode(record) for record in _entry(config, "calls", list)]
    except ValueError as error:
        raise NetworkFileError(f"a call in its {CONFIG} is wrong: {error}") from error


def _compare(net: MomentNet, config: Mapping[str, Any]) -> None:
    """Tensors of the right names and shapes do not make the right model: it must compute what the saved one did."""
    saved, now = _entry(config, "versions", dict), _versions()
    same = all(now.get(package) == version for package, version in saved.items())
    for plan, record in zip(net._plans, config["calls"], strict=True):
        if record.get("graph") in (None, fingerprint(plan.captured)):
            continue
        call = plan.signature.describe()
        if same and record.get("device") == net.device.type:
            raise NetworkFileError(
                f"the model is not the one that was saved: it computes something else in the call {call}. "
                "Build it with the same settings"
            )
        warnings.warn(
            f"the call {call} is captured as another graph than the one saved with {saved} on {record.get('device')}: "
            "compare some outputs",
            stacklevel=4,
        )


# --- files -----------------------------------------------------------------------------------------------


def _claim(folder: Path) -> None:
    """Make the folder, or make sure that nothing but a network of ours will be replaced in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / CONFIG).exists():
        try:
            config = read_config(folder)
        except NetworkFileError as error:
            raise NetworkFileError(f"the folder holds something else ({error}): give a new one") from error
        if _is(folder / PENDING, _entry(config, "weights", dict)):
            (folder / PENDING).replace(folder / WEIGHTS)  # what an interrupted save left to do
    elif (folder / WEIGHTS).exists():
        raise NetworkFileError(f"the folder holds something else (a {WEIGHTS} without {CONFIG}): give a new one")


def _write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write both files to a claimed folder."""
    pending = folder / PENDING
    with replacing(pending) as temporary:
        _save(tensors, temporary)
    weights = {"sha256": _digest(pending), "bytes": pending.stat().st_size}
    # The order of dimensions in memory, where it is not the usual one (channels last): kernels depend on it.
    layout = {key: list(tensor.dim_order()) for key, tensor in tensors.items() if not tensor.is_contiguous()}
    text = json.dumps({**config, "layout": layout, "weights": weights}, indent=2)
    try:
        with replacing(folder / CONFIG) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    except OSError:
        pending.unlink(missing_ok=True)
        raise
    pending.replace(folder / WEIGHTS)


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    """As safetensors wants them: in main memory, contiguous, and each with memory of its own."""
    stored: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        place = flat.untyped_storage().data_ptr()
        stored[key] = flat.clone() if place in seen else flat
        seen.add(place)
    try:
        save_file(stored, path, {"format": FORMAT})
    except (KeyError, ValueError, RuntimeError) as error:  # dtypes and layouts that safetensors does not know
        raise NetworkFileError(f"some tensors cannot be stored: {error}") from error


def _read(folder: Path, device: torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """``config.json`` and the tensors it was written with, read again while another process saves there."""
    for attempt in range(ATTEMPTS):
        before, config = _state(folder), read_config(folder)
        try:
            tensors = read_tensors(folder, config, device)
        except (NetworkFileError, SafetensorError, OSError, RuntimeError):  # the last is torch's, of a file that went
            if _state(folder) == before:  # nobody is at work: that is how it is
                raise
        else:
            if read_config(folder) == config:
                return config, tensors
        time.sleep(random.uniform(0, 0.01 * (attempt + 1)))
    raise NetworkFileError("another process keeps saving there: load it afterwards")


def _state(folder: Path) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    for name in (CONFIG, WEIGHTS, PENDING):
        try:
            status = (folder / name).stat()
            found.append((status.st_ino, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return found


def read_tensors(folder: Path, config: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    """All tensors, from a file that is the one ``config.json`` was written with."""
    layout = _entry(config, "layout", dict)
    with torch.inference_mode(False), safe_open(_weights(folder, config), framework="pt", device="cpu") as file:
        # Memory of torch's own, not that of the file: how it is aligned decides the last bits of some kernels.
        return {
            key: _laid_out(file.get_tensor(key), key, layout.get(key)).to(device, copy=True)
            for key in sorted(file.keys())
        }


def _laid_out(tensor: Tensor, key: str, order: Any) -> Tensor:
    if order is None:
        return tensor
    dims = list(range(tensor.ndim))
    if not isinstance(order, list) or not all(type(dim) is int for dim in order) or sorted(order) != dims:
        raise NetworkFileError(f"its {CONFIG} gives {key!r} a layout it cannot have")
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in dims])


def _weights(folder: Path, config: Mapping[str, Any]) -> Path:
    """The file of tensors that ``config.json`` means, whole and unchanged."""
    weights = _entry(config, "weights", dict)
    for file in (folder / PENDING, folder / WEIGHTS):
        if _is(file, weights):
            return file
    if not (folder / WEIGHTS).is_file():
        raise NetworkFileError(f"it has no {WEIGHTS}")
    size = (folder / WEIGHTS).stat().st_size
    if size != weights.get("bytes"):
        raise NetworkFileError(f"{WEIGHTS} has {size} bytes, and had {weights.get('bytes')} when it was saved")
    raise NetworkFileError(f"the contents of {WEIGHTS} changed after it was saved (checksum mismatch)")


def _is(file: Path, weights: Mapping[str, Any]) -> bool:
    return file.is_file() and file.stat().st_size == weights.get("bytes") and _digest(file) == weights.get("sha256")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- tensors ---------------------------------------------------------------------------------------------


def _roles(tensors: Mapping[str, Tensor]) -> Roles:
    roles: Roles = {role: {} for role in ROLES}
    for key, tensor in tensors.items():
        role, dot, name = key.partition(".")
        if role not in roles or not dot:
            raise NetworkFileError(f"{WEIGHTS} has an unexpected tensor {key!r}")
        roles[role][name] = tensor
    return roles


def _fill(net: MomentNet, roles: Roles, scales: list[str]) -> None:
    """In the order they had in the network that was saved, which is the model's own."""
    for name, _ in net.lifting.model.named_parameters():
        net.mean[name] = roles["mean"][name]
        if name in roles["var"]:
            net.var[name] = roles["var"][name]
    for name, _ in net.lifting.model.named_buffers():
        net.buffer[name] = roles["buffer"][name]
    for name in scales:
        net.scale[scale_path(name)] = nn.Parameter(roles["scale"][scale_path(name)], requires_grad=False)
    net.scale_names = list(scales)


def _check(config: Mapping[str, Any], roles: Roles) -> None:
    """Are these the tensors of a network?"""
    _check_dtypes(roles)
    mean, var = roles["mean"], roles["var"]
    checked({name: mean[name] for name in var if name in mean}, var)
    dtypes = {dtype_name(tensor.dtype) for tensor in mean.values() if tensor.is_floating_point()}
    if dtypes and _entry(config, "dtype", str) not in dtypes:
        raise NetworkFileError(f"its {CONFIG} says {config['dtype']}, but {WEIGHTS} holds {', '.join(sorted(dtypes))}")
    names = _entry(config, "scales", list)
    if not all(isinstance(name, str) for name in names):
        raise NetworkFileError(f"its {CONFIG} lacks a usable 'scales'")
    paths = {scale_path(name): name for name in names}
    wrong = sorted(paths.keys() ^ roles["scale"].keys())
    wrong += [path for path, tensor in roles["scale"].items() if tensor.shape != () and path in paths]
    if wrong:
        raise NetworkFileError(f"its {CONFIG} and {WEIGHTS} disagree about the scales {', '.join(wrong)}")
    alphas = {name: float(roles["scale"][path].exp()) for path, name in paths.items()}
    alphas["temperature"] = _entry(config, "temperature", float)
    if odd := [f"{name} ({alpha})" for name, alpha in alphas.items() if not 0 < alpha < math.inf]:
        raise NetworkFileError(f"some of its scales are no positive, finite number: {', '.join(odd)}; calibrate again")


def _check_dtypes(roles: Roles) -> None:
    tensors = [tensor for role in ("mean", "var", "scale") for tensor in roles[role].values()]
    unknown = {str(tensor.dtype) for tensor in tensors if tensor.is_floating_point() and tensor.dtype not in FLOATS}
    if unknown:
        raise NetworkFileError(f"{', '.join(sorted(unknown))} is not supported: use float32, float64 or bfloat16")
