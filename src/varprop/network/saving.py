"""A propagated network on disk, in a folder that ``storage`` reads and writes.

Nothing in the folder can run code: the model is rebuilt from its configuration, or given. Graphs of its calls are
data, a list of known ops, and where they cannot be used the model is captured again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

import varprop
from varprop.errors import NetworkFileError
from varprop.graph.call_json import decode, encode
from varprop.graph.captured import Captured, fingerprint, keep_constant
from varprop.graph.graph_json import read_captured, write_captured
from varprop.graph.output import Output
from varprop.graph.registry import scale_path
from varprop.graph.signature import Call, dtype_name
from varprop.network import rebuilding
from varprop.network.fingerprint import fingerprint as model_fingerprint
from varprop.network.record import Calibration
from varprop.network.storage import CONFIG, FORMAT, VERSION, WEIGHTS, claim, entry, read, reported, write
from varprop.posterior.tensors import checked
from varprop.rules import NAMED, RuleSet

if TYPE_CHECKING:
    from varprop.graph.compiler import Plan
    from varprop.network.moment_net import MomentNet

Net = TypeVar("Net", bound="MomentNet")
Roles = dict[str, dict[str, Tensor]]

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
ROLES = ("mean", "var", "buffer", "scale", "constant")
LONGEST = 1 << 26  # characters of all graphs


def save(
    net: MomentNet, path: str | os.PathLike[str], beside: Callable[[Path], Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Write the network to a folder; ``more`` are further entries of ``config.json``. Returns all of them.

    ``beside`` writes other files to the folder; what ``config.json`` says of them is true when it is there.
    """
    folder = Path(path)
    with reported(f"cannot save {folder}"):
        calls = _encoded_calls(net)
        graphs = [_encoded_graph(net, plan) for plan, _ in calls]
        roles = {role: dict([*getattr(net, role)]) for role in ROLES}
        used = {name for graph in graphs if graph for kind, name, *_ in graph["tensors"] if kind == "constant"}
        roles["constant"] = {name: tensor for name, tensor in roles["constant"].items() if name in used}
        _check_dtypes(roles)
        config = _describe(net) | {"calls": [record for _, record in calls]} | more
        claim(folder)
        if beside is not None:
            beside(folder)
        tensors = {f"{role}.{key}": x for role, named in roles.items() for key, x in named.items()}
        write(folder, config, tensors, json.dumps(graphs) if any(graphs) else "")
    return config


def load(
    kind: type[Net],
    path: str | os.PathLike[str],
    model: nn.Module | None,
    rules: RuleSet | None,
    output: Output,
    device: torch.device | str,
) -> Net:
    """The network that was saved in a folder, with all of its calls captured."""
    folder = Path(path)
    with reported(f"cannot load {folder}"):
        config, tensors, text = read(folder, device)
        chosen, selected, calls = _rules(config, rules), _output(config, output), _calls(config)
        record, calibration = entry(config, "architecture", dict), _calibration(config)
        built = rebuilding.rebuild(record) if model is None else model
        roles = _roles(tensors)
        _check(config, roles)
        rebuilding.check(built, record, roles["mean"], roles["buffer"])
        if model is None:
            rebuilding.fill(built, roles["mean"], roles["buffer"])
        net = kind.__new__(kind)
        net._set_up(built, chosen, selected)
        _fill(net, roles, config["scales"])
        net.temperature, net.calibration = float(config["temperature"]), calibration
        graphs = _read_graphs(net, config, text)
        for call, record, graph in zip(calls, config["calls"], graphs, strict=True):
            if graph is None:
                _compare(net.add_outline(call), net, config, record)
            else:
                net.add_outline(call, _restore(net, graph, call, record))
    return net


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
        "calibration": None if net.calibration is None else dataclasses.asdict(net.calibration),
        "model_fingerprint": model_fingerprint(net.lifting.model),
    }


def _versions() -> dict[str, str]:
    versions = {"varprop": varprop.__version__, "torch": str(torch.__version__)}
    if "transformers" in sys.modules:
        versions["transformers"] = sys.modules["transformers"].__version__
    return versions


def _has_same_versions(config: Mapping[str, Any]) -> bool:
    """Are all packages of the versions it was saved with? One build (2.9+cpu) computes what another does."""
    saved, now = entry(config, "versions", dict), _versions()
    return all(str(now.get(name)).split("+")[0] == str(version).split("+")[0] for name, version in saved.items())


def _encoded_calls(net: MomentNet) -> list[tuple[Plan, dict[str, Any]]]:
    found: list[tuple[Plan, dict[str, Any]]] = []
    for plan in net._plans:
        if plan.captured.guards:
            continue  # values of inputs are not saved: it is captured when the call is made
        try:
            record = encode(plan.call) | {"graph": fingerprint(plan.captured), "device": net.device.type}
            found.append((plan, record))
        except TypeError as error:
            warnings.warn(
                f"the call {plan.signature.describe()} is not saved, and will be captured when it is made: {error}",
                stacklevel=4,
            )
    return found


