"""On a quadratic with known curvature h converges to it. Other ways to take a step equal this one: test_draws."""

import torch

from tests.optim.tasks import CURVATURES, Quadratic, curvature, ivon

STEPS, LAST = 1000, 300


def test_curvature_converges():
    """The last steps are averaged: single entries fluctuate with 1 − β₂."""
    model = Quadratic()
    optimizer = ivon(model.parameters(), lr=0.1, ess=1000.0, hess_init=3.0, beta2=0.99, weight_decay=1e-3)
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(3)
    for step in range(STEPS):
        with optimizer.sampled_params(train=True):
            model(0.02 * torch.randn(CURVATURES.shape, generator=generator)).backward()
        optimizer.step()
        if step >= STEPS - LAST:
            total += curvature(optimizer).view(3, -1).mean(1)
    assert torch.allclose(total / LAST, torch.tensor([0.5, 1.0, 2.0]), rtol=0.05)
    assert model.weight.abs().mean() < 0.05, "and the mean to the minimum"
