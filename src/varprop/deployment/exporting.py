"""A predictor as one file that needs neither varprop nor the model's source: torch.export, AOTInductor, ONNX."""

from __future__ import annotations

import contextlib
import glob
import importlib
import inspect
import io
import json
import logging
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import varprop
from varprop.errors import ExportError, InputError, MissingPackageError, NetworkFileError
from varprop.graph.signature import Size
from varprop.network.moment_net import MomentNet
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.prediction import Regression
from varprop.prediction.predictor_config import processor_name
from varprop.prediction.predictors import Predictor, Propagated, Wrapper
from varprop.prediction.selective import Decision, Selective

TOLERANCE = 1e-4
STALE = 86400.0
"""Seconds after which a folder that an export made for itself is taken for one that a killed process left."""
RECORD = "varprop.json"
"""The file inside a ``.pt2`` archive, and the entry of the metadata of an ``.onnx`` file, that says what it is."""

Metadata = dict[str, Any]
"""Of an exported file: names of ``inputs`` and ``outputs``, ``classes``, ``threshold``, ``processor``, ``versions``."""
Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Deployed(nn.Module):
    """A predictor with tensors in, by position, and tensors out."""

    def __init__(self, predictor: Predictor, names: Sequence[str]) -> None:
        super().__init__()
        self.net = predictor.network()  # so that its tensors are the module's
        self.predictor, self.names = predictor, names

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        return outputs(self.predictor(**dict(zip(self.names, inputs, strict=True))))


def outputs(answer: Any) -> dict[str, Tensor]:
    """What an exported predictor returns, by name."""
    found = answer.prediction if isinstance(answer, Decision) else answer
    if isinstance(found, Regression):
        named = {"prediction": found.mean, "std": found.std}
    else:
        named = {"probs": found.probs, "confidence": found.confidence}
    named |= {"logit_mean": found.logits.mean, "logit_var": found.logits.var}
    return named | ({"abstain": ~answer.answered} if isinstance(answer, Decision) else {})


def export(
    predictor: Predictor | MomentNet, path: str | os.PathLike[str], *args: Any, aot: bool = False, **kwargs: Any
) -> Path:
    """Write a predictor to ``path`` as one file, for calls like ``predictor(*args, **kwargs)``.

    ``.onnx`` is ONNX; ``.pt2`` an archive of ``torch.export``, with ``aot=True`` compiled by AOTInductor for this kind
    of machine. Outputs are ``probs`` and ``confidence`` (of a regression ``prediction`` and ``std``), ``logit_mean``,
    ``logit_var``, and ``abstain`` if the predictor does. Batch size, and lengths of sequences, stay free. What was
    written is run on other inputs of two batch sizes, and kept only if it gives what the predictor gives. A processor
    of transformers, if the predictor has one, is saved beside.
    """
    if isinstance(predictor, MomentNet):
        predictor = Propagated(predictor)
    _require_one_pass(predictor)
    target = Path(path)
    if target.suffix not in (".onnx", ".pt2") or (aot and target.suffix == ".onnx"):
        raise InputError(f"{target.name}: the file is named .onnx or .pt2, and only .pt2 is compiled by AOTInductor")
    net = predictor.network()
    named = _named_inputs(net, args, kwargs)
    with _beside(target) as made:
        plan, _ = net.plan((), dict(named))
        if plan.captured.guards is not None:
            raise ExportError("the graph of this model depends on values of its inputs, which no file looks at")
        found = outputs(predictor(**named))  # which also traces what the link needs, on real tensors
        about = _metadata(predictor, list(named), list(found))
        with torch.no_grad(), _quiet():
            program = _program(Deployed(predictor, list(named)).eval(), list(named.values()), plan.signature.sizes)
            run = _WRITERS["aot" if aot else target.suffix](program, list(named.values()), about, made)
            _check(run, predictor, named, list(found), free=isinstance(plan.signature.sizes[0][0], str))
        if about["processor"] is not None:
            predictor.processor.save_pretrained(target.parent)
    return target


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A file of the same name in a folder of its own; all that is there in the end moves beside the target."""
    prefix = f".{target.name}.export-"
    try:
        for left in target.parent.glob(f"{glob.escape(prefix)}*"):  # by an export that was killed
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left, ignore_errors=True)  # another export may be tidying too
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as folder:
            made = Path(folder) / target.name
            yield made
            for file in sorted(Path(folder).iterdir(), key=lambda file: file == made):  # weights above 2 GB lie beside
                file.replace(target.parent / file.name)
    except OSError as error:
        raise ExportError(f"cannot write {target}: {error}; what lay there before stays") from error


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    return {"varprop": varprop.__version__, "torch": str(torch.__version__)}


def threshold_of(predictor: Predictor) -> float | None:
    """The confidence below which a predictor abstains; None if it never does."""
    promise = predictor.guarantee if isinstance(predictor, Selective) else None
    return promise.threshold if promise and math.isfinite(promise.threshold) else None


def _metadata(predictor: Predictor, inputs: list[str], outputs: list[str]) -> Metadata:
    try:
        processor = processor_name(predictor.processor)
    except NetworkFileError:
        processor = None  # one of the user's own, which only the user can apply
    about = {"inputs": inputs, "outputs": outputs, "classes": list(predictor.classes) if predictor.classes else None}
    return about | {"threshold": threshold_of(predictor), "processor": processor, "versions": versions()}


def _require_one_pass(predictor: Any) -> None:
    inner = predictor
    while isinstance(inner, Wrapper):
        inner = inner.predictor
    if not isinstance(inner, Predictor):
        raise InputError(f"export takes a predictor or a propagated network, not a {type(inner).__name__}")
    if isinstance(inner, MonteCarlo):
        raise ExportError("Monte Carlo samples are many passes with as many weights: export a Propagated instead")


def _named_inputs(net: MomentNet, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a call by the names of the model's parameters."""
    bound = inspect.signature(net.lifting.model.forward).bind(*args, **kwargs).arguments
    wrong = [name for name, value in bound.items() if not isinstance(value, Tensor)]
    if not bound or wrong:
        raise InputError(f"export takes tensors as inputs; {', '.join(wrong) or 'none'} given is not one")
    return bound


