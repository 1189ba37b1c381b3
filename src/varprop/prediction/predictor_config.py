"""Link and processor of a predictor, in the ``config.json`` of the network it predicts with."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from varprop.errors import InputError, NetworkFileError
from varprop.network.storage import CONFIG
from varprop.prediction.links import Gaussian, Link, MeanFieldSoftmax, ProbitSigmoid, Sigmoid, Softmax

LINKS: Mapping[str, type[Any]] = MappingProxyType(
    {kind.name: kind for kind in (Softmax, MeanFieldSoftmax, Sigmoid, ProbitSigmoid, Gaussian)}
)
"""The links of the library, by the name a saved predictor has for them."""
PROCESSORS = ("PreTrainedTokenizerBase", "ProcessorMixin", "ImageProcessingMixin", "FeatureExtractionMixin")


def describe_link(link: Link) -> dict[str, Any]:
    """The link as JSON. Of a link that is not the library's, only its class is noted: it must be given again."""
    kind: type[Any] = type(link)
    if kind not in LINKS.values():
        return {"class": kind.__name__}
    return {"name": kind.name, **vars(link)}


def read_link(record: Any) -> Link:
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
    if describe_link(link) != record:
        raise NetworkFileError(f"its {CONFIG} describes a link {name!r} with {settings}, which are not all it takes")
    return link


def processor_name(processor: Any) -> str | None:
    """Its class, by which transformers finds it again."""
    if processor is None:
        return None
    name = type(processor).__name__
    if getattr(sys.modules.get("transformers"), name, None) is not type(processor):
        raise NetworkFileError(f"its processor, a {name}, is not of transformers: keep it yourself, save without it")
    return name


def read_processor(folder: Path, name: str | None) -> Any:
    """The tokenizer or other processor whose files lie in the folder."""
    if name is None:
        return None
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise NetworkFileError(f"its {name} needs transformers: pip install 'varprop[hf]'") from error
    kind: Any = getattr(transformers, str(name), None)
    known = tuple(getattr(transformers, base) for base in PROCESSORS)
    if not (isinstance(kind, type) and issubclass(kind, known)):
        raise NetworkFileError(f"transformers {transformers.__version__} has no processor {name!r}")
    found: Any = kind
    return found.from_pretrained(folder, local_files_only=True)


def is_tokenizer(processor: Any) -> bool:
    """One of transformers, for texts. What it can do does not tell: some image processors pad, too."""
    transformers = sys.modules.get("transformers")  # where it is not loaded, there is none of its tokenizers
    return transformers is not None and isinstance(processor, transformers.PreTrainedTokenizerBase)
