"""When the weights are a sample and when they are the means; orders that are refused."""

import copy

import pytest
import torch
from torch import nn

from tests.optim.tasks import curvature, ivon, loss_of, network, same, train, weights
from varprop.errors import SamplingError, SettingError
from varprop.optim import IVON, arena, streams
from varprop.optim.streams import fill_normal


def setup(**settings):
    model = network()
    return model, ivon(model.parameters(), **settings)


def refused(*phrases):
    return pytest.raises(SamplingError, match=".*".join(phrases))


def interrupted(model, optimizer, means, kind):
    assert optimizer.perturbed
    assert not any(torch.equal(a, b) for a, b in zip(weights(model), means, strict=True))
    loss_of(model, 0).backward()
    raise kind


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("trains", [True, False])
def test_means_come_back_after_any_exception(kind, trains):
    model, optimizer = setup()
    train(model, optimizer, range(2))
    before, twin = weights(model), copy.deepcopy((model, optimizer))
    with pytest.raises(kind), optimizer.sampled_params(train=trains):
        interrupted(model, optimizer, before, kind)
    assert not optimizer.perturbed
    assert same(weights(model), before)
    with refused("step\\(\\) without a draw") if trains is False else pytest.raises(SamplingError):
        model[0].weight.grad = torch.ones_like(model[0].weight)
        optimizer.step()
    model.zero_grad()
    train(model, optimizer, range(3))
    other, other_optimizer = twin
    if trains:  # the failed draw counts as a draw, so its number is skipped
        other_optimizer.param_groups[0]["draws"] += 1
    train(other, other_optimizer, range(3))
    assert same(weights(model), weights(other))
    assert torch.equal(curvature(optimizer), curvature(other_optimizer))


@pytest.mark.parametrize(
    ("where", "name", "calls"),
    [
        (streams, "fill_float32", 0),
        (arena.Arena, "_keep_means", 0),
        (arena.Arena, "_keep_means", 1),
        (torch, "_foreach_addcmul_", 0),
        (torch, "_foreach_addcmul_", 2),
    ],
)
def test_an_interrupt_while_the_weights_are_perturbed(monkeypatch, where, name, calls):
    """Weights that were not reached yet keep their values, also if there are no means of them on record."""
    monkeypatch.setattr(arena, "PIECE", 8)
    model, optimizer = setup()
    before, made, function = weights(model), [], getattr(where, name)

    def interrupt(*args, **kwargs):
        if len(made) == calls:
            raise KeyboardInterrupt
        made.append(args)
        function(*args, **kwargs)

    monkeypatch.setattr(where, name, interrupt)
    with pytest.raises(KeyboardInterrupt), optimizer.sampled_params(train=True):
        pass
    assert same(weights(model), before)
    made.clear()
    with pytest.raises(KeyboardInterrupt):
        optimizer.train()
    assert not optimizer.perturbed
    assert same(weights(model), before)


def test_a_failed_draw_leaves_the_earlier_ones():
    (model, optimizer), (other, other_optimizer) = setup(), setup()
    for _ in range(2):
        with optimizer.sampled_params(train=True):
            loss_of(model, 0).backward()
        with other_optimizer.sampled_params(train=True):
            loss_of(other, 0).backward()
        with pytest.raises(ValueError), optimizer.sampled_params(train=True):
            interrupted(model, optimizer, weights(network()), ValueError)
        other_optimizer.param_groups[0]["draws"] += 1
    optimizer.step()
    other_optimizer.step()
    assert all(torch.allclose(a, b) for a, b in zip(weights(model), weights(other), strict=True))
    assert torch.allclose(curvature(optimizer), curvature(other_optimizer))


