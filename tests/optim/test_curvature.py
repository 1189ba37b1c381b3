"""On a quadratic with known curvature h converges to it."""

import pytest
import torch

from tests.optim.tasks import CURVATURES, Quadratic, curvature, ivon


def levels(optimizer):
    """Mean curvature of the entries that share a true one."""
    return curvature(optimizer).view(3, -1).mean(1)


def settle(model, take, optimizer, steps=2400):
    """The last third is averaged: single entries fluctuate with 1 − β₂."""
    total = torch.zeros(3)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        take(model, optimizer, generator)
        optimizer.step()
        if step >= steps * 2 // 3:
            total += levels(optimizer)
    return total / (steps - steps * 2 // 3)


def shift(generator):
    return 0.02 * torch.randn(CURVATURES.shape, generator=generator)


def one(model, optimizer, generator):
    with optimizer.sampled_params(train=True):
        model(shift(generator)).backward()


def several(model, optimizer, generator):
    for _ in range(3):
        one(model, optimizer, generator)


def accumulated(model, optimizer, generator):
    with optimizer.sampled_params(train=True):
        for _ in range(4):
            (model(shift(generator)) / 4).backward()


def standing(model, optimizer, generator):
    optimizer.zero_grad()
    for _ in range(2):
        optimizer.train()
        (model(shift(generator)) / 2).backward()


@pytest.mark.parametrize("take", [one, several, accumulated, standing])
def test_curvature_converges(take):
    model = Quadratic()
    optimizer = ivon(model.parameters(), lr=0.1, ess=1000.0, hess_init=3.0, beta2=0.997, weight_decay=1e-3)
    found = settle(model, take, optimizer)
    assert torch.allclose(found, torch.tensor([0.5, 1.0, 2.0]), rtol=0.05)
    assert model.weight.abs().mean() < 0.05, "and the mean to the minimum"
