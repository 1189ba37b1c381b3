"""Posterior.from_ivon reads the optimizer, live and saved."""

import pytest
import torch

from tests.optim.tasks import ivon, loss_of, network, through_a_file, train
from varprop.errors import PosteriorError
from varprop.posterior import Posterior


def groups(model):
    return [
        {"params": list(model[0].parameters()), "ess": 80.0},
        {"params": list(model[2].parameters()), "weight_decay": 0.3},
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_variances_live_and_saved(dtype):
    model = network().to(dtype)
    optimizer = ivon(groups(model))
    train(model, optimizer, range(5))
    for source in (optimizer, optimizer.state_dict(), through_a_file(optimizer.state_dict())):
        posterior = Posterior.from_ivon(model, source)
        assert set(posterior) == {name for name, _ in model.named_parameters()}
        for name, p in model.named_parameters():
            ess, decay = (80.0, 0.01) if name.startswith("0") else (50.0, 0.3)
            var = 1 / (ess * (optimizer.state[p]["hess"].double() + decay))
            assert torch.equal(posterior[name].mean, p.detach())
            assert torch.allclose(posterior[name].var.double(), var, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6)
            assert len(optimizer.state[p]["hess"].unique()) > 1


def test_before_the_first_draw():
    model = network()
    optimizer = ivon(model.parameters(), hess_init=0.5)
    for source in (optimizer, optimizer.state_dict()):
        var = Posterior.from_ivon(model, source)["0.weight"].var
        assert torch.allclose(var, torch.full((5, 3), 1 / (50 * 0.51)))
    assert not optimizer.state, "looking must not create state"


def test_frozen_parameters_are_deterministic():
    model = network()
    model[0].requires_grad_(False)
    optimizer = ivon(model.parameters())
    assert Posterior.from_ivon(model, optimizer).names == ("2.weight", "2.bias")
    train(model, optimizer, range(2))
    for source in (optimizer, through_a_file(optimizer.state_dict())):
        assert Posterior.from_ivon(model, source).names == ("2.weight", "2.bias")
    model.requires_grad_(False)
    assert len(Posterior.from_ivon(model, optimizer)) == 2


class Wrapped:
    """As trainers wrap optimizers."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups, self.state = optimizer.param_groups, optimizer.state


def test_a_sample_is_refused():
    model = network()
    optimizer = ivon(model.parameters())
    optimizer.train()
    loss_of(model, 0).backward()
    for source in (optimizer, Wrapped(optimizer)):
        with pytest.raises(PosteriorError, match="a sample now, not the mean: call optimizer.eval"):
            Posterior.from_ivon(model, source)
    optimizer.eval()
    Posterior.from_ivon(model, optimizer)
    Posterior.from_ivon(model, Wrapped(optimizer))
    optimizer.step()
    with optimizer.sampled_params(), pytest.raises(PosteriorError, match="a sample now"):
        Posterior.from_ivon(model, optimizer)
    Posterior.from_ivon(model, optimizer)
