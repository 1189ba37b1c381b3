"""The link of a predictor, in the ``config.json`` of the network it predicts with."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from varprop.errors import InputError, NetworkFileError
from varprop.network.saving import CONFIG, read_config
from varprop.prediction.links import Gaussian, Link, MeanFieldSoftmax, ProbitSigmoid, Sigmoid, Softmax

LINKS: Mapping[str, type[Any]] = MappingProxyType(
    {kind.name: kind for kind in (Softmax, MeanFieldSoftmax, Sigmoid, ProbitSigmoid, Gaussian)}
)
"""The links of the library, by the name a saved predictor has for them."""


def describe(link: Link) -> dict[str, Any]:
    """The link as JSON. Of a link that is not the library's, only its class is noted: it must be given again."""
    kind: type[Any] = type(link)
    if kind not in LINKS.values():
        return {"class": kind.__name__}
    return {"name": kind.name, **{field.name: getattr(link, field.name) for field in dataclasses.fields(kind)}}


def read(path: str | os.PathLike[str]) -> Link:
    """The link of the predictor that was saved in a folder."""
    try:
        return _read(read_config(Path(path)).get("link"))
    except (NetworkFileError, OSError) as error:
        raise NetworkFileError(f"cannot load {path}: {error}") from error


def _read(record: Any) -> Link:
    if record is None:
        raise NetworkFileError("it was saved without a link: say how to predict, e.g. link=varprop.links.Softmax()")
    if not isinstance(record, dict) or not isinstance(record.get("name", ""), str):
        raise NetworkFileError(f"its {CONFIG} lacks a usable 'link'")
    if "name" not in record:
        raise NetworkFileError(f"it was saved with a link that is not varprop's own, {record.get('class')}: give link=")
    values = dict(record)
    kind = LINKS.get(values.pop("name"))
    if kind is None:
        raise NetworkFileError(f"this varprop has no link {record['name']!r}, only {', '.join(map(repr, LINKS))}")
    fields = {field.name: type(field.default) for field in dataclasses.fields(kind)}
    usable = fields.keys() == values.keys() and all(_fits(values[name], fields[name]) for name in fields)
    try:
        if usable:
            link: Link = kind(**values)
            return link
    except InputError as error:
        raise NetworkFileError(f"its {CONFIG} describes an impossible link ({error})") from error
    raise NetworkFileError(f"its {CONFIG} describes a link {record['name']!r} with {values}, which it does not take")


def _fits(value: Any, kind: type) -> bool:
    return type(value) in ((int, float) if kind is float else (kind,))
