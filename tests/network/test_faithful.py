"""The captured graph computes what the model computes, for every call; where it cannot, it says so."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import varprop as vp
from tests.models import posterior_of
from varprop.errors import CaptureError, OutputError, PrecisionError, UnsupportedOpError


class Call(nn.Module):
    """A function of a linear layer's output."""

    def __init__(self, function, inputs=4, outputs=4):
        super().__init__()
        self.layer, self.function = nn.Linear(inputs, outputs), function

    def forward(self, x):
        return self.function(self.layer(x))


class Before(Call):
    """A linear layer of a function of the input."""

    def forward(self, x):
        return self.layer(self.function(x))


def network(model, var=0.0, **options):
    torch.manual_seed(0)
    return vp.propagate(model.eval(), posterior_of(model, var), **options)


def agrees(net, model, x):
    given = x.clone()
    found = net(x)
    assert torch.equal(x, given), "the input was changed"
    with torch.no_grad():
        expected = model(x.clone())
    assert found.mean.shape == found.var.shape == expected.shape
    torch.testing.assert_close(found.mean, expected, rtol=1e-5, atol=1e-5)
    assert bool((found.var >= 0).all())


def sampled_var(model, posterior, x, samples=4000):
    torch.manual_seed(1)
    draws = torch.stack(list(vp.MonteCarlo(model, posterior, samples).draws(x)))
    return draws.var(0)


# --- inputs written to, control flow on sizes ------------------------------------------------------------


def test_a_first_layer_that_writes_to_its_input():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    net, x = network(model, 1e-3), torch.randn(5, 4)
    agrees(net, model, x)
    assert bool((net(x).var > 0).all())


def pad_to_four(x):
    missing = -x.shape[1] % 4
    return F.pad(x, (0, 0, 0, missing)).cumsum(1) if missing else x.cumsum(1)


CONTROL_FLOW = {
    "padding to a multiple": lambda x: pad_to_four(x).sum(1),
    "branch on a remainder": lambda x: (F.pad(x, (0, 0, 0, 1)) if x.shape[1] % 2 else 2 * x).sum(1),
    "a batch of one": lambda x: x.sum(1) if x.shape[0] == 1 else 2 * x.sum(1),
    "a size as a number": lambda x: x.sum(1) + torch.ones(int(x.shape[0]), 1),
    "half of the length": lambda x: x[:, : int(x.shape[1] * 0.5)].sum(1),
    "the last piece": lambda x: x.split(3, dim=1)[-1].sum(1),
}


@pytest.mark.filterwarnings("ignore:.*every new shape:UserWarning")
@pytest.mark.parametrize("function", CONTROL_FLOW.values(), ids=CONTROL_FLOW)
def test_control_flow_on_sizes(function):
    model = Before(function)
    net = network(model)
    for batch, length in ((3, 8), (3, 7), (1, 8), (2, 5), (3, 12), (1, 1)):
        agrees(net, model, torch.randn(batch, length, 4))


# --- functions taken for others ----------------------------------------------------------------------------

CHAINS = {
    "relu, hardtanh": lambda x: F.hardtanh(F.relu(x), 0, 20),
    "relu, clamp": lambda x: F.relu(x).clamp(max=20),
    "gelu, clamp": lambda x: F.gelu(x).clamp(-15, 15),
    "clamp, softplus": lambda x: F.softplus(x.clamp(max=20)),
    "abs, clamp": lambda x: x.abs().clamp(max=50),
    "silu by hand": lambda x: x * torch.sigmoid(x),
    "gelu by hand": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "softplus, beta": lambda x: F.softplus(x, beta=3.0),
    "softplus, threshold": lambda x: F.softplus(x, threshold=1.0),
}


@pytest.mark.parametrize("function", CHAINS.values(), ids=CHAINS)
def test_chains_are_what_they_are_far_out(function):
    model = Call(function)
    with torch.no_grad():
        model.layer.weight.copy_(torch.eye(4))
        model.layer.bias.zero_()
    agrees(network(model), model, torch.linspace(-100, 100, 804).view(-1, 4))


