"""What two processes do in the tests of distributed training. Each returns a dict."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.optim.tasks import curvature, ivon
from varprop.errors import SamplingError

SIZE = 600
STEPS, LAST = 240, 80
SETTLING = {"lr": 0.1, "ess": 1000.0, "hess_init": 1.5, "beta2": 0.98, "weight_decay": 1e-3}


class Bowl(nn.Module):
    """Curvature 1 everywhere, in two parameters, so that DDP has more than one bucket."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.ones(SIZE))
        self.second = nn.Parameter(torch.ones(20, 10))

    def forward(self, x):
        return 0.5 * ((self.first - x[0]).square().sum() + (self.second - x[0]).square().sum())


def data(rank, step):
    return 0.02 * torch.randn(1, generator=torch.Generator().manual_seed(1000 * step + rank))


def replicated(**options):
    model = Bowl()
    return model, DistributedDataParallel(model, bucket_cap_mb=0.001, **options)


def settle(model, optimizer, rank, take):
    total = torch.zeros(())
    for step in range(STEPS):
        take(rank, step)
        optimizer.step()
        if step >= STEPS - LAST:
            total += curvature(optimizer).mean()
    return {
        "curvature": total / LAST,
        "hess": curvature(optimizer).clone(),
        "weights": torch.cat([p.detach().flatten() for p in model.parameters()]),
    }


def ddp_blocks(rank):
    model, wrapped = replicated()
    torch.manual_seed(rank)  # seeded apart, as some users do
    optimizer = ivon(model.parameters(), **SETTLING)
    optimizer.attach(wrapped)

    def take(rank, step):
        with optimizer.sampled_params(train=True):
            wrapped(data(rank, step)).backward()

    return settle(model, optimizer, rank, take)


def ddp_plain_loop_with_accumulation(rank):
    """As trainers do it: train() before each forward pass, no_sync() but for the last, clipping, zero_grad after."""
    model, wrapped = replicated()
    optimizer = ivon(model.parameters(), **SETTLING)
    optimizer.attach(wrapped)

    def take(rank, step):
        model.zero_grad()
        optimizer.train()
        with wrapped.no_sync():
            (wrapped(data(rank, step)) / 2).backward()
        optimizer.train()
        (wrapped(data(rank, step + 10**6)) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e3)

    return settle(model, optimizer, rank, take)


def ddp_draws(rank):
    """A few steps written down: samples, this rank's own gradients, and where the update led. Clipped and scaled."""
    model, wrapped = replicated(gradient_as_bucket_view=True)
    optimizer = ivon(model.parameters(), **SETTLING | {"clip_radius": 0.3})
    optimizer.attach(wrapped)
    draws, after = [], []
    for step in range(4):
        for _ in range(1 + step % 2):
            with optimizer.sampled_params(train=True):
                x = data(rank, step)
                (8 * wrapped(x)).backward()
                sample = model.first.detach().clone()
            draws.append((step, sample, sample - x))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 40.0)
        optimizer.step()
        after.append((model.first.detach().clone(), optimizer.state[model.first]["hess"].clone(), norm))
    return {"draws": draws, "after": after}


def ddp_resumed(rank):
    """All ranks resume from rank 0's checkpoint, as trainers have it."""

    def run(model, wrapped, optimizer, steps):
        for step in steps:
            optimizer.train()
            wrapped(data(rank, step)).backward()
            optimizer.step()
            optimizer.zero_grad()

    straight = replicated()
    optimizer = ivon(straight[0].parameters(), **SETTLING)
    optimizer.attach(straight[1])
    run(*straight, optimizer, range(5))
    saved = copy.deepcopy([optimizer.state_dict(), straight[0].state_dict()])
    run(*straight, optimizer, range(5, 10))
    dist.broadcast_object_list(saved, src=0)
    model, wrapped = replicated()
    model.load_state_dict(saved[1])
    torch.manual_seed(123 + rank)
    resumed = ivon(model.parameters(), **SETTLING | {"seed": None})
    resumed.attach(wrapped)
    resumed.load_state_dict(saved[0])
    run(model, wrapped, resumed, range(5, 10))
    equal = all(torch.equal(a, b) for a, b in zip(model.parameters(), straight[0].parameters(), strict=True))
    return {"equal": equal and torch.equal(curvature(resumed), curvature(optimizer))}


