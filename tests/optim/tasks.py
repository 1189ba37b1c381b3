"""Small problems the optimizer's tests share."""

import torch
from torch import nn

from varprop.optim import IVON

CURVATURES = torch.tensor([0.5, 1.0, 2.0]).repeat_interleave(400)


class Quadratic(nn.Module):
    """A loss whose curvature is known: ½ Σ c w², plus noise of the data that moves the gradient."""

    def __init__(self, curvatures=CURVATURES):
        super().__init__()
        self.weight = nn.Parameter(torch.ones_like(curvatures))
        self.register_buffer("curvatures", curvatures)

    def forward(self, shift):
        return (0.5 * self.curvatures * self.weight.square() + shift * self.weight).sum()


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def ivon(params, **settings):
    return IVON(params, **{"lr": 0.1, "ess": 50.0, "beta2": 0.9, "weight_decay": 0.01, "seed": 1} | settings)


def batch(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 3, generator=generator)
    return x, x.sum(1, keepdim=True).sin().expand(-1, 2)


def loss_of(model, step):
    x, y = batch(step)
    return (model(x) - y).square().mean()


def train(model, optimizer, steps):
    for step in steps:
        with optimizer.sampled_params(train=True):
            loss_of(model, step).backward()
        optimizer.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def curvature(optimizer):
    """The curvature of every entry, in order."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return torch.cat([optimizer.state[p]["hess"].flatten() for p in held])