def _rules(config: Mapping[str, Any], given: RuleSet | None) -> RuleSet:
    record = entry(config, "rules", dict)
    name, library = entry(record, "name", str), entry(record, "library", bool)
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


def _calibration(config: Mapping[str, Any]) -> Calibration | None:
    record = config.get("calibration")  # which networks of version 0.1 do not have
    try:
        return None if record is None else Calibration(**record)
    except TypeError as error:
        raise NetworkFileError(f"its {CONFIG} lacks a usable 'calibration' ({error})") from error


def _calls(config: Mapping[str, Any]) -> list[Call]:
    try:
        return [decode(record) for record in entry(config, "calls", list)]
    except ValueError as error:
        raise NetworkFileError(f"a call in its {CONFIG} is wrong: {error}") from error


def _compare(plan: Plan, net: MomentNet, config: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Tensors of the right names and shapes do not make the right model: it must compute what the saved one did."""
    if record.get("graph") in (None, fingerprint(plan.captured)):
        return
    call = plan.signature.describe()
    if _has_same_versions(config) and record.get("device") == net.device.type:
        raise NetworkFileError(
            f"the model is not the one that was saved: it computes something else in the call {call}. "
            "Build it with the same settings"
        )
    warnings.warn(
        f"the call {call} is captured as another graph than the one saved with {config['versions']} on "
        f"{record.get('device')}: compare some outputs",
        stacklevel=4,
    )


# --- graphs ----------------------------------------------------------------------------------------------


def _encoded_graph(net: MomentNet, plan: Plan) -> dict[str, Any] | None:
    """None if it depends on what the user gives on loading, or could not be read again."""
    if callable(net.output) or net.rules != NAMED.get(net.rules.name):
        return None
    try:
        record = write_captured(plan.captured, net.device)
        same = fingerprint(read_captured(record, plan.call, net)) == fingerprint(plan.captured)
    except (TypeError, ValueError):
        return None
    return record if same else None


def _read_graphs(net: MomentNet, config: Mapping[str, Any], text: str) -> list[Any]:
    """The graphs that may be used for this model and with these packages; None for calls to be captured again."""
    none = [None for _ in config["calls"]]
    model = model_fingerprint(net.lifting.model) if text and not callable(net.output) else None
    if model is None or model != config.get("model_fingerprint"):
        return none
    if not _has_same_versions(config):
        warnings.warn(
            f"it was saved with {config['versions']}, so its calls are captured again, which takes a while: "
            "save it again to load it faster",
            stacklevel=4,
        )
        return none
    try:
        graphs = json.loads(text) if len(text) <= LONGEST else None
    except (ValueError, RecursionError) as error:
        raise NetworkFileError(f"the graphs in {WEIGHTS} are not JSON ({error})") from error
    if not isinstance(graphs, list) or len(graphs) != len(none):
        raise NetworkFileError(f"the graphs in {WEIGHTS} are not those of its calls")
    return graphs


def _restore(net: MomentNet, graph: Any, call: Call, record: Mapping[str, Any]) -> Captured:
    try:
        captured = read_captured(graph, call, net)
    except ValueError as error:
        raise NetworkFileError(f"a graph in {WEIGHTS} is wrong: {error}") from error
    if fingerprint(captured) != record.get("graph"):
        raise NetworkFileError(f"a graph in {WEIGHTS} is not the one that {CONFIG} tells of")
    return captured


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
    for name, tensor in roles["constant"].items():
        if keep_constant(tensor, net.constant) != name:
            raise NetworkFileError(f"the constant {name!r:.40} in {WEIGHTS} is not what its name says")


def _check(config: Mapping[str, Any], roles: Roles) -> None:
    """Are these the tensors of a network?"""
    _check_dtypes(roles)
    mean, var = roles["mean"], roles["var"]
    checked({name: mean[name] for name in var if name in mean}, var)
    names = entry(config, "scales", list)
    if not all(isinstance(name, str) for name in names):
        raise NetworkFileError(f"its {CONFIG} lacks a usable 'scales'")
    paths = {scale_path(name): name for name in names}
    wrong = sorted(paths.keys() ^ roles["scale"].keys())
    wrong += [path for path, tensor in roles["scale"].items() if tensor.shape != () and path in paths]
    if wrong:
        raise NetworkFileError(f"its {CONFIG} and {WEIGHTS} disagree about the scales {', '.join(wrong)}")
    alphas = {name: float(roles["scale"][path].exp()) for path, name in paths.items()}
    alphas["temperature"] = entry(config, "temperature", float)
    if odd := [f"{name} ({alpha})" for name, alpha in alphas.items() if not 0 < alpha < math.inf]:
        raise NetworkFileError(f"some of its scales are no positive, finite number: {', '.join(odd)}; calibrate again")


def _check_dtypes(roles: Roles) -> None:
    tensors = [tensor for role in ("mean", "var", "scale") for tensor in roles[role].values()]
    unknown = {str(tensor.dtype) for tensor in tensors if tensor.is_floating_point() and tensor.dtype not in FLOATS}
    if unknown:
        raise NetworkFileError(f"{', '.join(sorted(unknown))} is not supported: use float32, float64 or bfloat16")
