"""Written-out functions are recognised, and what is not exact is said."""

import math

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.graph import canonicalize
from varprop.rules.ruleset import op_name

SAMPLES = 50_000
GELU_TANH = math.sqrt(2 / math.pi)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Applied(nn.Module):
    """A linear layer followed by a function."""

    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.function = function

    def forward(self, x):
        return self.function(self.layer(x))


def propagate(model, x):
    torch.manual_seed(0)
    return vp.propagate(model.eval(), posterior_of(model, 1e-2))(x)


def ops_of(model, x):
    return [row.op for row in vp.audit(model.eval(), posterior_of(model), x)]


WRITTEN_OUT = {
    "quick_gelu": (lambda x: x * torch.sigmoid(1.702 * x), "quick_gelu"),
    "tanh_gelu": (
        lambda x: 0.5 * x * (1.0 + torch.tanh(GELU_TANH * (x + 0.044715 * torch.pow(x, 3.0)))),
        "aten.gelu.default",
    ),
    "erf_gelu": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "aten.gelu.default"),
    "silu": (lambda x: x * torch.sigmoid(x), "aten.silu.default"),
    "silu_by_exp": (lambda x: x / (1 + torch.exp(-x)), "aten.silu.default"),
    "mish": (lambda x: x * torch.tanh(nn.functional.softplus(x)), "aten.mish.default"),
    "mish_by_log": (lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), "aten.mish.default"),
    "abs_by_root": (lambda x: torch.sqrt(x * x), "aten.abs.default"),
    "softsign": (nn.functional.softsign, "elementwise"),
    "leaky": (lambda x: torch.relu(x) - torch.relu(-x), "elementwise"),
    "square": (lambda x: x * x, "elementwise"),
    "twice": (lambda x: x + x, "elementwise"),
}


def assert_one_function(model, x, op):
    """After its linear layer the model is this one op, whose moments are those of samples."""
    net = vp.propagate(model.eval(), posterior_of(model, 1e-2))
    before, result = net.trace(x)["layer"], net(x)
    (plan,) = net._plans
    assert [op_name(node.target) for node in plan.captured.ops()] == ["aten.linear.default", op]
    samples = model.function(before.sample(SAMPLES, torch.Generator().manual_seed(0)))
    squares = (samples - samples.mean(0)) ** 2
    assert ((result.mean - samples.mean(0)).abs() < 5 * samples.std(0) / SAMPLES**0.5 + 1e-6).all()
    # Where a function is flat its result is like a square, whose variance takes more samples to see.
    assert ((result.var - squares.mean(0)).abs() < 5 * squares.std(0) / SAMPLES**0.5 + 0.01 * result.var + 1e-6).all()
    return before


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_chains_are_one_function(name):
    function, op = WRITTEN_OUT[name]
    assert_one_function(Applied(function), torch.randn(3, 4), op)


def test_a_chain_with_constants_is_one_function():
    factor = torch.linspace(0.5, 1.5, 6)
    model, x = Applied(lambda y: y * factor + torch.tanh(y) * y), torch.randn(3, 4)
    before = assert_one_function(model, x, "elementwise")
    linearised = vp.propagate(model, posterior_of(model, 1e-2), vp.STREAMLINING)(x)
    torch.testing.assert_close(linearised.mean, model(x))
    slope = torch.func.vmap(torch.func.grad(lambda y: y * torch.tanh(y)))(before.mean.flatten()).reshape(3, 6) + factor
    torch.testing.assert_close(linearised.var, slope**2 * before.var, rtol=1e-4, atol=1e-8)


def test_affine_chains_are_exact():
    model, x = Applied(lambda y: y + 0.5 * y), torch.randn(3, 4)
    net = vp.propagate(model.eval(), posterior_of(model, 1e-2))
    torch.testing.assert_close(net(x).var, 2.25 * net.trace(x)["layer"].var)


@pytest.mark.parametrize("function", [lambda y: torch.relu(2 * y + 1), lambda y: torch.relu(y / 2)])
def test_a_single_op_keeps_its_own_rule(function):
    ops = ops_of(Applied(function), torch.randn(3, 4))
    assert ops[-1] == "aten.relu.default"
    assert not {"elementwise", "quick_gelu"} & set(ops)


def test_a_chain_that_is_not_defined_everywhere_is_not_integrated():
    model = Applied(lambda y: torch.log(torch.sqrt(torch.exp(y) - 0.5 + 10)) * torch.sqrt(y + 20))
    x = torch.randn(3, 4)
    net = vp.propagate(model.eval(), posterior_of(model, 1e-6))
    result = net(x)
    assert result.var.isfinite().all()
    torch.testing.assert_close(result.mean, model(x), rtol=1e-3, atol=1e-3)
    assert any("share a source" in row.note for row in vp.audit(model, posterior_of(model), x))


