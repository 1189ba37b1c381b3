"""A Gaussian around weights that were trained without one: a diagonal Laplace approximation from the Fisher matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop.batch import read
from varprop.errors import InputError, PosteriorError
from varprop.graph.output import Output, select_output
from varprop.posterior import Posterior


def diagonal_fisher(
    model: nn.Module, batches: Any, *, seed: int = 0, output: Output = None, progress: bool = True
) -> dict[str, Tensor]:
    """The mean over examples of (∂ log p(y|x)/∂w)², with y drawn from the model's own prediction for x.

    Drawn labels make it the Fisher information, which for softmax is the diagonal of the generalised Gauss-Newton
    matrix on average; labels in ``batches`` are not looked at. Examples go through one by one, since gradients
    of a batch are sums, and squares of sums are not what is wanted.
    """
    if model.training:
        raise InputError("the model is in training mode: call model.eval(), or batch norms see one example at a time")
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise InputError("no parameter of the model requires a gradient, so there is no curvature to measure")
    total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    generator = torch.Generator().manual_seed(seed)
    device = next(iter(parameters.values())).device
    count = 0
    with tqdm(desc="curvature", unit=" examples", disable=None if progress else True, leave=False) as bar:
        for batch in read(batches):
            for index in range(len(batch)):
                one = batch.rows(index, index + 1).to(device)
                logits = select_output(model(*one.args, **one.kwargs), output)
                drawn = torch.multinomial(logits.detach().softmax(-1).cpu(), 1, generator=generator)[:, 0].to(device)
                loss = nn.functional.cross_entropy(logits, drawn)
                gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
                for name, gradient in zip(parameters, gradients, strict=True):
                    if gradient is not None:
                        total[name] += gradient.square()
                count += 1
                bar.update()
    return {name: tensor / count for name, tensor in total.items()}


def smoothed(fisher: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each weight tensor by the rank-one matrix with the same sums over outputs and over inputs; vectors as they are.

    A few hundred examples say little about each of 25 million weights, but much about each row and column. The
    Fisher of a linear layer is E[a² g²]; with inputs a and gradients g independent it is of rank one.
    """
    found = {}
    for name, tensor in fisher.items():
        if tensor.ndim < 2:
            found[name] = tensor
            continue
        matrix = tensor.flatten(1)
        rows, columns = matrix.sum(1, keepdim=True), matrix.sum(0, keepdim=True)
        all_of_it = matrix.sum().clamp_min(torch.finfo(matrix.dtype).tiny)
        found[name] = (rows * columns / all_of_it).view_as(tensor)
    return found


def laplace(model: nn.Module, fisher: Mapping[str, Tensor], *, ess: float, weight_decay: float) -> Posterior:
    """Means are the model's weights, variances 1/(ess·(fisher + weight_decay)), as of an IVON posterior.

    ``ess`` is the effective number of training examples: smaller is wider. ``ess · weight_decay`` is the precision
    of the prior.
    """
    if not ess > 0 or not weight_decay > 0:
        raise PosteriorError(f"ess is {ess} and weight_decay {weight_decay}: both must be positive")
    parameters = dict(model.named_parameters())
    mean = {name: parameters[name].detach() for name in fisher}
    return Posterior.from_tensors(mean, {n: 1 / (ess * (tensor + weight_decay)) for n, tensor in fisher.items()})