def test_samples_have_the_posterior_s_spread():
    model = nn.Linear(300, 100)
    optimizer = ivon(model.parameters(), hess_init=0.5)
    mean = model.weight.detach().clone()
    with optimizer.sampled_params():
        z = (model.weight - mean) * (50 * 0.51) ** 0.5
    assert abs(z.mean()) < 0.03
    assert abs(z.std() - 1) < 0.02
    with optimizer.sampled_params():
        again = (model.weight - mean) * (50 * 0.51) ** 0.5
    assert abs((z * again).mean()) < 0.03, "draws are independent"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_looking_at_samples_does_not_change_training(mode):
    (model, optimizer), (other, other_optimizer) = setup(), setup()

    def look(step):
        with mode(), optimizer.sampled_params():
            loss_of(model, step)

    for step in range(3):
        look(step)
        with optimizer.sampled_params(train=True):
            loss_of(model, step).backward()
        look(step)
        look(step)
        optimizer.step()
    train(other, other_optimizer, range(3))
    assert same(weights(model), weights(other))


def test_blocks_do_not_nest():
    model, optimizer = setup()
    before = weights(model)
    for outer in (True, False):
        for inner in (True, False):
            blocks = (optimizer.sampled_params(train=trains) for trains in (outer, inner))
            with refused("a sample already", "do not nest"), next(blocks), next(blocks):
                pass
            assert same(weights(model), before)
    optimizer.train()
    with refused("between train\\(\\) and step\\(\\)"), optimizer.sampled_params():
        pass
    optimizer.eval()
    with optimizer.sampled_params():
        pass
    with refused("ends with step"), optimizer.sampled_params(train=True):
        pass
    assert same(weights(model), before)


def test_the_plain_loop_equals_blocks():
    (model, optimizer), (other, other_optimizer) = setup(), setup()
    train(other, other_optimizer, range(5))
    for step in range(5):
        optimizer.train()
        assert optimizer.perturbed
        loss_of(model, step).backward()
        optimizer.step()
        assert not optimizer.perturbed
        model.zero_grad()  # a trainer's way: the optimizer is not told
    assert same(weights(model), weights(other))
    assert torch.equal(curvature(optimizer), curvature(other_optimizer))


def test_evaluation_amid_a_step():
    """Accumulation with an evaluation between its halves: the same sample comes back."""
    model, optimizer = setup()
    means = weights(model)
    optimizer.eval()
    optimizer.train()
    sample = weights(model)
    optimizer.train()
    assert same(weights(model), sample)
    loss_of(model, 0).backward()
    optimizer.eval()
    optimizer.eval()
    assert same(weights(model), means)
    assert not optimizer.perturbed
    optimizer.train()
    assert same(weights(model), sample)
    loss_of(model, 1).backward()
    optimizer.step()
    assert not same(weights(model), means)


def test_a_step_without_a_draw_is_refused():
    model, optimizer = setup()
    optimizer.step()  # no gradients: nothing to do, as in every optimizer
    loss_of(model, 0).backward()
    with refused("step\\(\\) without a draw", "sampled_params", "optimizer.train\\(\\)", "closure"):
        optimizer.step()
    with refused("taken at the means", "before the first forward pass of every step"):
        optimizer.train()
    with refused("taken at the means"):
        optimizer.step(lambda: loss_of(model, 0).backward())
    optimizer.zero_grad()
    optimizer.train()
    loss_of(model, 0).backward()
    optimizer.step()
    optimizer.train()  # the gradients are still there, but they are used up
    optimizer.step()
    model.zero_grad(set_to_none=False)
    optimizer.train()


def test_orders_that_are_refused():
    model, optimizer = setup()
    with optimizer.sampled_params(train=True):
        loss_of(model, 0).backward()
        with refused("belongs after the sampled_params\\(\\) block"):
            optimizer.step()
        with refused("leave the sampled_params\\(\\) block"):
            optimizer.eval()
        optimizer.train()  # a trainer may call it inside
    with refused("ends with step\\(\\), or with zero_grad\\(\\)"):
        optimizer.train()
    with refused("draws by itself"):
        optimizer.step(lambda: None)
    optimizer.zero_grad()
    optimizer.train()
    with refused("before the first draw"):
        optimizer.attach(None)
    with refused("mc_samples is 2"):
        setup(mc_samples=2)[1].train()


def test_zero_grad_discards_draws():
    (model, optimizer), (other, other_optimizer) = setup(), setup()
    with optimizer.sampled_params(train=True):
        loss_of(model, 7).backward()
    optimizer.zero_grad()
    other_optimizer.param_groups[0]["draws"] += 1
    train(model, optimizer, range(2))
    train(other, other_optimizer, range(2))
    assert same(weights(model), weights(other))


