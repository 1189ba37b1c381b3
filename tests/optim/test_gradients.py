"""Whatever is done to .grad before step() acts on what the update uses: means and curvatures alike."""

import pytest
import torch
from torch import nn

from tests.optim.reference import Reference
from tests.optim.tasks import curvature, ivon, loss_of, network, same, train, weights


def run(change, samples=1, steps=4, scale=1.0, inside=False, **settings):
    model = network()
    optimizer = ivon(model.parameters(), **settings)
    for step in range(steps):
        for _ in range(samples):
            with optimizer.sampled_params(train=True):
                (scale * loss_of(model, step)).backward()
                if inside:
                    change(model)
        if not inside:
            change(model)
        optimizer.step()
    return weights(model), curvature(optimizer)


def close(a, b):
    return all(torch.allclose(x, y, rtol=1e-5, atol=1e-7) for x, y in zip(a[0], b[0], strict=True)) and torch.allclose(
        a[1], b[1], rtol=1e-5
    )


def nothing(model):
    pass


def divide(by):
    def change(model):
        for p in model.parameters():
            p.grad.div_(by)

    return change


@pytest.mark.parametrize("samples", [1, 3])
def test_unscaling_after_the_draws(samples):
    plain = run(nothing, samples)
    assert close(run(divide(1024.0), samples, scale=1024.0), plain)
    assert not close(run(nothing, samples, scale=1024.0), plain)


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_clipping_outside_the_block_is_clipping_inside(clip):
    def change(model):
        clip(list(model.parameters()), 0.05)

    outside, inside = run(change), run(change, inside=True)
    assert same(outside[0], inside[0])
    assert torch.equal(outside[1], inside[1])
    assert not close(outside, run(nothing))


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_clipping_the_average_of_several_draws(clip):
    """Gradients alike in all draws (a linear loss) make the average's clipping the same as each one's."""
    results = []
    for inside in (True, False):
        p = nn.Parameter(torch.zeros(50))
        slope = torch.linspace(-2, 2, 50)
        optimizer = ivon([p])
        for _ in range(3):
            for _ in range(4):
                with optimizer.sampled_params(train=True):
                    (slope * p).sum().backward()
                    if inside:
                        clip([p], 0.7)
            if not inside:
                clip([p], 0.7)
            optimizer.step()
        results.append(([p.detach()], curvature(optimizer)))
    assert close(*results)


def test_grad_is_the_average_over_draws():
    model = network()
    optimizer = ivon(model.parameters())
    seen = []
    for _ in range(3):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            loss_of(model, 0).backward()
            seen.append(model[0].weight.grad.clone())
        assert torch.allclose(model[0].weight.grad, torch.stack(seen).mean(0), atol=1e-7)


def test_a_gradient_in_some_draws_only():
    """Where a draw gives none it counts as zero; a parameter that no draw reaches stays as it is."""
    p, q, r = (nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(3))
    settings = {"lr": 0.1, "ess": 50.0, "beta2": 0.9, "weight_decay": 0.01}
    optimizer = ivon([p, q, r], **settings)
    references = [Reference(x, **settings) for x in (p, q)]
    for _ in range(4):
        for scales in ((3.0, 0.0), (0.0, 2.0)):
            with optimizer.sampled_params(train=True):
                for x, reference, scale in zip((p, q), references, scales, strict=True):
                    reference.take(torch.full((5,), scale), x.detach() - reference.mean)
                (scales[0] * p.sum() if scales[0] else scales[1] * q.sum()).backward()
        assert torch.allclose(p.grad, torch.full_like(p, 1.5))
        assert torch.allclose(q.grad, torch.full_like(p, 1.0))
        assert r.grad is None
        optimizer.step()
        for x, reference in zip((p, q), references, strict=True):
            reference.step()
            assert torch.allclose(x.detach(), reference.mean, rtol=0, atol=1e-12)
            assert torch.allclose(optimizer.state[x]["hess"], reference.h, rtol=1e-10)
    assert [optimizer.state[x]["step"] for x in (p, q, r)] == [4, 4, 0]
    assert (r == 1).all()


