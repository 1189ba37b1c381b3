"""Resuming equals never having stopped, bit for bit; state survives files, copies and dtypes."""

import copy

import pytest
import torch
from torch import nn

from tests.optim.tasks import curvature, ivon, loss_of, network, same, through_a_file, train, weights
from varprop.errors import SamplingError


def make(dtype=torch.float32, seed=1):
    model = network().to(dtype)
    groups = [{"params": list(model[0].parameters()), "ess": 80.0}, {"params": list(model[2].parameters())}]
    optimizer = ivon(groups, seed=seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    return model, optimizer, schedule


def go(model, optimizer, schedule, steps):
    for step in steps:
        optimizer.train()
        loss_of(model, step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_resuming_is_going_on(dtype):
    straight = make(dtype)
    go(*straight, range(40))
    first = make(dtype)
    go(*first, range(20))
    saved = through_a_file([part.state_dict() for part in first])
    torch.manual_seed(99)
    second = make(dtype, seed=None)
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    go(*second, range(20, 40))
    assert same(weights(straight[0]), weights(second[0]))
    for p, q in zip(straight[0].parameters(), second[0].parameters(), strict=True):
        a, b = straight[1].state[p], second[1].state[q]
        assert a.keys() == b.keys()
        assert a["step"] == b["step"] == 40
        assert all(torch.equal(a[key], b[key]) for key in a if key != "step")
        wide = torch.float32 if dtype == torch.bfloat16 else dtype
        assert {a[key].dtype for key in a if key != "step"} == {b[key].dtype for key in b if key != "step"} == {wide}
        assert ("mean" in a) == (dtype == torch.bfloat16)


def test_a_copy_goes_on_alike():
    model = network()
    optimizer = ivon(model.parameters(), mc_samples=2)
    train(model, optimizer, range(3))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    assert twin_optimizer.mc_samples == 2
    train(model, optimizer, range(3, 6))
    train(twin, twin_optimizer, range(3, 6))
    assert same(weights(model), weights(twin))
    train(model, optimizer, range(1))
    assert not same(weights(model), weights(twin)), "they share no memory"


def test_state_dicts_are_those_of_the_means():
    model = network()
    optimizer = ivon(model.parameters())
    state = optimizer.state_dict()
    optimizer.train()
    for use in (optimizer.state_dict, lambda: optimizer.load_state_dict(state), lambda: copy.deepcopy(optimizer)):
        with pytest.raises(SamplingError, match="the weights are a sample now.*optimizer.eval"):
            use()
    optimizer.eval()
    optimizer.state_dict()


def test_a_checkpoint_at_the_end_of_a_schedule():
    model = network()
    optimizer = ivon(model.parameters())
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, range(1))


def test_named_parameters_keep_their_names():
    model = network()
    optimizer = ivon(model.named_parameters())
    train(model, optimizer, range(1))
    assert optimizer.state_dict()["param_groups"][0]["param_names"][0] == "0.weight"
    twin = network()
    resumed = ivon(twin.named_parameters())
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    assert torch.equal(curvature(resumed), curvature(optimizer))


def test_checkpoints_of_ivon_opt():
    """The other package's training goes on in ours."""
    ivon_opt = pytest.importorskip("ivon")
    model = network()
    theirs = ivon_opt.IVON(model.parameters(), lr=0.1, ess=50.0, beta2=0.9, weight_decay=0.01)
    for step in range(20):
        with theirs.sampled_params(train=True):
            theirs.zero_grad()
            loss_of(model, step).backward()
        theirs.step()
    state = through_a_file(theirs.state_dict())
    ours = ivon(model.parameters(), ess=1.0)
    ours.load_state_dict(state)
    assert ours.param_groups[0]["ess"] == 50.0
    assert torch.equal(curvature(ours), theirs.param_groups[0]["hess"])
    momentum = torch.cat([ours.state[p]["momentum"].flatten() for p in model.parameters()])
    assert torch.equal(momentum, theirs.param_groups[0]["momentum"])
    train(model, ours, range(3))
    with pytest.raises(ValueError, match="other parameter groups"):
        ivon([{"params": [p]} for p in model.parameters()]).load_state_dict(state)
    wide = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2))
    with pytest.raises(ValueError, match="entries, the parameters of its group"):
        ivon(wide.parameters()).load_state_dict(state)


def test_mixed_dtypes_in_one_group():
    torch.manual_seed(0)
    params = [
        nn.Parameter(torch.randn(40).to(d)) for d in (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    ]
    optimizer = ivon(params, lr=1e-4, clip_radius=1.0, beta2=0.99999)
    before = [p.detach().double().clone() for p in params]
    for _ in range(300):
        with optimizer.sampled_params(train=True):
            sum((p.double() - 9).square().sum() for p in params).backward()
        optimizer.step()
    for p, start in zip(params, before, strict=True):
        assert optimizer.state[p]["hess"].dtype == (torch.float64 if p.dtype == torch.float64 else torch.float32)
        moved = (p.detach().double() - start).mean()
        assert moved == pytest.approx(300 * 1e-4 * 1.01, rel=0.1), "steps too small for the dtype add up all the same"


def test_a_model_that_changes_dtype_keeps_its_state():
    model = network()
    optimizer = ivon(model.parameters())
    train(model, optimizer, range(3))
    hess = curvature(optimizer)
    model.double()
    optimizer.train()
    assert curvature(optimizer).dtype == torch.float64
    assert torch.equal(curvature(optimizer).float(), hess)
