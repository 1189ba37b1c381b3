"""Options that make no sense are refused by name; so are state dicts that are none of ours."""

import pytest
import torch
from torch import nn

from tests.optim.tasks import ivon, network, train
from varprop.errors import VarpropError
from varprop.optim import IVON

INF, NAN = float("inf"), float("nan")
BAD = {
    "lr": [0.0, -1.0, NAN, INF, "fast", None],
    "ess": [0, -5.0, NAN, INF],
    "hess_init": [0.0, -1.0, INF],
    "beta1": [-0.1, 1.0, NAN],
    "beta2": [-0.1, 1.0, 2.0],
    "weight_decay": [0.0, -1e-3, INF],
    "clip_radius": [0.0, -1.0, NAN],
    "seed": [-1, 0.5, "x"],
    "mc_samples": [0, 1.5, True],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options(name):
    for value in BAD[name]:
        settings = {"lr": 0.1, "ess": 10.0} | {name: value}
        with pytest.raises(ValueError, match=f"{name} must be") as caught:
            IVON(network().parameters(), **settings)
        assert isinstance(caught.value, VarpropError)
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("name", [name for name in BAD if name != "mc_samples"])
def test_bad_options_of_a_group(name):
    model = network()
    optimizer = ivon(model[0].parameters())
    with pytest.raises(ValueError, match=f"{name} must be"):
        optimizer.add_param_group({"params": list(model[2].parameters()), name: BAD[name][0]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.5})
    train(model, optimizer, range(2))


def test_edges_that_are_fine():
    optimizer = ivon(network().parameters(), beta1=0.0, beta2=0.0, clip_radius=INF, seed=0, lr=torch.tensor(0.1))
    train(network(), optimizer, range(0))


def test_parameters_that_cannot_be_trained():
    with pytest.raises(ValueError, match="real floating-point tensors, not torch.complex64"):
        ivon([nn.Parameter(torch.zeros(3, dtype=torch.complex64))])
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = ivon(embedding.parameters())
    with optimizer.sampled_params(train=True):
        embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(VarpropError, match="dense gradients"):
        optimizer.step()


def test_state_dicts_of_others():
    model = network()
    optimizer = ivon(model.parameters())
    with pytest.raises(ValueError, match="not the options of an IVON"):
        optimizer.load_state_dict(torch.optim.AdamW(model.parameters()).state_dict())
    other = ivon(nn.Linear(7, 7).parameters())
    with pytest.raises(ValueError, match="parameter group"):
        optimizer.load_state_dict(other.state_dict())
    wide = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2))
    other = ivon(wide.parameters())
    other.step()
    optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="another model's"):
        optimizer.train()
