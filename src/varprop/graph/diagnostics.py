"""Errors about a model: what cannot be captured, what no captured graph may do, and why a capture failed."""

from __future__ import annotations

import contextlib
import inspect
import os
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, fx, nn

from varprop.errors import CaptureError, InputError, TrainingModeError, UnsupportedOpError, VarpropError
from varprop.graph.captured import Captured, arguments, is_internal, module_class, module_path, place_of, source_line
from varprop.graph.interpreter import Applied
from varprop.graph.registry import Registries
from varprop.graph.signature import Binder, Call
from varprop.rules.ruleset import RuleSet, op_name

one_at_a_time = threading.RLock()
"""Torch's tracer, its settings, warnings and stderr are of the whole process, and a model has one set of modes."""


def require_model(model: Any) -> None:
    """Refuse what is no model, or none that can be captured."""
    if isinstance(model, type):
        raise InputError(f"a model is a torch.nn.Module, not the class {model.__name__}: make one of it")
    if not isinstance(model, nn.Module):
        raise InputError(f"a model is a torch.nn.Module, not a {type(model).__name__}")
    name = type(model).__name__
    if isinstance(model, Registries):
        raise InputError("this network is propagated already: give the model it was made from")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise InputError(f"a {name} only wraps the model: give model.module, and a posterior with its names")
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(f"a {name} has no Python code to capture: give the module it was made from")
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise InputError(
                f"{path!r} is on the meta device and holds no numbers: load the weights of the {name} first"
            )
        if hasattr(tensor, "device_mesh"):
            raise InputError(
                f"{path!r} is sharded over processes (FSDP2, tensor parallelism), rules need whole weights: propagate "
                "a model that is not, with get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) "
                "of torch.distributed.checkpoint.state_dict as its weights"
            )
    refuse_training(model)


def refuse_training(model: nn.Module) -> None:
    """Of a model that is called as it is, or given as trained."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.RNNBase)
    for path, module in model.named_modules():
        if module.training and isinstance(module, kinds) and getattr(module, "p", getattr(module, "dropout", 1)) > 0:
            raise TrainingModeError(
                f"{path or 'the model'} ({type(module).__name__}) is in training mode: call model.eval() first"
            )


@contextlib.contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """While open, the model is in eval mode, whatever becomes of the original after a network was made of it; one
    thread at a time, so that none takes the modes of another for the user's.
    """
    with one_at_a_time:
        training = [module for module in model.modules() if module.training]
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True


def refuse_drawing(captured: Captured) -> None:
    for node in captured.ops():
        place = f"{node.target} at {place_of(node)}"
        if "batch_norm" in str(node.target) and "no_training" not in str(node.target):
            raise TrainingModeError(f"{place} uses batch statistics, in eval mode too: it cannot be propagated")
        if _draws(node):
            raise TrainingModeError(
                f"{place} may draw random numbers, in eval mode too: if it is dropout, let it follow self.training; "
                "a model that draws even so cannot be propagated"
            )


def _draws(node: fx.Node) -> bool:
    """Does the op draw random numbers? Attention is tagged so, but does it only with dropout."""
    if node.target is torch.ops.aten.scaled_dot_product_attention.default:
        return bool(arguments(node)["dropout_p"])
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def refuse_writing(program: torch.export.ExportedProgram) -> None:
    written = list(program.graph_signature.buffers_to_mutate.values())
    if written:
        names = ", ".join(name.removeprefix("buffer.") for name in written)
        raise CaptureError(
            f"forward writes to buffers ({names}), in eval mode too, which a pure graph cannot do: detach that part"
        )


def capture_error(model: nn.Module, call: Call, error: Exception) -> Exception:
    """What a failed capture means: the user's inputs if the model itself fails on them, else the model."""
    if isinstance(error, VarpropError | torch.OutOfMemoryError):
        return error
    binder = Binder(model.forward)
    with in_eval(model):
        own = own_failure(
            model, call.given_inputs, lambda function, inputs: binder.run(function, call.structure, inputs)
        )
    if own is not None:
        return own
    name = type(model).__name__
    reason = (str(error).strip().splitlines() or [""])[0]
    if " " not in reason:  # a KeyError, for one, says but the key
        reason = f"{type(error).__name__} {reason}".strip()
    return CaptureError(
        f"{name} cannot be captured by torch.export{_own_line(error)}: {reason}\n"
        "Its forward depends on tensor values or leaves torch: propagate a submodule of it, or rewrite that part."
    )


@torch.no_grad()
def own_failure(model: nn.Module, inputs: list[Tensor], apply: Callable[[Any, list[Tensor]], Any]) -> InputError | None:
    """How the model itself fails in ``apply(model, inputs)``, if it does, and which cast or which arguments mend it."""
    try:
        apply(model, inputs)
    except Exception as own:  # noqa: BLE001 (whatever the model raises is what we report)
        text = f"{type(model).__name__} itself fails on these inputs: {own}"
    else:
        return None
    signature = inspect.signature(model.forward)
    try:
        apply(signature.bind, inputs)
    except TypeError:
        return InputError(f"{text}. Its forward takes ({', '.join(signature.parameters)})")
    return InputError(f"{text}.{_cast_hint(model, inputs, apply)}")


def _own_line(error: Exception) -> str:
    """Where in the model it went wrong."""
    library = str(Path(os.__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_internal(frame.filename)]
    own = [frame for frame in frames if library not in frame.filename or "site-packages" in frame.filename]
    return f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _cast_hint(model: nn.Module, inputs: list[Tensor], apply: Callable[[Any, list[Tensor]], Any]) -> str:
    """Of one input, or else of all, if the model then runs."""
    wanted = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    others = [index for index, x in enumerate(inputs) if x.dtype != wanted and not x.is_complex()]
    for chosen in (*([index] for index in others), others):
        try:
            apply(model, [x.to(wanted) if index in chosen else x for index, x in enumerate(inputs)])
        except Exception:  # noqa: BLE001
            continue
        listed = " and ".join(f"{index} is {inputs[index].dtype}" for index in chosen)
        return f" Input {listed}, the model {wanted}: does it need .to({wanted})?"
    return ""


def require_rules(applied: list[Applied], model: str, rules: RuleSet) -> None:
    """Raise one error that lists every op whose variance is needed but has no rule."""
    gaps = [entry.node for entry in applied if entry.missing and entry.needed]
    if not gaps:
        return
    rows = [
        (op_name(n.target), f"at {module_path(n) or '(top level)'} ({module_class(n)})", source_line(n)) for n in gaps
    ]
    table = textwrap.indent(tabulate(list(dict.fromkeys(rows)), tablefmt="plain", disable_numparse=True), "  ")
    plural = "op has" if len(gaps) == 1 else "ops have"
    raise UnsupportedOpError(
        f"{len(gaps)} {plural} no variance rule in {rules.name}, but variance flows there in {model}\n{table}\n"
        f"Write one with @vp.rule({rows[0][0]}): see docs/add_a_rule.md. "
        "Or let only parameters behind them be random: posterior.restrict(...) names those that stay random."
    )
