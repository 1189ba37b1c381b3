"""isotropic and scaled: one width for all, and another width for what there is."""

import pytest
import torch
from torch import nn

from varprop.errors import PosteriorError, SettingError
from varprop.posterior import Posterior


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 5, bias=False))


def test_one_variance_for_all_that_trains():
    model = network()
    model[1].bias.requires_grad_(False)
    model[3].weight = model[0].weight  # tied
    posterior = Posterior.isotropic(model, 0.02)
    assert set(posterior) == {"0.weight", "1.weight", "2.weight", "2.bias"}
    for name, parameter in model.named_parameters():
        if name in posterior:
            assert torch.equal(posterior[name].mean, parameter)
            torch.testing.assert_close(posterior[name].var, torch.full_like(parameter, 4e-4))


def test_the_width_follows_the_weights_and_not_the_gains_of_norms():
    model = network()
    matrices = torch.cat([p.detach().flatten() for p in model.parameters() if p.ndim == 2])
    std = Posterior.isotropic(model)["2.bias"].std
    torch.testing.assert_close(std, torch.full((4,), 0.1) * matrices.square().mean().sqrt())
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p *= 10
    torch.testing.assert_close(Posterior.isotropic(model)["2.bias"].std, 10 * std)
    assert Posterior.isotropic(nn.LayerNorm(3))["bias"].var.unique().numel() == 1


def test_in_half_precision():
    posterior = Posterior.isotropic(network().bfloat16(), 0.02)
    assert posterior["1.weight"].var.dtype == torch.bfloat16
    with pytest.raises(PosteriorError, match="float16 cannot hold"):
        Posterior.isotropic(network().half(), 1e-5)


def test_what_has_no_width():
    with pytest.raises(PosteriorError, match="requires a gradient"):
        Posterior.isotropic(network().requires_grad_(False))
    with pytest.raises(PosteriorError, match="all zero"):
        Posterior.isotropic(nn.Linear(2, 2).requires_grad_(True).apply(lambda m: nn.init.zeros_(m.weight)))
    with pytest.raises(PosteriorError, match="the model comes first"):
        Posterior.isotropic(0.1)
    for std in (0, -1.0, float("nan")):
        with pytest.raises(SettingError, match="std"):
            Posterior.isotropic(network(), std)


def test_scaled():
    posterior = Posterior.isotropic(network(), 0.02)
    wider = posterior.scaled(9)
    for name in posterior:
        assert torch.equal(wider[name].mean, posterior[name].mean)
        torch.testing.assert_close(wider[name].std, 3 * posterior[name].std)
    torch.testing.assert_close(posterior["2.bias"].std, torch.full((4,), 0.02))
    for factor in (0, -1, float("inf"), float("nan")):
        with pytest.raises(SettingError, match="factor"):
            posterior.scaled(factor)
    for factor in (1e-45, 1e300):
        with pytest.raises(PosteriorError, match="cannot hold"):
            posterior.scaled(factor)