@pytest.mark.parametrize("samples", [1, 3])
def test_closures(samples):
    (model, optimizer), (other, other_optimizer) = setup(mc_samples=samples), setup()
    for step in range(4):
        calls = []

        def closure(step=step, calls=calls):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            calls.append(loss.item())
            return loss

        result = optimizer.step(closure)
        assert len(calls) == samples
        assert result.item() == pytest.approx(sum(calls) / samples)
        for _ in range(samples):
            with other_optimizer.sampled_params(train=True):
                loss_of(other, step).backward()
        other_optimizer.step()
    assert same(weights(model), weights(other))
    before = weights(model)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert same(weights(model), before)


def test_a_closure_on_a_standing_draw():
    (model, optimizer), (other, other_optimizer) = setup(), setup()
    train(other, other_optimizer, range(3))
    for step in range(3):
        optimizer.train()
        sample = weights(model)

        def closure(step=step, sample=sample):
            assert same(weights(model), sample)
            optimizer.zero_grad()
            loss_of(model, step).backward()

        optimizer.step(closure)
    assert same(weights(model), weights(other))
    before = weights(model)
    optimizer.train()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert same(weights(model), before)


def test_weights_changed_by_hand_between_steps_count():
    for dtype in (torch.float32, torch.bfloat16):
        for change in (lambda p: p.data.fill_(3.0), lambda p: p.detach().fill_(3.0)):
            model, optimizer = setup()
            model.to(dtype)
            p = model[2].bias
            optimizer.train()
            p.grad = torch.zeros_like(p)
            optimizer.step()
            change(p)
            with optimizer.sampled_params():
                pass
            assert (p == 3).all()
    with optimizer.sampled_params(train=True):
        p.grad = torch.zeros_like(p)
    p.detach().fill_(5.0)
    optimizer.step()
    assert torch.allclose(p.float(), torch.tensor(5.0), atol=0.05)


def test_frozen_parameters_are_skipped_and_may_thaw():
    model, optimizer = setup()
    model[0].requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    with optimizer.sampled_params(train=True):
        assert torch.equal(model[0].weight, frozen)
        loss_of(model, 0).backward()
    optimizer.step()
    assert torch.equal(model[0].weight, frozen)
    assert "hess" not in optimizer.state.get(model[0].weight, {})
    hess = optimizer.state[model[2].weight]["hess"].clone()
    model[0].requires_grad_(True)
    with optimizer.sampled_params(train=True):
        assert not torch.equal(model[0].weight, frozen)
        assert torch.equal(optimizer.state[model[2].weight]["hess"], hess), "regrouping keeps what was learnt"
        loss_of(model, 1).backward()
    optimizer.step()
    assert optimizer.state[model[0].weight]["step"] == 1
    assert optimizer.state[model[2].weight]["step"] == 2


def test_the_global_generator_is_left_alone():
    model, optimizer = setup()
    state = torch.get_rng_state()
    train(model, optimizer, range(2))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(3)
    first, second = (ivon(network().parameters(), seed=None).param_groups[0]["seed"] for _ in range(2))
    assert first == second, "network() seeds the generator, and the seed comes from there"


def test_memory_formats_and_empty_parameters():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 2)).to(memory_format=torch.channels_last)
    model.empty = nn.Parameter(torch.empty(0))
    model.scalar = nn.Parameter(torch.tensor(2.0))
    optimizer = ivon(model.parameters())
    before = weights(model)
    for _ in range(2):
        with optimizer.sampled_params(train=True):
            (model(torch.randn(2, 3, 4, 4)).square().mean() + model.scalar.square() + model.empty.sum()).backward()
        optimizer.step()
    assert optimizer.state[model[0].weight]["hess"].stride() == model[0].weight.stride()
    assert not torch.equal(before[0], model[0].weight)
    assert model.scalar != 2


