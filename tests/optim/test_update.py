"""The update against the published algorithm, step by step, and against the ivon-opt package with the same noise."""

import pytest
import torch
from torch import nn

from tests.optim.reference import Reference
from tests.optim.tasks import loss_of, network
from varprop.optim import IVON
from varprop.optim.streams import fill_normal

SETTINGS = {"lr": 0.3, "ess": 40.0, "hess_init": 0.7, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.02}


def spread(flat, shapes):
    """The noise of each parameter out of the vector, whose parts begin at multiples of 16."""
    found, start = [], 0
    for shape in shapes:
        found.append(flat[start : start + shape.numel()].view(shape).double())
        start += -(-shape.numel() // 16) * 16
    return found


@pytest.fixture
def drawn(monkeypatch):
    """Standard normal numbers behind every draw, one tensor per arena, as they are drawn."""
    record = []

    def fill(vector, *name):
        fill_normal(vector, *name)
        record.append(vector.clone())

    monkeypatch.setattr("varprop.optim.draws.fill_normal", fill)
    return record


def compare(model, references, rtol):
    for p, reference in zip(model.parameters(), references, strict=True):
        scale = reference.mean.abs().max()
        assert (p.detach().double() - reference.mean).abs().max() <= rtol * scale


@pytest.mark.parametrize(
    ("dtype", "rtol", "radius", "samples", "piece"),
    [
        (torch.float64, 1e-13, float("inf"), 1, 1 << 18),
        (torch.float64, 1e-13, 0.05, 3, 16),
        (torch.float32, 2e-6, 0.05, 1, 7),
        (torch.float32, 2e-6, float("inf"), 3, 1 << 18),
    ],
)
def test_against_the_published_algorithm(drawn, monkeypatch, dtype, rtol, radius, samples, piece):
    """Small pieces stand for large models, which go through the cache piece by piece."""
    monkeypatch.setattr("varprop.optim.arena.PIECE", piece)
    monkeypatch.setattr("varprop.optim.update.PIECE", piece)
    model = network().to(dtype)
    settings = SETTINGS | {"clip_radius": radius}
    optimizer = IVON(model.parameters(), **settings)
    references = [Reference(p, **settings) for p in model.parameters()]
    for step in range(30):
        for _ in range(samples):
            with optimizer.sampled_params(train=True):
                noise = [
                    r.noise(z)
                    for r, z in zip(references, spread(drawn[-1], [p.shape for p in model.parameters()]), strict=True)
                ]
                for p, r, e in zip(model.parameters(), references, noise, strict=True):
                    assert torch.allclose(
                        p.detach().double(), r.mean + e, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12
                    )
                loss_of(model, step).backward()
                gradients = [p.grad.clone() for p in model.parameters()]
            for r, g, e in zip(references, gradients, noise, strict=True):
                r.take(g, e)
        optimizer.step()
        for r in references:
            r.step()
        compare(model, references, rtol * (step + 1))
    for p, r in zip(model.parameters(), references, strict=True):
        state = optimizer.state[p]
        assert state["step"] == 30
        assert torch.allclose(state["hess"].double(), r.h, rtol=30 * rtol, atol=0)
        assert torch.allclose(state["momentum"].double(), r.g, rtol=0, atol=30 * rtol * float(r.g.abs().max()))
        assert (state["hess"] != 0.7).all()


def test_groups_schedules_and_late_groups(drawn):
    """Two groups with settings of their own, one of them added later, a schedule that starts at zero."""
    model = network().double()
    optimizer = IVON([{"params": model[0].parameters(), "weight_decay": 0.5, "ess": 9.0}], **SETTINGS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda t: t / 10])
    references = [Reference(p, **SETTINGS | {"weight_decay": 0.5, "ess": 9.0}) for p in model[0].parameters()]
    shapes = [p.shape for p in model[0].parameters()]
    for step in range(20):
        if step == 10:
            late = {"params": list(model[2].parameters()), "lr": 0.05, "hess_init": 2.0}
            optimizer.add_param_group(late)
            references += [Reference(p, **SETTINGS | {"lr": 0.05, "hess_init": 2.0}) for p in model[2].parameters()]
        for r in references[:2]:
            r.lr = 0.3 * step / 10 if step < 10 else 0.3
        if step == 10:
            optimizer.param_groups[0]["lr"] = 0.3
        drawn.clear()
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            loss_of(model, step).backward()
        z = spread(drawn[0], shapes) + (
            spread(drawn[1], [p.shape for p in model[2].parameters()]) if step >= 10 else []
        )
        held = [*model[0].parameters(), *model[2].parameters()][: len(references)]
        for p, r, noise in zip(held, references, z, strict=True):
            r.take(p.grad, r.noise(noise))
        optimizer.step()
        if step < 10:
            schedule.step()
        for p, r in zip(held, references, strict=True):
            r.step()
            assert torch.allclose(p.detach(), r.mean, rtol=0, atol=1e-12)