def test_a_cast_to_integers_is_not_seen_through():
    model, x = Applied(lambda y: y * (3 * y).long().float()), torch.randn(3, 4)
    net = vp.propagate(model.eval(), posterior_of(model, 1e-4))
    steps = (3 * net.trace(x)["layer"].mean).long().float()
    torch.testing.assert_close(net(x).var, steps**2 * net.trace(x)["layer"].var)


def centred(x):
    return x - x.mean(-1, keepdim=True)


def mean_square(x):
    return x.pow(2).mean(-1, keepdim=True)


def by_wide(x):
    wide = x.double()
    return (wide * torch.rsqrt(1e-6 + mean_square(wide))).to(x.dtype)


# The last op that each is, and what torch has for it; division by the own length is an RMS norm but for a factor √D.
NATIVE = {
    "rms_normalize": lambda x: nn.functional.rms_norm(x, (6,), None, 1e-6),
    "standardize": lambda x: nn.functional.layer_norm(x, (6,)),
    "unit_length": lambda x: nn.functional.rms_norm(x, (6,), None, 1e-12) / 6**0.5,
}
NORMS = [
    ("rms_normalize", lambda x: x * torch.rsqrt(mean_square(x) + 1e-6)),
    ("rms_normalize", lambda x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)),
    ("rms_normalize", lambda x: x / mean_square(x).sqrt()),
    ("rms_normalize", by_wide),
    ("standardize", lambda x: (y := centred(x)) / torch.sqrt(mean_square(y) + 1e-5)),
    ("standardize", lambda x: centred(x) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)),
    ("unit_length", lambda x: nn.functional.normalize(x, dim=-1)),
    ("unit_length", lambda x: x / x.norm(dim=-1, keepdim=True)),
    ("unit_length", lambda x: x / (x.norm(p=2, dim=-1, keepdim=True) + 1e-12)),
    ("unit_length", lambda x: x / (x * x).sum(-1, keepdim=True).sqrt()),
    ("unit_length", lambda x: x / torch.sqrt(x.pow(2).sum(-1, keepdim=True) + 1e-12)),
    ("unit_length", lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-12)),
]


@pytest.mark.parametrize(("op", "function"), NORMS)
def test_norms_written_out(op, function):
    written, native, x = Applied(function), Applied(NATIVE[op]), torch.randn(3, 4)
    native.load_state_dict(written.state_dict())
    assert op in ops_of(written, x)[-2:]  # before a cast, if there is one
    torch.testing.assert_close(tuple(propagate(written, x)), tuple(propagate(native, x)))


NO_NORMS = {
    "another order": lambda x: x / x.norm(p=1, dim=-1, keepdim=True),
    "times": lambda x: x * x.norm(dim=-1, keepdim=True),
    "beside": lambda x: x * (torch.rsqrt(x.square().sum(-1, keepdim=True)) + 1.0),
    "of another": lambda x: x / torch.sqrt(mean_square(x + 1) + 1e-6),
    "unbiased": lambda x: centred(x) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5),
}


@pytest.mark.parametrize("name", NO_NORMS)
def test_what_is_like_a_norm_is_not(name):
    assert not NATIVE.keys() & {*ops_of(Applied(NO_NORMS[name]), torch.randn(3, 4))}


def test_filter_response_norm():
    class FRN(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.gamma, self.beta, self.tau = (nn.Parameter(torch.randn(1, 4, 1, 1)) for _ in range(3))

        def forward(self, x):
            x = self.conv(x)
            x = x * torch.rsqrt(x.pow(2).mean((2, 3), keepdim=True) + 1e-6)
            return torch.maximum(self.gamma * x + self.beta, self.tau)

    model, x = FRN().eval(), torch.randn(2, 3, 6, 6)
    assert {"rms_normalize", "aten.maximum.default"} <= set(ops_of(model, x))
    net = vp.propagate(model, posterior_of(model, 0.0))
    torch.testing.assert_close(net(x).mean, model(x))


def test_a_residual_around_a_linear_layer_is_exact():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)

        def forward(self, x):
            x = self.first(x)
            return x + self.second(x)

    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(3, 4)
    net = vp.propagate(model, posterior_of(model, 1e-2).restrict("first"))
    assert ops_of(model, x) == ["aten.linear.default", "residual_linear"]
    inner = net.trace(x)["first"].var
    torch.testing.assert_close(net(x).var, inner @ ((torch.eye(6) + model.second.weight) ** 2).T)


