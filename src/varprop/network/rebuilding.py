"""Which model a saved network is of. Models of transformers are rebuilt from their configuration, others are given."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from varprop.errors import NetworkFileError, listing, shortened
from varprop.network.fingerprint import has_own_hooks

# Nothing else is ever imported because a file names it.
_MODULES = re.compile(r"transformers\.models\.[a-z0-9_]+\.modeling_[a-z0-9_]+")
# Other names may stand for kernels that transformers would download and run.
_ATTENTION = (None, "eager", "sdpa")


def describe(model: nn.Module) -> dict[str, Any]:
    """What tells the model again; with a ``config``, if transformers alone can rebuild it."""
    kind = type(model)
    record: dict[str, Any] = {"class": kind.__name__, "module": kind.__module__}
    if not _MODULES.fullmatch(kind.__module__):
        return record
    config: Any = model.config
    settings = config.to_dict()
    settings.pop("_name_or_path", None)  # a path on the machine that saved it
    implementations = {name: _implementation(config, name) for name in ("attention", "experts")}
    try:
        full = record | implementations | {"config": json.loads(json.dumps(settings))}
        again = rebuild(full)
    except (NetworkFileError, TypeError, ValueError) as error:
        return record | {"note": str(error)}
    return full if _alike(model, again) else record | {"note": "it was changed after transformers had built it"}


def rebuild(record: Mapping[str, Any]) -> nn.Module:
    """A model of transformers in eval mode, without numbers: its tensors are on the meta device."""
    if not isinstance(record.get("config"), dict):
        note = f" ({record['note']})" if record.get("note") else ""
        raise NetworkFileError(
            f"it holds a {record.get('class')} of {record.get('module')}, which is not rebuilt{note}: "
            "give one as model=, in eval mode; its weights do not matter"
        )
    kind = _find(record)
    try:
        config = kind.config_class.from_dict(dict(record["config"]))
        config._attn_implementation = record.get("attention")
        config._experts_implementation = record.get("experts")
        _refuse_kernels(config)
        with torch.random.fork_rng(devices=[]):
            return _build(kind, config).eval()
    except NetworkFileError:
        raise
    except Exception as error:
        version = importlib.import_module("transformers").__version__
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise NetworkFileError(f"transformers {version} cannot rebuild its {kind.__name__}: {reason[0]}") from error


def check(model: nn.Module, record: Mapping[str, Any], parameters: dict[str, Any], buffers: dict[str, Any]) -> None:
    """Refuse a model of another class, or with other tensors; list all that differ."""
    name = type(model).__name__
    if name != record.get("class"):
        raise NetworkFileError(f"it holds a {record.get('class')}, and the model given is a {name}")
    problems: list[str] = []
    for role, own, saved in (
        ("parameter", dict(model.named_parameters()), parameters),
        ("buffer", dict(model.named_buffers()), buffers),
    ):
        problems += [f"{role} {key!r} is in the model, but was not saved" for key in own if key not in saved]
        problems += [f"{role} {key!r} was saved, but is not in the model" for key in saved if key not in own]
        problems += [
            f"{role} {key!r} has shape {list(own[key].shape)} in the model, {list(saved[key].shape)} in the file"
            for key in own
            if key in saved and own[key].shape != saved[key].shape
        ]
    if problems:
        headline = f"the model is a {name}, but not the one that was saved"
        raise NetworkFileError(listing(headline, shortened(problems, shown=20)))


def fill(model: nn.Module, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
    """Give a rebuilt model these numbers, without copying them. Tied tensors stay tied."""
    new: dict[int, Tensor] = {}
    for key, parameter in model.named_parameters():
        # Objects of its own on the same memory: export tells tensors apart by identity.
        new[id(parameter)] = nn.Parameter(parameters[key].detach(), requires_grad=False)
    for key, buffer in model.named_buffers():
        new[id(buffer)] = buffers[key].detach()
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                if tensor is not None:
                    tensors[key] = new[id(tensor)]  # type: ignore[assignment]


def _find(record: Mapping[str, Any]) -> Any:
    module, name = str(record.get("module")), str(record.get("class"))
    if not _MODULES.fullmatch(module):
        raise NetworkFileError(f"{module}.{name} is no model of transformers, and nothing else is rebuilt")
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise NetworkFileError(f"its {name} needs transformers: pip install 'varprop[hf]'") from error
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError:
        kind = None
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel) and kind.__module__ == module):
        raise NetworkFileError(f"transformers {transformers.__version__} has no model {name} in {module}")
    return kind


def _build(kind: Any, config: Any) -> Any:
    """On the meta device, where no time goes into random numbers; for real if the model keeps tensors on the side."""
    try:
        with torch.device("meta"):
            model = kind(config)
    except (NotImplementedError, RuntimeError):  # it reads numbers while it is built
        return kind(config)
    aside = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return kind(config) if any(tensor.is_meta for tensor in aside) else model


def _implementation(config: Any, name: str) -> Any:
    """Which code runs attention or experts, which no configuration file says: one name, or one for each part."""
    own = getattr(config, {"attention": "_attn_implementation", "experts": "_experts_implementation"}[name], None)
    parts = {key: part for key in config.sub_configs if (part := getattr(config, key, None)) is not None}
    return {"": own, **{key: _implementation(part, name) for key, part in parts.items()}} if parts else own


def _refuse_kernels(config: Any) -> None:
    if config._attn_implementation not in _ATTENTION:
        known = ", ".join(repr(name) for name in _ATTENTION)
        raise NetworkFileError(f"attention {config._attn_implementation!r} is not rebuilt, only {known}")
    for key in config.sub_configs:
        if getattr(config, key, None) is not None:
            _refuse_kernels(getattr(config, key))


def _alike(model: nn.Module, again: nn.Module) -> bool:
    """Was nothing changed since the model was built? Its text tells modules, sizes and settings such as eps."""
    if any("forward" in vars(module) or has_own_hooks(module) for module in model.modules()):
        return False
    return repr(model) == repr(again) and _shapes(model) == _shapes(again)


def _shapes(model: nn.Module) -> dict[str, Any]:
    return {key: tensor.shape for key, tensor in (*model.named_parameters(), *model.named_buffers())}
