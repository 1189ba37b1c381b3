"""Small problems the optimizer's tests share."""

import io

import torch
from torch import nn

from varprop.optim import IVON


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def ivon(params, **settings):
    return IVON(params, **{"lr": 0.1, "ess": 50.0, "beta2": 0.9, "weight_decay": 0.01, "seed": 1} | settings)


def loss_of(model, step):
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step)).to(model[0].weight.dtype)
    return (model(x) - x.sum(1, keepdim=True).sin()).square().mean()


def train(model, optimizer, steps):
    for step in steps:
        with optimizer.sampled_params(train=True):
            loss_of(model, step).backward()
        optimizer.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def curvature(optimizer):
    """The curvature of every entry, in order."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return torch.cat([optimizer.state[p]["hess"].flatten() for p in held])
