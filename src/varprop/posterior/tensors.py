"""What tensors must be to serve as means and variances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from varprop.errors import PosteriorError, listing
from varprop.moments import Moments

# Posterior variances live around 1e-7; a format whose smallest number is near that loses them.
_SAFE_SMALLEST = 1e-30


def checked(mean: Mapping[str, Tensor], var: Mapping[str, Tensor]) -> dict[str, Moments]:
    """Pair means with variances, or raise one error that lists everything wrong with them."""
    for role, given in (("mean", mean), ("var", var)):
        if not isinstance(given, Mapping):
            raise PosteriorError(f"{role} must map parameter names to tensors, not be a {type(given).__name__}")
    problems = [f"{name!r} has a mean but no variance" for name in mean if name not in var]
    problems += [f"{name!r} has a variance but no mean" for name in var if name not in mean]
    for name in mean:
        if name in var:
            problems += _problems(name, mean[name], var[name])
    if problems:
        raise PosteriorError(listing("these tensors are no means and variances", problems))
    return {name: Moments(mean[name].detach(), var[name].detach()) for name in mean}


def cast(name: str, moments: Moments, device: torch.device | None, dtype: torch.dtype | None) -> Moments:
    """The same moments elsewhere; refused if the new dtype would turn variances into zeros or infinities."""
    moved = Moments(*(tensor.to(device=device, dtype=dtype) for tensor in moments))
    if moved.var.dtype != moments.var.dtype and torch.finfo(moved.var.dtype).smallest_normal > _SAFE_SMALLEST:
        lost = ((moved.var == 0) & (moments.var > 0).to(moved.var.device)) | ~moved.var.isfinite()
        if lost.any() or not moved.mean.isfinite().all():
            raise PosteriorError(
                f"{moved.var.dtype} cannot hold the posterior of {name!r}: {int(lost.sum())} of {lost.numel()} "
                "variances would become 0 or infinite. Use torch.bfloat16 or torch.float32."
            )
    return moved


def widened(tensor: Tensor) -> Tensor:
    """In float32 at least: half precision is too coarse to compute variances in."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def unusable(tensor: Any) -> str | None:
    """Why a value holds no numbers that could be checked; None if it does."""
    if not isinstance(tensor, Tensor):
        return f"is a {type(tensor).__name__}, not a tensor"
    if not tensor.is_floating_point():
        return f"is {tensor.dtype}, not floating point"
    if tensor.layout != torch.strided:
        return f"is {tensor.layout}, not dense"
    if tensor.device.type == "meta":
        return "is on the meta device and holds no numbers"
    return None


def nonfinite(tensor: Tensor) -> str | None:
    if not tensor.numel() or all(end.isfinite() for end in tensor.detach().aminmax()):  # one pass; NaN is both ends
        return None
    count = int((~tensor.isfinite()).sum())
    return f"is NaN or infinite in {count} of {tensor.numel()} entries" if count else None


def _problems(name: str, mean: Any, var: Any) -> list[str]:
    if not isinstance(name, str):
        return [f"the name {name!r} is not a string"]
    roles = {"mean": mean, "variance": var}
    if found := [f"the {role} of {name!r} {fault}" for role, x in roles.items() if (fault := unusable(x))]:
        return found
    for what, a, b in (
        ("shape", tuple(mean.shape), tuple(var.shape)),
        ("dtype", mean.dtype, var.dtype),
        ("device", mean.device, var.device),
    ):
        if a != b:
            found.append(f"{name!r}: the mean has {what} {a}, the variance {b}")
    found += [f"the {role} of {name!r} {fault}" for role, x in roles.items() if (fault := nonfinite(x))]
    if var.numel() and not var.detach().min() >= 0 and (count := int((var < 0).sum())):
        found.append(
            f"the variance of {name!r} is negative in {count} of {var.numel()} entries (least {float(var.min()):.3g}); "
            "log-variances need .exp() first"
        )
    return found
