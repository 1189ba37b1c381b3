"""Link and processor of a predictor, in the ``config.json`` of the network it predicts with."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from varprop.errors import InputError, NetworkFileError
from varprop.network.storage import CONFIG
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


def processor_name(processor: Any) -> str | None:
    """Its class, by which transformers finds it again."""
    if processor is None:
        return None
    name = type(processor).__name__
    if getattr(sys.modules.get("transformers"), name, None) is not type(processor):
        raise NetworkFileError(f"its processor, a {name}, is not of transformers: keep it yourself, save without it")
    return name


def is_tokenizer(processor: Any) -> bool:
    """One of transformers, for texts. What it can do does not tell: some image processors pad, too."""
    transformers = sys.modules.get("transformers")  # where it is not loaded, there is none of its tokenizers
    return transformers is not None and isinstance(processor, transformers.PreTrainedTokenizerBase)


def read(record: Any) -> Link:
    """The link that ``config.json`` describes."""
    if record is None:
        raise NetworkFileError("it was saved without a link: say how to predict, e.g. link=varprop.links.Softmax()")
    if not isinstance(record, dict) or not isinstance(record.get("name", ""), str):
        raise NetworkFileError(f"its {CONFIG} lacks a usable 'link'")
    if "name" not in record:
        raise NetworkFileError(f"it was saved with a link that is not varprop's own, {record.get('class')}: give link=")
    name = record["name"]
    if name not in LINKS:
        raise NetworkFileError(f"this varprop has no link {name!r}, only {', '.join(map(repr, LINKS))}")
    settings = {key: value for key, value in record.items() if key != "name"}
    try:
        link: Link = LINKS[name](**settings)
    except (TypeError, InputError) as error:
        raise NetworkFileError(f"its {CONFIG} describes an impossible link {name!r} ({error})") from error
    if describe(link) != record:
        raise NetworkFileError(f"its {CONFIG} describes a link {name!r} with {settings}, which are not all it takes")
    return link
