"""from_swag: the collector, and averages of w and w²."""

import copy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tests.optim.tasks import through_a_file
from tests.posterior.exact import two_layers
from varprop.errors import PosteriorError, PosteriorMismatchError
from varprop.posterior import SWAG, Posterior

NAMES = ("0.weight", "0.bias", "1.weight", "1.bias")


def move(model, seed, scale=0.1):
    """What an epoch of training does to the weights, as far as SWAG is concerned."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(scale * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype))


def collected(model, updates=6, scale=0.1):
    """A collector, and everything it has seen."""
    swag, seen = SWAG(), []
    for seed in range(updates):
        move(model, seed, scale)
        swag.update_parameters(model)
        seen.append({name: p.detach().double().clone() for name, p in model.named_parameters()})
    return swag, {name: torch.stack([weights[name] for weights in seen]) for name in seen[0]}


def failure(call, kind=PosteriorError):
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)


def test_mean_and_population_variance_of_what_was_collected():
    model = two_layers()
    swag, seen = collected(model)
    posterior = Posterior.from_swag(model, swag)
    assert posterior.names == NAMES
    assert swag.n_averaged == 6
    for name, values in seen.items():
        torch.testing.assert_close(posterior[name].mean, values.mean(0), rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(posterior[name].var, values.var(0, correction=0), rtol=1e-10, atol=0)


@pytest.mark.parametrize("scale", [1e-2, 1e-5])
def test_float32_weights_that_move_little_keep_their_variance(scale):
    """Spread 1e-5 around 1: E[w²] − E[w]² in float32 has no correct digit."""
    model = nn.Linear(40, 40)
    nn.init.ones_(model.weight)
    swag, seen = collected(model, updates=20, scale=scale)
    var = Posterior.from_swag(model, swag)["weight"].var
    exact = seen["weight"].var(0, correction=0)  # in float64, of the same float32 weights
    assert var.dtype == torch.float32
    torch.testing.assert_close(var.double(), exact, rtol=1e-5, atol=0)
    naive = seen["weight"].float().square().mean(0) - seen["weight"].float().mean(0).square()
    if scale == 1e-5:
        assert ((naive - exact).abs() > exact).float().mean() > 0.5, "the test should be a hard one"


def test_bfloat16_weights_are_summed_in_float32():
    model = nn.Linear(8, 8, dtype=torch.bfloat16)
    swag, seen = collected(model, updates=30, scale=0.05)
    var = Posterior.from_swag(model, swag)["weight"].var
    assert var.dtype == torch.bfloat16
    torch.testing.assert_close(var.double(), seen["weight"].var(0, correction=0), rtol=2**-8, atol=0)
    assert swag.state_dict()["squares.weight"].dtype == torch.float32


def test_frozen_parameters_are_deterministic():
    model = two_layers()
    model[0].requires_grad_(False)
    swag, _ = collected(model)
    assert Posterior.from_swag(model, swag).names == NAMES[2:]


def test_wrapped_models_have_the_names_of_the_model_inside():
    model = two_layers()
    swag = SWAG()
    for seed, wrapper in enumerate((nn.DataParallel(model), torch.compile(model), model)):
        move(model, seed)
        swag.update_parameters(wrapper)
    assert Posterior.from_swag(model, swag).names == NAMES
    averaged = AveragedModel(model)
    posterior = Posterior.from_swag(averaged, swag)
    assert posterior.names == tuple(f"module.{name}" for name in NAMES)
    assert len(posterior.resolve(averaged)) == 4


def test_resumes_bit_for_bit():
    model = two_layers().float()
    swag, _ = collected(model, updates=3)
    resumed = SWAG(device="cpu")
    resumed.load_state_dict(through_a_file(swag.state_dict()))
    for seed in (10, 11):
        move(model, seed)
        swag.update_parameters(model)
        resumed.update_parameters(model)
    one, other = Posterior.from_swag(model, swag), Posterior.from_swag(model, resumed)
    assert all(torch.equal(a, b) for name in NAMES for a, b in zip(one[name], other[name], strict=True))


def test_a_state_dict_is_a_snapshot_that_safetensors_can_write(tmp_path):
    model = two_layers()
    swag, _ = collected(model, updates=2)
    state = swag.state_dict()
    before = copy.deepcopy(state)
    move(model, 9)
    swag.update_parameters(model)
    assert all(torch.equal(state[key], before[key]) for key in before)
    save_file(state, tmp_path / "swag.safetensors")


def test_damaged_state_dicts():
    swag, _ = collected(two_layers(), updates=2)
    state = swag.state_dict()
    for change in ("n_averaged", "shift.0.bias"):
        damaged = {key: value for key, value in state.items() if key != change}
        assert "no whole state dict of SWAG" in failure(lambda state=damaged: SWAG().load_state_dict(state))
    text = failure(lambda: SWAG().load_state_dict({**state, "momentum": torch.ones(1)}))
    assert "missing or unknown: 'momentum'" in text


def test_too_few_updates_and_updates_without_training():
    model = two_layers()
    swag = SWAG()
    assert "at least 2 updates of SWAG, and there were 0" in failure(lambda: Posterior.from_swag(model, swag))
    swag.update_parameters(model)
    assert "there were 1" in failure(lambda: Posterior.from_swag(model, swag))
    swag.update_parameters(model)
    assert "are all the same" in failure(lambda: Posterior.from_swag(model, swag))
    assert "nothing to collect" in failure(lambda: SWAG().update_parameters(two_layers().requires_grad_(False)))
    assert "the model comes first, not dict" in failure(lambda: swag.update_parameters({}))


def test_weights_that_do_not_fit_are_all_listed_and_leave_the_sums_alone():
    model = two_layers()
    model[1].bias.requires_grad_(False)
    swag, _ = collected(model, updates=2)
    before = swag.state_dict()
    wrong = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2, bias=True)).double()
    with torch.no_grad():
        wrong[0].weight[0] = torch.nan
    text = failure(lambda: swag.update_parameters(wrong), PosteriorMismatchError)
    for phrase in (
        "cannot be added to the 2 collected before",
        "'1.bias' trains now and did not before",
        "'0.weight' has shape (4, 3), in the model (5, 3)",
        "'0.weight' is NaN or infinite in 3 of 15 entries",
    ):
        assert phrase in text
    text = failure(lambda: swag.update_parameters(nn.Linear(3, 4)), PosteriorMismatchError)
    assert "'0.weight' is not a parameter of the model" in text
    assert swag.n_averaged == 2
    assert all(torch.equal(before[key], value) for key, value in swag.state_dict().items())


def test_another_model():
    swag, _ = collected(two_layers(), updates=2)
    text = failure(lambda: Posterior.from_swag(nn.Linear(3, 4), swag), PosteriorMismatchError)
    assert "these weights do not fit Linear" in text
    assert "'0.weight' is not a parameter of the model (did you mean 'weight'?)" in text


# --- averages of w and of w² ---------------------------------------------------------------------------


def averages(seen, dtype):
    return (
        {name: values.to(dtype).mean(0) for name, values in seen.items()},
        {name: values.to(dtype).square().mean(0) for name, values in seen.items()},
    )


def test_averages_as_mappings_modules_and_files(tmp_path):
    model = two_layers()
    _, seen = collected(model)
    mean, square = averages(seen, torch.float64)
    modules = [AveragedModel(model), AveragedModel(model)]
    for module, values in zip(modules, (mean, square), strict=True):
        module.module.load_state_dict(values)
    save_file(mean, tmp_path / "mean.safetensors")
    forms = [(mean, square), modules, [m.state_dict() for m in modules], (tmp_path / "mean.safetensors", square)]
    for first, second in forms:
        posterior = Posterior.from_swag(model, first, second)
        for name, values in seen.items():
            torch.testing.assert_close(posterior[name].mean, values.mean(0))
            torch.testing.assert_close(posterior[name].var, values.var(0, correction=0), rtol=1e-9, atol=1e-12)


def test_differences_just_below_zero_are_rounding():
    model = nn.Linear(30, 30)
    _, seen = collected(model, updates=10, scale=1e-6)
    mean, square = averages(seen, torch.float32)
    assert (square["weight"] - mean["weight"].square() < 0).any()
    assert (Posterior.from_swag(model, mean, square)["weight"].var >= 0).all()


def test_really_negative_differences():
    """torch's AveragedModel does not square the first weights, whatever its avg_fn: a trap worth a message."""
    model = two_layers()
    first = AveragedModel(model)
    second = AveragedModel(model, avg_fn=lambda average, w, n: average + (w.square() - average) / (n + 1))
    for seed in range(4):
        move(model, seed)
        first.update_parameters(model)
        second.update_parameters(model)
    text = failure(lambda: Posterior.from_swag(model, first, second))
    assert "negative by more than rounding" in text
    assert "'0.weight': negative in" in text
    assert "An AveragedModel copies the first weights as they are" in text