def test_parameters_without_gradients_stay_and_catch_up(drawn):
    """The middle parameter gets a gradient in every second step only, so its correction for the start lags behind."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(n, dtype=torch.float64)) for n in (3, 4, 5)]
    optimizer = IVON(params, **SETTINGS)
    references = [Reference(p, **SETTINGS) for p in params]
    for step in range(8):
        used = params if step % 2 else [params[0], params[2]]
        before = params[1].detach().clone()
        with optimizer.sampled_params(train=True):
            assert not torch.equal(params[1], before), "it is random all the same"
            sum((p - 1).square().sum() for p in used).backward()
        for p, r, z in zip(params, references, spread(drawn[-1], [p.shape for p in params]), strict=True):
            if any(p is u for u in used):
                r.take(p.grad, r.noise(z))
                r.step()
        optimizer.step()
        for p, r in zip(params, references, strict=True):
            assert torch.allclose(p.detach(), r.mean, rtol=0, atol=1e-12)
    assert [optimizer.state[p]["step"] for p in params] == [8, 4, 8]


def test_the_curvature_stays_positive():
    """However negative ĥ is, h + δ at least halves at worst."""
    p = nn.Parameter(torch.zeros(100))
    optimizer = IVON([p], lr=1e-6, ess=1e4, hess_init=0.1, beta2=0.5, weight_decay=1e-3, seed=0)
    for _ in range(200):
        with optimizer.sampled_params(train=True):
            (-10 * p.square().sum()).backward()
        optimizer.step()
        assert (optimizer.state[p]["hess"] + 1e-3 > 0).all()


def test_the_curvature_of_a_quadratic_is_found():
    """The last steps are averaged: single entries fluctuate with 1 − β₂."""
    steps, last = 1000, 300
    curvatures = torch.tensor([0.5, 1.0, 2.0]).repeat_interleave(400)
    p = nn.Parameter(torch.ones_like(curvatures))
    optimizer = IVON([p], lr=0.1, ess=1000.0, hess_init=3.0, beta2=0.99, weight_decay=1e-3, seed=1)
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(3)
    for step in range(steps):
        shift = 0.02 * torch.randn(curvatures.shape, generator=generator)
        with optimizer.sampled_params(train=True):
            (0.5 * curvatures * p.square() + shift * p).sum().backward()
        optimizer.step()
        if step >= steps - last:
            total += optimizer.state[p]["hess"].view(3, -1).mean(1)
    assert torch.allclose(total / last, torch.tensor([0.5, 1.0, 2.0]), rtol=0.05)
    assert p.abs().mean() < 0.05, "and the mean to the minimum"


@pytest.mark.parametrize("samples", [1, 2])
def test_agreement_with_ivon_opt(monkeypatch, samples):
    """The noise is read off the other package's weights and given to ours."""
    ivon_opt = pytest.importorskip("ivon")
    settings = SETTINGS | {"clip_radius": 0.4}
    theirs, ours = network().double(), network().double()
    reference = ivon_opt.IVON(theirs.parameters(), **settings, mc_samples=samples)
    optimizer = IVON(ours.parameters(), **settings)
    noise = []

    def given(flat, *_):
        flat.zero_()
        start = 0
        for p, e in zip(ours.parameters(), noise, strict=True):
            hess = optimizer.state[p]["hess"]
            precision = settings["ess"] * (hess + settings["weight_decay"])
            flat[start : start + p.numel()] = (e * precision.sqrt()).flatten()
            start += -(-p.numel() // 16) * 16

    monkeypatch.setattr("varprop.optim.draws.fill_normal", given)
    for step in range(40):
        for _ in range(samples):
            means = [p.detach().clone() for p in theirs.parameters()]
            with reference.sampled_params(train=True):
                noise[:] = [p.detach() - m for p, m in zip(theirs.parameters(), means, strict=True)]
                reference.zero_grad()
                loss_of(theirs, step).backward()
            with optimizer.sampled_params(train=True):
                optimizer.zero_grad()
                loss_of(ours, step).backward()
        reference.step()
        optimizer.step()
        for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-7)  # the other package mixes float32 into float64
    ours_hess = torch.cat([optimizer.state[p]["hess"].flatten() for p in ours.parameters()])
    assert torch.allclose(reference.param_groups[0]["hess"], ours_hess, rtol=1e-6, atol=0)
    assert ours_hess.std() > 0