def test_products_that_share_a_source_are_reported():
    class SwiGLU(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.gate, self.up = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            x = self.base(x)
            return nn.functional.silu(self.gate(x)) * self.up(x)

    model, x = SwiGLU().eval(), torch.randn(3, 4)
    (product,) = [row for row in vp.audit(model, posterior_of(model), x) if row.op == "aten.mul.Tensor"]
    assert product.exactness == "independent"
    assert "share a source" in product.note
    (apart,) = [
        row for row in vp.audit(model, posterior_of(model).restrict("gate", "up"), x) if row.op == "aten.mul.Tensor"
    ]
    assert apart.exactness == "exact"


def test_in_place_ops_and_views():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.act = nn.Linear(4, 6), nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.act(self.layer(x))
            y[:, 0] = 1.0
            y += 1
            return y.view(2, -1).t().reshape(-1)

    model, x = InPlace().eval(), torch.randn(4, 4)
    net = vp.propagate(model, posterior_of(model, 1e-6))
    torch.testing.assert_close(net(x).mean, model(x), rtol=1e-3, atol=1e-3)
    trace = net.trace(x)
    assert torch.equal(
        net(x).var == 0, (trace["act"].var * torch.tensor([0.0, 1, 1, 1, 1, 1])).view(2, -1).t().reshape(-1) == 0
    )


class Experts(nn.Module):
    """Each row goes to the expert its router prefers."""

    def __init__(self):
        super().__init__()
        self.router, self.weight = nn.Linear(8, 3), nn.Parameter(torch.randn(3, 8, 16))

    def forward(self, x):
        chosen, order = self.router(x).argmax(-1).sort(stable=True)
        offsets = (chosen[:, None] == torch.arange(3)).sum(0).cumsum(0, dtype=torch.int32)
        return torch._grouped_mm(x[order], self.weight, offs=offsets)[order.argsort()]


def test_experts_are_chosen_at_the_mean():
    torch.manual_seed(0)
    model, x = Experts().eval().bfloat16(), torch.randn(7, 8).bfloat16()  # torch exports it in bfloat16 only
    posterior = posterior_of(model, 0.25)
    found, chosen = vp.propagate(model, posterior)(x), model.router(x).argmax(-1)
    torch.testing.assert_close(found.mean, torch.einsum("bi,bio->bo", x, model.weight[chosen]), rtol=0.02, atol=0.02)
    torch.testing.assert_close(found.var, 0.25 * x.square().sum(-1, keepdim=True).expand(-1, 16), rtol=0.02, atol=0)
    (row,) = (row for row in vp.audit(model, posterior, x) if row.op == "aten.argmax.default")
    assert row.variance == "stops"
    assert row.exactness == "approximate"


@pytest.mark.parametrize("rules", [vp.CVP, vp.FACTORED], ids=lambda rules: rules.name)
def test_patches_are_rows_of_a_linear_layer(rules, monkeypatch):
    class Patches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Conv2d(3, 8, (4, 2), (4, 2), bias=False), torch.nn.Linear(8, 5)

        def forward(self, x):
            return self.head(torch.relu(self.embed(x).flatten(2).transpose(1, 2)))

    torch.manual_seed(0)
    model, x = Patches().double().eval(), torch.randn(3, 3, 8, 6, dtype=torch.float64)
    posterior = vp.Posterior.isotropic(model, std=0.1)
    net = vp.propagate(model, posterior, rules)
    random = vp.Moments(x, 0.1 * torch.ones_like(x))
    found = [net(random), net.trace(x).outputs["embed"]]
    ops = [node.target for node in net.plan((x,), {})[0].module.graph.nodes]
    assert torch.ops.aten.conv2d.default not in ops
    monkeypatch.setattr(canonicalize, "_patches", lambda *_: None)
    net = vp.propagate(model, posterior, rules)
    torch.testing.assert_close([*map(tuple, found)], [tuple(net(random)), tuple(net.trace(x).outputs["embed"])])


@pytest.mark.parametrize("options", [{"stride": 2}, {"stride": 4, "padding": 1}, {"stride": 4, "groups": 2}])
def test_other_convolutions_stay(options):
    model, x = torch.nn.Conv2d(4, 8, 4, **options).eval(), torch.randn(2, 4, 8, 8)
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=0.1))
    assert net(x).var.shape == model(x).shape
    assert torch.ops.aten.conv2d.default in [node.target for node in net.plan((x,), {})[0].module.graph.nodes]


def test_a_reshape_that_needs_the_copy_before_it():
    """Patches cut out by unfold are no view of the image: reshape copies, and what it copies has other strides."""

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(12, 5)

        def forward(self, images):
            cut = images.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5)
            return self.linear(cut.flatten(3).flatten(1, 2))

    model, x = Patches().eval(), torch.randn(3, 3, 4, 4)
    net = vp.propagate(model, vp.Posterior.isotropic(model))
    assert torch.allclose(net(x).mean, model(x), atol=1e-6)