def test_gradients_that_cancel_keep_what_they_say_about_the_curvature():
    p = nn.Parameter(torch.zeros(40, dtype=torch.float64))
    settings = {"lr": 0.1, "ess": 50.0, "beta2": 0.9, "weight_decay": 0.01}
    optimizer, reference = ivon([p], **settings), Reference(p, **settings)
    for _ in range(3):
        for sign in (1.0, -1.0):
            with optimizer.sampled_params(train=True):
                reference.take(torch.full_like(p, sign), p.detach() - reference.mean)
                (sign * p).sum().backward()
        p.grad.div_(8.0)  # as a loss scaler does: it acts on the product too
        optimizer.step()
        reference.draws = [(g, h / 8) for g, h in reference.draws]
        reference.step()
    assert torch.allclose(p.detach(), reference.mean, rtol=0, atol=1e-12)
    assert torch.allclose(optimizer.state[p]["hess"], reference.h, rtol=1e-10)


def test_accumulation_in_one_block():
    """Micro-batches under one draw add up as ever."""
    model, other = network(), network()
    optimizer, other_optimizer = ivon(model.parameters()), ivon(other.parameters())
    for step in range(5):
        with optimizer.sampled_params(train=True):
            (loss_of(model, step) / 2).backward()
            (loss_of(model, step + 10) / 2).backward()
        optimizer.step()
        with other_optimizer.sampled_params(train=True):
            (loss_of(other, step) / 2 + loss_of(other, step + 10) / 2).backward()
        other_optimizer.step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights(model), weights(other), strict=True))


def scaled(model, optimizer, scaler, step, standing, clip=False, factor=1.0):
    if standing:
        optimizer.train()
        scaler.scale(factor * loss_of(model, step)).backward()
    else:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            scaler.scale(factor * loss_of(model, step)).backward()
    if clip:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    if standing:
        model.zero_grad()


@pytest.mark.parametrize("standing", [True, False])
@pytest.mark.parametrize("clip", [True, False])
def test_grad_scaler(standing, clip):
    def clipped(model):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    model = network()
    optimizer = ivon(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(5):
        scaled(model, optimizer, scaler, step, standing, clip)
    assert close((weights(model), curvature(optimizer)), run(clipped if clip else nothing, steps=5))


@pytest.mark.parametrize("standing", [True, False])
def test_a_step_the_scaler_skips(standing):
    """Gradients overflow in step 1: it has no effect, and nothing of it is left in step 2."""
    model = network()
    optimizer = ivon(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaled(model, optimizer, scaler, 0, standing)
    before, hess = weights(model), curvature(optimizer).clone()
    scaled(model, optimizer, scaler, 1, standing, factor=float("inf"))
    assert scaler.get_scale() == 128.0
    optimizer.eval()
    assert same(weights(model), before)
    scaled(model, optimizer, scaler, 2, standing)
    assert all(w.isfinite().all() for w in weights(model))
    assert curvature(optimizer).isfinite().all()
    assert not torch.equal(curvature(optimizer), hess)
    assert [optimizer.state[p]["step"] for p in model.parameters()] == [2] * 4


def test_schedulers_and_hooks():
    model = network()
    optimizer = ivon(model.parameters(), lr=0.4)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 5),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
        ],
        [5],
    )
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    for step in range(10):
        train(model, optimizer, [step])
        schedule.step()
    assert seen[0] == pytest.approx(0.04)
    assert max(seen) == pytest.approx(0.4)
    assert seen[-1] < 0.05


def test_autocast():
    model = network()
    optimizer = ivon(model.parameters())
    for step in range(3):
        with optimizer.sampled_params(train=True), torch.autocast("cpu", torch.bfloat16):
            loss_of(model, step).backward()
        optimizer.step()
    assert all(w.dtype == torch.float32 for w in weights(model))
