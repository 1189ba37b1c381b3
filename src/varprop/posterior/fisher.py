"""The diagonal Fisher information of a model's weights, from gradients of single examples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop.batch import Batch, read
from varprop.errors import CurvatureError, InputError
from varprop.graph.diagnostics import refuse_training
from varprop.graph.output import Output, run, select_output
from varprop.graph.signature import takes_one
from varprop.moments import Moments
from varprop.posterior.binding import Tensors
from varprop.posterior.diagonal import check_positive, from_curvature, trainable
from varprop.posterior.likelihood import SOFTMAX, Likelihood
from varprop.posterior.tensors import widened

FEW = 16
"""Up to this many outputs the expectation over targets is exact; beyond, one target is drawn for each example."""
AT_ONCE = 2**26
"""Entries of gradients held at once: a quarter of a GiB in float32."""


@torch.inference_mode(False)
def moments(
    model: nn.Module,
    batches: Any,
    link: Any,
    examples: float | None,
    damping: float,
    seed: int,
    output: Output,
    progress: bool,
) -> dict[str, Moments]:
    """By parameter name."""
    check_positive(examples=examples, damping=damping)
    likelihood = SOFTMAX if link is None else getattr(link, "likelihood", None)
    if not isinstance(likelihood, Likelihood):
        raise InputError(f"link is a {type(link).__name__}, not one of vp.links: Softmax(), Sigmoid(), Gaussian(std)")
    parameters = trainable(model)
    refuse_training(model)
    generator = torch.Generator().manual_seed(seed)
    squares = _Squares(model, parameters, output)
    with tqdm(desc="fisher", unit=" examples", disable=None if progress else True, leave=False) as bar:
        for number, batch in enumerate(read(batches, one=takes_one(model.forward))):
            there = batch.to(squares.device)
            with torch.no_grad():
                outputs = run(model, {}, there.args, there.kwargs, output)
                scores = _scores(likelihood, _checked(outputs, batch, number), generator)
            squares.add(there, scores)
            bar.update(len(batch))
    curvature = {name: total / squares.count for name, total in squares.total.items()}
    return from_curvature(curvature, parameters, examples, damping)


def _checked(outputs: Tensor, batch: Batch, number: int) -> Tensor:
    if not bool(outputs.isfinite().all()):
        raise CurvatureError(f"the outputs for batch {number} are not finite (NaN or inf)")
    if not outputs.ndim or len(outputs) != len(batch):
        raise InputError(f"{len(batch)} targets, but outputs of shape {list(outputs.shape)}: there is a row an example")
    return widened(outputs)


def _scores(likelihood: Likelihood, outputs: Tensor, generator: torch.Generator) -> Tensor:
    """K weightings of the outputs of each example, whose gradients are squared: [examples, K, *outputs]."""
    each = outputs if outputs.ndim > 1 else outputs.unsqueeze(-1)  # [N]: a single number for each example
    if each.ndim == 2 and each.shape[1] <= FEW:
        return likelihood.roots(each).view(len(each), -1, *outputs.shape[1:])
    # Drawn on the CPU: a seed means the same targets on every device.
    uniform = torch.rand(each.shape, generator=generator, dtype=torch.float64).to(each.device, each.dtype)
    return likelihood.score(each, uniform).unsqueeze(1)


class _Squares:
    """Sums of squared gradients of single examples: vmap over some at a time, or one by one where it refuses."""

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter], output: Output) -> None:
        self.model, self.output, self.count = model, output, 0
        self.weights = {name: p.detach() for name, p in parameters.items()}
        self.device = next(iter(self.weights.values())).device
        self.total = {name: torch.zeros_like(widened(w)) for name, w in self.weights.items()}
        self.most = max(1, AT_ONCE // sum(w.numel() for w in self.weights.values()))
        self.stacked = True

    def add(self, batch: Batch, scores: Tensor) -> None:
        self.count += len(batch)
        rows = torch.arange(len(batch), device=self.device).repeat_interleave(scores.shape[1])
        size = min(self.most, len(batch))  # so that activations take no more memory than in a training step
        for some, weights in zip(rows.split(size), scores.flatten(0, 1).split(size), strict=True):
            for gradients in self._gradients(batch, some, weights):
                for name, gradient in gradients.items():
                    self.total[name] += gradient.to(self.total[name].dtype).square().sum(0)

    def _gradients(self, batch: Batch, rows: Tensor, scores: Tensor) -> Iterator[Tensors]:
        leaves, structure = pytree.tree_flatten((batch.args, batch.kwargs))
        own = [isinstance(x, Tensor) and x.ndim > 0 and len(x) == len(batch) for x in leaves]
        cut = [x[rows] if mine else x for x, mine in zip(leaves, own, strict=True)]

        def weighted(weights: Tensors, score: Tensor, *parts: Any) -> Tensor:
            """⟨a, f(x)⟩ of one example."""
            one = [x.unsqueeze(0) if mine else x for x, mine in zip(parts, own, strict=True)]
            args, kwargs = pytree.tree_unflatten(one, structure)
            outputs = select_output(functional_call(self.model, weights, args, kwargs), self.output)
            return (outputs[0] * score.to(outputs.dtype)).sum()

        if self.stacked:
            dims = (None, 0, *(0 if mine else None for mine in own))
            try:
                # Fused attention fails in the backward pass of stacked examples (torch 2.11).
                with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
                    gradients = vmap(grad(weighted), in_dims=dims)(self.weights, scores, *cut)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError, TypeError):  # control flow on values, ops that cannot be stacked
                self.stacked = False
            else:
                yield gradients
                return
        for index in range(len(rows)):
            single = [x[index] if mine else x for x, mine in zip(cut, own, strict=True)]
            found = grad(weighted)(self.weights, scores[index], *single)
            yield {name: gradient.unsqueeze(0) for name, gradient in found.items()}
