"""Diagonal SWAG: mean and variance of the weights along training (Maddox et al., 2019, SWAG-Diagonal)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from varprop.errors import PosteriorError, PosteriorMismatchError, listing, shortened
from varprop.moments import Moments
from varprop.posterior.binding import check_model, layout, mismatches, unwrapped
from varprop.posterior.running import Running
from varprop.posterior.samples import read, refuse_constant
from varprop.posterior.tensors import nonfinite

_PARTS = ("origin", "shift", "squares")
# Rounding errors of two running averages and a square, in units of the format's precision times E[w²].
_ROUNDING = 64


class SWAG:
    """Collects the mean and the variance of a model's weights, beside or instead of torch's ``AveragedModel``.

    Call ``update_parameters(model)`` once per epoch (or cycle) of SGD at a high, constant learning rate, then
    ``Posterior.from_swag(model, swag)``. Only parameters that train are collected; the others are deterministic.
    ``device`` is where the sums are kept; without it they stay beside the weights. ``state_dict`` holds only tensors,
    and a collector resumed from it continues bit for bit.
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        self._running = Running(None if device is None else torch.device(device))

    @property
    def n_averaged(self) -> int:
        return self._running.count

    def update_parameters(self, model: nn.Module) -> None:
        """Add the model's weights as they are now. Nothing is added if any of them is not finite or does not fit."""
        model = unwrapped(check_model(model, "update_parameters(model)"))
        parameters = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
        trainable = {name: p for name, p in parameters.items() if p.requires_grad}
        # What froze later is collected on, so that all parameters have the same number of values.
        collected = self._running.origin or trainable
        if not collected:
            raise PosteriorError(f"{type(model).__name__} has no parameters that train, so there is nothing to collect")
        weights = {name: p for name, p in parameters.items() if name in collected}
        problems = mismatches(collected, model)
        problems += [f"{name!r} trains now and did not before" for name in trainable if name not in collected]
        problems += [f"{name!r} {fault}" for name, weight in weights.items() if (fault := nonfinite(weight))]
        if problems:
            headline = f"these weights cannot be added to the {self.n_averaged} collected before"
            raise PosteriorMismatchError(listing(headline, shortened(problems)))
        self._running.add(weights)

    def state_dict(self) -> dict[str, Tensor]:
        state = {"n_averaged": torch.tensor(self.n_averaged)}
        for part in _PARTS:
            state |= {f"{part}.{name}": tensor for name, tensor in getattr(self._running, part).items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        names = [key.removeprefix("origin.") for key in state if key.startswith("origin.")]
        if odd := sorted(state.keys() ^ {"n_averaged", *(f"{part}.{name}" for part in _PARTS for name in names)}):
            few = ", ".join(map(repr, odd[:4]))
            raise PosteriorError(f"this is no whole state dict of SWAG (missing or unknown: {few})")
        self._running.count = int(state["n_averaged"])
        for part in _PARTS:
            setattr(self._running, part, {name: state[f"{part}.{name}"].to(self._running.device) for name in names})

    def moments(self) -> dict[str, Moments]:
        """Mean and population variance, S/n as in the paper, by parameter name."""
        if self.n_averaged < 2:
            raise PosteriorError(f"a variance needs at least 2 updates of SWAG, and there were {self.n_averaged}")
        mean, var = self._running.mean(), self._running.var(correction=0)
        refuse_constant(var, f"the weights of all {self.n_averaged} updates", "train between them")
        return {name: Moments(mean[name], var[name]) for name in mean}

    def __repr__(self) -> str:
        return f"<SWAG: {self.n_averaged} updates, {len(self._running.origin)} tensors>"


def moments(model: nn.Module, source: Any, square: Any) -> dict[str, Moments]:
    """By parameter name, from a collector or from averages of w and of w²."""
    if isinstance(source, SWAG):
        if square is not None:
            raise PosteriorError("a SWAG collector has the variance already: from_swag(model, swag)")
        return source.moments()
    if square is None:
        kind = type(source).__name__
        raise PosteriorError(
            f"a {kind} holds the mean only, from which no variance follows: collect with varprop's SWAG, "
            "or give the averages of the squares too, from_swag(model, mean, square)"
        )
    return _from_averages(model, source, square)


def _from_averages(model: nn.Module, first: Any, second: Any) -> dict[str, Moments]:
    wanted = layout(model)
    (mean, wrong), (square, wrong_squares) = read(first, wanted), read(second, wanted)
    problems = [f"mean: {problem}" for problem in shortened(wrong)]
    problems += [f"square: {problem}" for problem in shortened(wrong_squares)]
    if problems:
        headline = f"these are no averages of the weights of {type(model).__name__}"
        raise PosteriorMismatchError(listing(headline, problems))
    found = {}
    for name in mean:
        # float64, which not every device has: the difference must not add a rounding error of its own.
        m, s = (tensor.detach().cpu().double() for tensor in (mean[name], square[name]))
        difference = s - m.square()
        precision = max(torch.finfo(tensor.dtype).eps for tensor in (mean[name], square[name]))
        floor = -_ROUNDING * precision * torch.maximum(s.abs(), m.square())
        if wrong_count := int((difference < floor).sum()):
            least = float(difference.min())
            problems.append(f"{name!r}: negative in {wrong_count} of {m.numel()} entries (least {least:.3g})")
        found[name] = Moments(mean[name], difference.clamp(min=0))
    if problems:
        headline = "E[w²] − E[w]² is negative by more than rounding, so these are not averages of w and w²"
        remedy = (
            "An AveragedModel copies the first weights as they are, whatever its avg_fn says, so it cannot average "
            "squares by avg_fn: collect with varprop's SWAG."
        )
        raise PosteriorError(listing(headline, shortened(problems), remedy))
    return found