def test_noise_of_any_size_is_filled_to_its_end():
    for size in (1, 2, 5, 1001):
        vector = torch.full((size,), torch.nan)
        fill_normal(vector, 0, (0,), 0)
        assert vector.isfinite().all()
        assert len(vector.unique()) == size


def test_noise_is_normal_and_uncorrelated():
    first, second = (torch.empty(1 << 20) for _ in range(2))
    for draw, vector in enumerate((first, second)):
        fill_normal(vector, 7, (0, 1), draw)
    z = torch.cat([first, second]).double()
    error = len(z) ** -0.5
    assert abs(z.mean()) < 5 * error
    assert abs(z.var() - 1) < 5 * 2**0.5 * error
    assert abs((z**3).mean()) < 5 * 15**0.5 * error
    assert abs((z**4).mean() - 3) < 5 * 96**0.5 * error
    half = len(first) // 2
    pairs = [
        (first, second),
        (first[:half], first[half:]),
        (first[:-1], first[1:]),
        (first[:half] ** 2, first[half:] ** 2),
    ]
    for a, b in pairs:
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 5 * len(a) ** -0.5
    inside = (z[:, None] < torch.linspace(-4, 4, 33).double()).double().mean(0)
    expected = torch.special.ndtr(torch.linspace(-4, 4, 33).double())
    assert ((inside - expected).abs() < 5 * (expected * (1 - expected)).sqrt() * error).all()


def test_streams_have_names():
    def drawn(seed, lane, draw, size=100):
        vector = torch.empty(size)
        fill_normal(vector, seed, lane, draw)
        return vector

    assert torch.equal(drawn(0, (0, 0), 3), drawn(0, (0, 0), 3))
    others = [
        drawn(1, (0, 0), 3),
        drawn(0, (1, 0), 3),
        drawn(0, (0, 1), 3),
        drawn(0, (0, 0), 4),
        drawn(2**32, (0, 0), 3),
    ]
    assert all(not torch.equal(drawn(0, (0, 0), 3), other) for other in others)


def stacked(seeds, starts, steps=3):
    """Weights and curvatures of networks along the rows of one parameter, after some steps; and the optimizer."""
    rows = nn.Parameter(torch.stack([starts[seed] for seed in seeds]))
    optimizer = IVON([{"params": [rows], "seed": tuple(seeds)}], lr=0.1, ess=10, hess_init=0.5, beta2=0.9)
    for _ in range(steps):
        with optimizer.sampled_params(train=True):
            rows.pow(4).sum().backward()
        optimizer.step()
    return rows, optimizer


def test_rows_with_seeds_of_their_own_do_not_depend_on_their_neighbours():
    torch.manual_seed(0)
    starts = torch.randn(5, 37)
    together, optimizer = stacked((3, 1, 4), starts)
    for row, seed in enumerate((3, 1, 4)):
        alone, other = stacked((seed,), starts)
        torch.testing.assert_close(together[row], alone[0], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(
            optimizer.state[together]["hess"][row], other.state[alone]["hess"][0], rtol=1e-6, atol=1e-7
        )
    rows, optimizer = stacked((1, 1), starts)
    assert torch.equal(rows[0], rows[1])


def test_rows_with_seeds_of_their_own_go_on_after_a_resume():
    starts = torch.ones(2, 20)
    straight, _ = stacked((0, 1), starts, steps=4)
    rows, optimizer = stacked((0, 1), starts, steps=2)
    resumed = nn.Parameter(rows.detach().clone())
    second = IVON([{"params": [resumed], "seed": (0, 1)}], lr=0.1, ess=10, hess_init=0.5, beta2=0.9)
    second.load_state_dict(optimizer.state_dict())
    for _ in range(2):
        with second.sampled_params(train=True):
            resumed.pow(4).sum().backward()
        second.step()
    assert torch.equal(resumed, straight)


@pytest.mark.parametrize("shapes", [[(3, 4)], [(2, 4), (2, 4)]])
def test_seeds_are_for_the_rows_of_one_parameter(shapes):
    params = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    with pytest.raises(SettingError, match="2 seeds are for one parameter that stacks as many networks"):
        IVON([{"params": params, "seed": (0, 1)}], lr=0.1, ess=10)
