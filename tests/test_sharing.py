"""Two processes find what one finds."""

import functools

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import varprop as vp
from tests import ranks
from varprop.errors import InputError
from varprop.sharing import shared


def test_alone():
    assert shared("ab", lambda number, item: {"n": number, "i": item}, None) == [{"n": 0, "i": "a"}, {"n": 1, "i": "b"}]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)).eval()


@functools.cache
def problem():
    """A classifier, held-out data and test data, in batches of unequal sizes."""
    model = network()
    x = torch.randn(700, 4)
    y = (x[:, :3] + 0.7 * torch.randn(700, 3)).argmax(1)
    batches = list(zip(x.split([130, 70, 200, 300]), y.split([130, 70, 200, 300]), strict=True))
    return vp.propagate(model, vp.Posterior.isotropic(model)), batches[:3], batches[3:] + batches[:1]


def calibrated(group):
    net, held_out, test = problem()
    found = vp.calibrate(net, held_out, progress=False, group=group)
    evaluation = vp.evaluate(vp.Propagated(found), test, progress=False, group=group)
    return {"scales": found.scales, "temperature": found.temperature, "metrics": evaluation.metrics}


def both(rank):
    return calibrated(torch.distributed.group.WORLD)


def gathered(rank):
    """Of nothing, of tensors of all shapes and dtypes, and in the order of the items."""
    world = torch.distributed.group.WORLD
    found = shared(range(5), lambda number, _: {"x": torch.full((number, 2), rank), "b": torch.tensor(True)}, world)
    return {
        "shapes": [list(each["x"].shape) for each in found],
        "by": [int(each["x"].sum()) for each in found],
        "nothing": shared([], lambda number, _: {}, world),
        "kind": str(found[4]["b"].dtype),
    }


def sharded(rank):
    """What is said to models that are spread over processes, and the moments of one with the gathered weights."""
    mesh, said = init_device_mesh("cpu", (2,)), []
    columns = {"0": ColwiseParallel(), "3": RowwiseParallel()}
    for spread in (lambda model: fully_shard(model, mesh=mesh), lambda model: parallelize_module(model, mesh, columns)):
        model = network()
        spread(model)
        try:
            vp.propagate(model, vp.Posterior.isotropic(network()))
        except InputError as error:
            said.append(str(error))
        whole = network()
        for parameter in whole.parameters():
            parameter.data.zero_()
        whole.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
        net = vp.propagate(whole, vp.Posterior.isotropic(whole))
        said.append(net(torch.ones(2, 4)).var)
    return said


@pytest.mark.slow
@ranks.needs_gloo
@pytest.mark.filterwarnings("ignore:the best width")
def test_two_processes_find_the_same(tmp_path):
    alone = calibrated(None)
    plain = vp.propagate(network(), vp.Posterior.isotropic(network()))(torch.ones(2, 4)).var
    for found in ranks.results(tmp_path, [both, gathered, sharded]):
        assert found["both"] == alone
        for error, var in zip(found["sharded"][::2], found["sharded"][1::2], strict=True):
            assert "'0.weight' is sharded over processes (FSDP2, tensor parallelism)" in error
            assert "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in error
            torch.testing.assert_close(var, plain)
        assert found["gathered"] == {
            "shapes": [[0, 2], [1, 2], [2, 2], [3, 2], [4, 2]],
            "by": [0, 2, 0, 6, 0],
            "nothing": [],
            "kind": "torch.bool",
        }
