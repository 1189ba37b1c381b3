"""What is no model to capture, and what no captured graph may do: draw random numbers, train, write to buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from varprop.errors import CaptureError, InputError, TrainingModeError
from varprop.graph.captured import Captured, place_of
from varprop.graph.registry import Registries


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
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    for path, module in model.named_modules():
        if module.training and isinstance(module, kinds) and getattr(module, "p", 1) > 0:
            raise TrainingModeError(
                f"{path or 'the model'} ({type(module).__name__}) is in training mode: call model.eval() first"
            )


def refuse_drawing(captured: Captured) -> None:
    for node in captured.ops():
        place = f"{node.target} at {place_of(node)}"
        if "batch_norm" in str(node.target) and "no_training" not in str(node.target):
            raise TrainingModeError(f"{place} uses batch statistics: call model.eval() first")
        if _draws(node):
            raise TrainingModeError(
                f"{place} may draw random numbers: if it is dropout, call model.eval() first; a model that draws "
                "even so cannot be propagated"
            )


def _draws(node: fx.Node) -> bool:
    """Does the op draw random numbers? Attention is tagged so, but does it only with dropout."""
    if node.target is torch.ops.aten.scaled_dot_product_attention.default:
        return bool(node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0))
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def refuse_writing(program: torch.export.ExportedProgram) -> None:
    written = list(program.graph_signature.buffers_to_mutate.values())
    if written:
        names = ", ".join(name.removeprefix("buffer.") for name in written)
        raise CaptureError(
            f"forward writes to buffers ({names}), which a pure graph cannot do: call model.eval() or detach that part"
        )