def norm_with_alpha(x):
    centred = torch.sub(x, x.mean(-1, keepdim=True), alpha=0.5)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)


def norm_with_scaled_eps(x):
    return x * torch.rsqrt(torch.add(x.pow(2).mean(-1, keepdim=True), torch.ones(()), alpha=0.25))


@pytest.mark.parametrize("function", [norm_with_alpha, norm_with_scaled_eps])
def test_alpha_inside_a_norm(function):
    model = Call(function)
    agrees(network(model), model, 1 + torch.randn(6, 4))


class Residual(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x):
        return x + self.layer(x)


@pytest.mark.parametrize(("inputs", "outputs"), [(4, 1), (1, 4), (4, 4)])
def test_a_residual_that_broadcasts(inputs, outputs):
    model, x = Residual(inputs, outputs), torch.randn(5, inputs)
    agrees(network(model), model, x)
    var, posterior = 1e-3, posterior_of(model, 1e-3)
    random = vp.Moments(x, torch.full_like(x, var))
    found = vp.propagate(model, posterior)(random)
    assert found.var.shape == (5, 4)
    weight, bias, drawn = (
        tensor.detach() + var**0.5 * torch.randn(20_000, *tensor.shape)
        for tensor in (model.layer.weight, model.layer.bias, x)
    )
    sampled = (drawn + drawn @ weight.mT + bias[:, None]).var(0)
    right = torch.allclose(found.var, sampled, rtol=0.1)
    assert right or vp.audit(model, posterior, random).independent, "wrong, and called exact"
    assert right or inputs != outputs


# --- variance that must not vanish -------------------------------------------------------------------------


def rotated(x):
    turned = torch.view_as_complex(x.view(-1, 2, 2)) * torch.polar(torch.ones(2), torch.tensor([0.3, 0.9]))
    return torch.view_as_real(turned).flatten(1)


SPECTRA = {
    "rotary embedding": rotated,
    "real part": lambda x: torch.fft.fft2(x).real,
    "length": lambda x: torch.fft.rfft(x + 2).abs(),
    "conjugate": lambda x: torch.fft.fft(x).conj().imag,
    "cast to complex": lambda x: (x.to(torch.complex64) * (1 + 2j)).imag,
    "filter": lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.tensor([1 + 1j, 0.5, 0.2]), n=4),
}


@pytest.mark.parametrize("function", SPECTRA.values(), ids=SPECTRA)
def test_complex_numbers(function):
    model, x = Call(function), torch.randn(2, 4)
    agrees(network(model), model, x)
    posterior = posterior_of(model, 1e-4)
    found, sampled = vp.propagate(model, posterior)(x).var, sampled_var(model, posterior, x, samples=1000)
    # Each part is exact; noise that entries share is lost by the way back, but not its sum.
    torch.testing.assert_close(found.sum(), sampled.sum(), rtol=0.15, atol=0)


def test_complex_functions_without_a_rule_are_refused():
    for function in (torch.exp, torch.sin):
        with pytest.raises(UnsupportedOpError, match=rf"aten.{function.__name__}.default .*test_faithful.py"):
            network(Call(lambda x, function=function: function(torch.fft.fft(x)).real), 1e-3)(torch.randn(3, 4))
    with pytest.raises(OutputError, match="complex"):
        network(Call(torch.fft.fft), 1e-3)(torch.randn(3, 4))


def test_a_network_that_ends_in_softmax():
    model = Call(lambda x: x.softmax(-1))
    net, x = network(model, 1e-2), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="softmax"):
        found = net(x)
    torch.testing.assert_close(found.mean, model.layer(x).detach())
    assert bool((found.var > 0).all())