def test_a_mean_alone_has_no_variance():
    model = two_layers()
    text = failure(lambda: Posterior.from_swag(model, AveragedModel(model)))
    assert "a AveragedModel holds the mean only" in text
    assert "from_swag(model, mean, square)" in text
    swag, _ = collected(model)
    assert "has the variance already" in failure(lambda: Posterior.from_swag(model, swag, {}))


def test_averages_that_do_not_fit_are_all_listed():
    model = two_layers()
    mean, square = averages(collected(model)[1], torch.float64)
    del mean["0.bias"]
    square["1.bias"] = torch.full((2,), torch.inf)
    text = failure(lambda: Posterior.from_swag(model, mean, square), PosteriorMismatchError)
    assert "mean: '0.bias' is missing" in text
    assert "square: '1.bias' is NaN or infinite in 2 of 2 entries" in text


# --- against other implementations, and end to end -----------------------------------------------------


def test_the_variance_is_that_of_laplace_torchs_swag():
    library = pytest.importorskip("laplace.utils.swag")
    model = two_layers()
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(
        torch.randn(12, 3, generator=generator).double(), torch.randn(12, 2, generator=generator).double()
    )
    loader, loss = DataLoader(data, batch_size=4), nn.MSELoss()
    expected = library.fit_diagonal_swag_var(copy.deepcopy(model), loader, loss, n_snapshots_total=15, lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=3e-4)
    swag = SWAG()
    for _ in range(15):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        swag.update_parameters(model)
    posterior = Posterior.from_swag(model, swag)
    # The library subtracts squares: in float64 about 1e-15 of w², here below 1e-8 of the variance.
    torch.testing.assert_close(torch.cat([posterior[n].var.flatten() for n in NAMES]), expected, rtol=1e-8, atol=1e-14)