def _program(module: Deployed, inputs: list[Tensor], sizes: Sequence[tuple[Size, ...]]) -> ExportedProgram:
    free = tuple({dim: Dim.AUTO if isinstance(n, str) else Dim.STATIC for dim, n in enumerate(ns)} for ns in sizes)
    return torch.export.export(module, tuple(inputs), dynamic_shapes=(free,), strict=False)


# --- files -----------------------------------------------------------------------------------------------


class Sink(io.BufferedWriter):
    """A file whose first error is kept until the end: one that torch's own writer meets aborts the process."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w"))
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = 0) -> int:
        return offset  # done once all is written, for those who read it

    def write(self, content: Any) -> int:
        if self.error is None:
            try:
                super().write(content)
            except OSError as error:
                self.error = error
        return len(content)

    def close(self) -> None:
        super().close()
        if self.error is not None:
            raise self.error


def _write_pt2(program: ExportedProgram, _: Any, about: Metadata, path: Path) -> Run:
    with Sink(path) as sink:
        torch.export.save(program, sink, extra_files={RECORD: json.dumps(about)})
    module = program.module()
    return lambda inputs: list(module(*inputs).values())


def _write_aot(program: ExportedProgram, _: Any, about: Metadata, path: Path) -> Run:
    settings = {"aot_inductor.metadata": {key: json.dumps(value) for key, value in about.items()}}
    with Sink(path) as sink:
        torch._inductor.aoti_compile_and_package(program, package_path=sink, inductor_configs=settings)
    module = torch._inductor.aoti_load_package(str(path))
    return lambda inputs: list(module(*inputs).values())


def _write_onnx(program: ExportedProgram, inputs: list[Tensor], about: Metadata, path: Path) -> Run:
    runtime = import_optional("onnxruntime", "export")
    import_optional("onnxscript", "export")
    # Not optimised ahead: onnxscript 0.7 fails on splits of constants, and the runtime optimises by itself.
    written = torch.onnx.export(
        program,
        tuple(inputs),
        input_names=about["inputs"],
        output_names=about["outputs"],
        dynamo=True,
        verbose=False,
        optimize=False,
    )
    assert written is not None
    written.model.metadata_props[RECORD] = json.dumps(about)
    written.save(path)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        feed = dict(zip(about["inputs"], (x.cpu().numpy() for x in inputs), strict=True))
        return [torch.from_numpy(found) for found in session.run(about["outputs"], feed)]

    return run


_WRITERS: dict[str, Callable[..., Run]] = {".pt2": _write_pt2, "aot": _write_aot, ".onnx": _write_onnx}


def import_optional(module: str, extra: str) -> Any:
    """A module of an optional package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(f"this needs {error.name or module}: pip install 'varprop[{extra}]'") from None


# --- what is written is what was meant -------------------------------------------------------------------


def _check(run: Run, predictor: Predictor, named: Mapping[str, Tensor], kept: list[str], *, free: bool) -> None:
    """Refuse what differs from the predictor on other inputs, of the batch size given and of one."""
    generator = torch.Generator().manual_seed(0)
    size = len(next(iter(named.values())))
    for count in (size, 1) if free else (size,):
        rows = torch.randint(size, (count,), generator=generator)
        inputs = {name: _moved(x[rows.to(x.device)], generator) if len(x) == size else x for name, x in named.items()}
        expected = outputs(predictor(**inputs))
        for name, found in zip(kept, run(list(inputs.values())), strict=True):
            wanted = expected[name].cpu()
            if not torch.allclose(found.cpu().to(wanted.dtype), wanted, rtol=TOLERANCE, atol=TOLERANCE):
                off = float((found.cpu().double() - wanted.double()).abs().max())
                raise ExportError(f"the exported file differs from the predictor: {name} by {off:.2g}; it was not kept")


def _moved(x: Tensor, generator: torch.Generator) -> Tensor:
    """With noise added to floats; other dtypes as they are."""
    if not x.is_floating_point():
        return x
    return x + x.std() * torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters say about their own internals."""
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "torch.export", "onnxscript")}
    with warnings.catch_warnings(action="ignore"):
        try:
            for name in levels:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