@pytest.mark.parametrize("function", [lambda x: x.softmax(-1)[:, 1:], lambda x: 2 * x.softmax(0)])
def test_an_output_without_variance_is_said(function):
    with pytest.warns(UserWarning, match=r"no variance reaches the output of Call.* aten.softmax.int at the top level"):
        found = network(Call(function), 1e-2)(torch.randn(3, 4))
    assert bool((found.var == 0).all())


def test_half_precision_is_refused():
    with pytest.raises(PrecisionError, match="float16"):
        network(nn.Linear(4, 2).half(), 1e-3)


MASKS = {
    "sqrt of a square at 0": lambda x: (x.square() * torch.tensor([1.0, 1.0, 0.0, 0.0])).sqrt(),
    "sqrt at 0": lambda x: (x * torch.tensor([1.0, 1.0, 0.0, 0.0])).abs().sqrt(),
    "relu of a mask": lambda x: F.relu(x + torch.tensor([0.0, 0.0, -torch.inf, -torch.inf])),
    "elu of a mask": lambda x: F.elu(x + torch.tensor([0.0, 0.0, -torch.inf, -torch.inf])),
    "gelu of the least number": lambda x: F.gelu(
        x.masked_fill(torch.tensor([False, False, True, True]), torch.finfo(torch.float32).min)
    ),
    "clamp between infinities": lambda x: x.clamp(-torch.inf, torch.inf),
    "clamp between the least and the largest number": lambda x: x.clamp(
        torch.finfo(torch.float32).min, torch.finfo(torch.float32).max
    ),
    "clamp from minus infinity": lambda x: x.clamp(min=-torch.inf) + x.clamp(max=torch.inf),
    "clamp by tensors of infinities": lambda x: x.clamp(torch.tensor([-torch.inf, -0.1] * 2), torch.tensor(torch.inf)),
    "local response norm": lambda x: F.local_response_norm(x[..., None], 2)[..., 0],
    "power pooling": lambda x: F.lp_pool1d(F.relu(x[:, None]), 2.0, 2)[:, 0],
}


@pytest.mark.parametrize("function", MASKS.values(), ids=MASKS)
def test_no_nan_where_the_model_is_finite(function):
    model, x = Call(function), torch.randn(6, 4)
    found = network(model, 1e-4)(x)
    assert bool(found.mean.isfinite().all())
    assert bool(found.var.isfinite().all())
    agrees(network(model), model, x)


@pytest.mark.parametrize("rules", [vp.CVP, vp.STREAMLINING], ids=lambda rules: rules.name)
def test_random_bounds(rules):
    def bounded(x):
        below, above = x[:, :1] - 0.2, x[:, 1:2].abs() + 0.1
        return torch.clamp(x, below, above) + torch.clamp(x, max=above) + torch.zeros(3, 4).clamp_min(below)

    model, x = Call(bounded), torch.randn(3, 4)
    agrees(network(model, rules=rules), model, x)
    assert bool((network(model, 1e-3, rules=rules)(x).var > 0).all())


class Standardised(nn.Linear):
    """Its weight has mean 0 and variance 1 in each row, by a batch norm of one example."""

    def forward(self, x):
        weight = F.batch_norm(self.weight[None], None, None, training=True)
        return F.linear(x, weight[0], self.bias)


class Cosine(nn.Linear):
    """Cosines between what comes and what is learnt."""

    def forward(self, x):
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1), self.bias)


class StandardisedByHand(nn.Linear):
    def forward(self, x):
        std, mean = torch.std_mean(self.weight, dim=1, keepdim=True)
        return F.linear(x, (self.weight - mean) / (std + 1e-5), self.bias)


PARAMETRISED = {
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(64, 3)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(64, 3)),
    "cosine head": lambda: Cosine(64, 3),
    "standardised as a batch of one": lambda: Standardised(64, 3),
    "standardised by hand": lambda: StandardisedByHand(64, 3),
}


@pytest.mark.second
@pytest.mark.parametrize("make", PARAMETRISED.values(), ids=PARAMETRISED)
def test_weights_that_are_functions_of_others(make):
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(4, 64)
    agrees(network(model), model, x)
    posterior = posterior_of(model, 1e-6)
    found, sampled = vp.propagate(model, posterior)(x).var, sampled_var(model, posterior, x, samples=400)
    assert (found / sampled).log().abs().max() < 0.4


