"""The diagonal Fisher information and the posterior made from it."""

import pytest
import torch
from torch import nn

from experiments.models.curvature import diagonal_fisher, laplace, smoothed
from varprop.errors import InputError, PosteriorError

pytestmark = pytest.mark.second


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 3).eval()


def test_the_fisher_of_a_linear_softmax_is_that_of_the_formula():
    """E[(1[y=k] − p_k)²] x² = p_k(1 − p_k) x², within five standard errors over drawn labels."""
    model, x = linear(), torch.tensor([0.5, -1.0, 2.0, 0.0])
    count = 2000
    found = diagonal_fisher(model, [(x.expand(count, 4), torch.zeros(count))], progress=False)
    p = model(x).softmax(-1).detach()
    expected = (p * (1 - p))[:, None] * x.square()
    second = p * (1 - p) ** 4 + (1 - p) * p**4  # of (1[y=k] − p_k)⁴
    error = ((second - (p * (1 - p)) ** 2) / count).sqrt()[:, None] * x.square()
    assert ((found["weight"] - expected).abs() <= 5 * error + 1e-7).all()
    assert torch.equal(found["weight"][:, 3], torch.zeros(3))


def test_batches_and_their_sizes_do_not_matter_and_the_seed_does():
    model, x, y = linear(), torch.randn(12, 4), torch.zeros(12)
    runs = [diagonal_fisher(model, [(x, y)], seed=1, progress=False)]
    runs += [diagonal_fisher(model, list(zip(x.split(5), y.split(5), strict=True)), seed=1, progress=False)]
    runs += [diagonal_fisher(model, [(x, y)], seed=2, progress=False)]
    torch.testing.assert_close(runs[0]["weight"], runs[1]["weight"])
    assert not torch.allclose(runs[0]["weight"], runs[2]["weight"])


def test_frozen_parameters_are_left_out_and_gradients_untouched():
    model = linear()
    model.bias.requires_grad_(False)
    assert set(diagonal_fisher(model, [(torch.randn(2, 4), torch.zeros(2))], progress=False)) == {"weight"}
    assert model.weight.grad is None


def test_smoothing_keeps_sums_of_rows_and_columns():
    fisher = {"weight": torch.rand(3, 2, 2, 2), "bias": torch.rand(3), "dead": torch.zeros(2, 2)}
    found = smoothed(fisher)
    before, after = fisher["weight"].flatten(1), found["weight"].flatten(1)
    torch.testing.assert_close(after.sum(1), before.sum(1))
    torch.testing.assert_close(after.sum(0), before.sum(0))
    assert torch.linalg.matrix_rank(after) == 1
    assert torch.equal(found["bias"], fisher["bias"])
    assert torch.equal(found["dead"], fisher["dead"])


def test_variances_are_those_of_ivon():
    model = linear()
    posterior = laplace(model, {"weight": torch.full((3, 4), 0.25)}, ess=8, weight_decay=0.25)
    assert torch.equal(posterior["weight"].mean, model.weight)
    assert torch.equal(posterior["weight"].var, torch.full((3, 4), 0.25))
    assert "bias" not in posterior


def test_wrong_use():
    with pytest.raises(InputError, match="training mode"):
        diagonal_fisher(linear().train(), [])
    with pytest.raises(InputError, match="requires a gradient"):
        diagonal_fisher(linear().requires_grad_(False), [])
    with pytest.raises(PosteriorError, match="both must be positive"):
        laplace(linear(), {}, ess=0, weight_decay=1)
