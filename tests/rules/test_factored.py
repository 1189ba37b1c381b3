"""Factored variances: what is kept as products is exact where it is one, and near elsewhere."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import varprop as vp
from varprop.rules.factorization import factor, misfit

aten = torch.ops.aten

LAYERS = aten.linear.default, aten.conv2d.default


class Block(nn.Module):
    """A transformer's block, with a residual stream, a class token and positions."""

    def __init__(self, width=8, heads=2, tokens=5):
        super().__init__()
        self.heads = heads
        self.start = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, tokens + 1, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.head = nn.Linear(width, 12), nn.Linear(12, width), nn.Linear(width, 3)

    def forward(self, x):
        x = torch.cat([self.start.expand(x.shape[0], -1, -1), x], 1) + self.place
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        v = torch.cat([x.new_zeros(0), v], -2)  # as caches do that are empty yet
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.out(mixed)
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.head(x[:, 0])


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


MODELS = {
    "block": (Block, (4, 5, 8)),
    "convolutions": (convolutions, (4, 3, 9, 9)),
    "perceptron": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (4, 5)),
}


@pytest.fixture(params=MODELS)
def case(request):
    torch.manual_seed(0)
    build, shape = MODELS[request.param]
    return build().double().eval(), torch.randn(shape, dtype=torch.float64)


@functools.cache
def isotropic(name):
    """A model, its input, and networks by the exact rules and with products."""
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model, x = build().double().eval(), torch.randn(shape, dtype=torch.float64)
    posterior = vp.Posterior.isotropic(model, std=0.1)
    nets = [vp.propagate(model, posterior, rules) for rules in (vp.CVP, vp.FACTORED)]
    for net in nets:
        net.capture(x)
    return model, x, *nets


def products_of(model):
    """Σ_W ∝ μ_W² of rank 1, and no variance for norms. Positions are a product already."""
    var = {}
    for name, parameter in model.named_parameters():
        if "norm" in name or (parameter.ndim == 1 and "weight" in name):
            continue
        rows = parameter[0] if name == "place" else parameter.flatten(1) if parameter.ndim > 1 else parameter
        with torch.no_grad():
            parameter.copy_(as_product(rows).reshape(parameter.shape))
        var[name] = 0.01 * parameter.detach() ** 2
    return vp.Posterior.from_tensors({name: model.get_parameter(name).detach() for name in var}, var)


def as_product(rows):
    """Of the same signs and size, but |rows| of rank 1."""
    size = rows.detach().abs()
    if size.ndim == 1:
        return rows.detach()
    return size.mean(1, keepdim=True) * size.mean(0, keepdim=True) / size.mean() * rows.detach().sign()


def test_nothing_is_lost_where_variances_are_products(case):
    model, x = case
    posterior = products_of(model)
    expected, found = vp.propagate(model, posterior)(x), vp.propagate(model, posterior, vp.FACTORED)(x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_any_variances_are_near(name):
    _, x, exact, factored = isotropic(name)
    assert (factored(x).var / exact(x).var - 1).abs().mean() < 0.2


def test_more_products_are_nearer():
    model, x, exact, factored = isotropic("perceptron")
    more = vp.propagate(model, vp.Posterior.isotropic(model, std=0.1), vp.factored(3))
    off = [(net(x).var / exact(x).var - 1).abs().mean() for net in (factored, more)]
    assert off[1] < 0.5 * off[0]


@pytest.mark.parametrize("name", MODELS)
def test_what_runs_is_what_the_walk_gives_at_any_batch_size(name):
    _, x, _, net = isotropic(name)
    for batch in (x, x[:1], torch.cat([x, x[:3]])):
        torch.testing.assert_close(net(batch), net.trace(batch)[""], rtol=1e-9, atol=1e-12)
    assert len(net.signatures) == 1


@pytest.mark.parametrize("name", MODELS)
def test_no_matrix_product_of_variances_is_left_and_scales_carry_over(name):
    model, x, exact, net = isotropic(name)
    assert list(exact.scales) == list(net.scales)
    values = dict(net.named_buffers())
    layers = [node for node in net.plan((x,), {})[0].module.graph.nodes if node.target in LAYERS]
    used = [tuple(values[node.args[1].target].shape) for node in layers if node.args[1].op == "get_attr"]
    weights = [tuple(m.weight.shape) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert sorted(shape for shape in used if shape in weights) == sorted(weights)


def test_layers_whose_weights_are_certain():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(16, 2)).double()
    posterior = vp.Posterior.isotropic(model, std=0.1).restrict("0")
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    exact, found = (vp.propagate(model, posterior, rules)(x) for rules in (vp.CVP, vp.FACTORED))
    torch.testing.assert_close(found.mean, exact.mean)
    assert (found.var / exact.var - 1).abs().max() < 0.5


def test_the_noise_of_a_norms_weights_keeps_its_sum():
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)).double()
    nn.init.normal_(model[1].weight)
    posterior = vp.Posterior.isotropic(model, std=0.3).restrict("1")
    model = nn.Sequential(*model, nn.Identity())
    x = torch.randn(3, 4, dtype=torch.float64)
    exact, found = (vp.propagate(model, posterior, rules)(x) for rules in (vp.CVP, vp.FACTORED))
    torch.testing.assert_close(found.mean, exact.mean)
    torch.testing.assert_close(found.var.sum(1), exact.var.sum(1))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_products_keep_sums_and_are_not_negative(rank):
    torch.manual_seed(1)
    matrix = torch.rand(7, 5, dtype=torch.float64) ** 3
    left, right = factor(matrix, rank)
    product = left.T @ right
    assert left.shape == (rank, 7)
    assert (left >= 0).all()
    assert (right >= 0).all()
    torch.testing.assert_close(product.sum(0), matrix.sum(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(product.sum(1), matrix.sum(1), rtol=0.02, atol=0)


def test_a_sum_of_products_is_found():
    torch.manual_seed(2)
    left, right = torch.rand(2, 6, dtype=torch.float64) ** 4, torch.rand(2, 9, dtype=torch.float64) ** 4
    assert misfit(left.T @ right, 1) > 0.2
    assert misfit(left.T @ right, 2) < 0.02
    assert misfit(torch.zeros(3, 4), 1) == 0


def test_the_audit_tells_how_far_weights_are_from_products():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    rows = vp.audit(model, vp.Posterior.isotropic(model), torch.randn(2, 4), rules=vp.FACTORED)
    notes = [row.note for row in rows if row.op == "aten.linear.default"]
    assert "one product, 0% off" in notes[0]  # all variances are the same
    matrix = model[2].weight.detach() ** 2 + vp.Posterior.isotropic(model)["2.weight"].var
    assert f"{misfit(matrix, 1):.0%} off" in notes[1]