# --- entries copied and summed -----------------------------------------------------------------------------


COPIES = {
    "einsum over a size of one": lambda x: torch.einsum("bi,ji->bj", x[:, :1], torch.ones(2, 4)),
    "expand, sum": lambda x: x[:, :1].expand(-1, 4).sum(-1, keepdim=True),
    "cat, sum": lambda x: torch.cat([x, x], -1).sum(-1, keepdim=True),
    "repeat, sum": lambda x: x.repeat(1, 3).sum(-1, keepdim=True),
    "nearest, sum": lambda x: F.interpolate(x[:, None], scale_factor=2.0)[:, 0].sum(-1, keepdim=True),
    "reflect, sum": lambda x: F.pad(x[:, None], (2, 2), mode="reflect")[:, 0].sum(-1, keepdim=True),
}


@pytest.mark.parametrize("function", COPIES.values(), ids=COPIES)
def test_copies_that_are_summed_are_right_or_marked(function):
    model, x = Call(function), torch.randn(2, 4)
    posterior = posterior_of(model.eval(), 1e-3)
    predicted = vp.propagate(model, posterior)(x).var
    sampled = sampled_var(model, posterior, x)
    right = torch.allclose(predicted, sampled, rtol=0.15)
    assert right or vp.audit(model, posterior, x).independent, "wrong, and called exact"


class Padded(nn.Module):
    """Tokens and which of them are padding, as ``nn.TransformerEncoder`` takes them."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, tokens, padding):
        return self.encoder(tokens, src_key_padding_mask=padding)


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
@pytest.mark.parametrize("fast", [True, False])
def test_padded_tokens(fast):
    """torch's fast path leaves padded tokens out and returns zeros for them; at the others both paths agree."""
    torch.manual_seed(0)
    model = Padded().eval()
    tokens, padding = torch.randn(3, 5, 8), torch.tensor([[0] * 5, [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]).bool()
    net = vp.propagate(model, posterior_of(model, 1e-4), vp.STREAMLINING)  # which keeps the plain mean
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(fast)
        with torch.no_grad():
            expected = model(tokens, padding)
            mean, var = net(tokens, padding)
            alone = net(tokens[1:2, :3], padding[1:2, :3]).var
        assert torch.backends.mha.get_fastpath_enabled() is fast
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    assert bool((expected[padding] == 0).all()) is fast
    torch.testing.assert_close(mean[~padding], expected[~padding], rtol=1e-4, atol=1e-5)
    assert bool((var[~padding] > 0).all())
    torch.testing.assert_close(alone, var[1:2, :3], rtol=1e-4, atol=1e-9)  # padding changes nothing beside it


def test_a_state_that_changes_is_named():
    class Counter(nn.Module):
        calls = 0

        def forward(self, x):
            Counter.calls += 1
            return x * Counter.calls

    with pytest.raises(CaptureError, match=r"not the model: module '1' differs for inputs of shape \[3, 4\]"):
        network(nn.Sequential(nn.Linear(4, 4), Counter(), nn.Linear(4, 2)))(torch.randn(3, 4))


def test_a_number_read_from_an_input_has_no_least_value():
    class Bounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, lengths):
            torch._check(lengths.max().item() <= 100)
            return self.layer(x) * lengths[:, None]

    model = Bounded().eval()
    x, lengths = torch.randn(2, 3), torch.tensor([3, 1])
    found = vp.propagate(model, posterior_of(model))(x, lengths)
    torch.testing.assert_close(found.mean, model(x, lengths))


def test_statistics_of_a_batch_are_refused_even_so():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval()
    with pytest.raises(vp.errors.TrainingModeError, match="batch statistics"):
        vp.propagate(model, posterior_of(model))(torch.randn(5, 4))