def message(function):
    try:
        function()
    except SamplingError as error:
        return str(error)
    return ""


def ddp_refusals(rank):
    found = {}
    model, wrapped = replicated()
    unattached = ivon(model.parameters())
    found["unattached block"] = message(lambda: unattached.sampled_params(train=True).__enter__())
    found["unattached loop"] = message(unattached.train)
    with unattached.sampled_params():  # looking is fine
        pass
    found["plain model"] = message(lambda: unattached.attach(model))
    found["foreign"] = message(lambda: ivon([nn.Parameter(torch.ones(3))]).attach(wrapped))

    optimizer = ivon(model.parameters())
    optimizer.attach(wrapped)
    optimizer.train()
    for _ in range(2):
        wrapped(data(rank, 0)).backward()
    found["averaged twice"] = message(optimizer.step)
    optimizer.zero_grad()
    optimizer.train()
    with wrapped.no_sync():
        wrapped(data(rank, 0)).backward()
    found["never averaged"] = message(optimizer.step)
    optimizer.zero_grad()

    # A step that a loss scaler skipped: the trainer zeroes the gradients and goes on.
    optimizer.train()
    wrapped(data(rank, 0)).backward()
    model.zero_grad()
    optimizer.train()
    wrapped(data(rank, 1)).backward()
    found["after a skipped step"] = message(optimizer.step)
    found["means"] = torch.cat([p.detach().flatten() for p in model.parameters()])

    alone = ivon(Bowl().parameters())
    alone.attach(None)
    found["alone"] = message(alone.train)
    return found


def sharded(mesh):
    torch.manual_seed(0)
    model = Bowl()
    fully_shard(model, mesh=mesh)
    return model


def whole(model):
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


def fsdp(rank):
    mesh = init_device_mesh("cpu", (2,))
    model = sharded(mesh)
    optimizer = ivon(model.parameters(), **SETTLING)
    with optimizer.sampled_params():
        sample = whole(model)
    total = torch.zeros(())
    for step in range(STEPS):
        optimizer.train()
        model(data(rank, step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e3)
        optimizer.step()
        optimizer.zero_grad()
        if step >= STEPS - LAST:
            total += torch.cat([optimizer.state[p]["hess"].full_tensor().flatten() for p in model.parameters()]).mean()
    options = StateDictOptions(full_state_dict=True)
    saved = get_optimizer_state_dict(model, optimizer, options=options)
    other = sharded(mesh)
    resumed = ivon(other.parameters(), **SETTLING | {"seed": None})
    set_optimizer_state_dict(other, resumed, saved, options=options)
    hess = {name: state["hess"] for name, state in saved["state"].items()}
    equal = all(
        torch.equal(resumed.state[p]["hess"].full_tensor(), hess[name]) and resumed.state[p]["step"] == STEPS
        for name, p in other.named_parameters()
    )
    return {
        "curvature": total / LAST,
        "weights": whole(model),
        "sample": sample,
        "resumed": equal and resumed.param_groups[0]["draws"] == STEPS,
        "saved": {"state": saved["state"], "param_groups": saved["param_groups"]},
    }


def hsdp(rank):
    """Two copies of one shard, on ranks that were seeded apart: the copies must get the same noise."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = sharded(mesh)
    torch.manual_seed(rank)
    optimizer = ivon(model.parameters(), **SETTLING | {"seed": None})
    for step in range(20):
        with optimizer.sampled_params(train=True):
            model(data(rank, step)).backward()
        optimizer.step()
    return {"weights": whole(model), "hess": optimizer.state[model.first]["hess"].to_local()}


ALL = (ddp_blocks, ddp_plain_loop_with_accumulation, ddp_draws, ddp_resumed, ddp_refusals, fsdp, hsdp)
