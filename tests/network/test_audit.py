"""The report of what acts where."""

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gate, self.value, self.head = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        x = torch.relu(self.embed(x.flip(1)))
        weights = torch.softmax(self.gate(x), -1)
        return self.head(weights * self.value(x))


def report(model, posterior, **options):
    return {(row.op, row.path): row for row in vp.audit(model, posterior, torch.randn(3, 4), **options)}


def test_where_variance_starts_flows_and_stops():
    model = Model().eval()
    rows = report(model, posterior_of(model))
    assert rows["aten.flip.default", ""].variance == "none"
    assert rows["aten.linear.default", "embed"].variance == "starts"
    assert rows["aten.relu.default", ""].variance == "flows"
    assert rows["aten.linear.default", "gate"].variance == "unused"
    assert rows["aten.softmax.int", ""].variance == "stops"
    assert rows["aten.softmax.int", ""].exactness == "approximate"
    assert "dropped" in rows["aten.softmax.int", ""].note
    assert rows["aten.mul.Tensor", ""].exactness == "exact"  # the map carries no variance, so nothing is shared
    assert rows["aten.linear.default", "head"].line.startswith("test_audit.py:")


def test_it_depends_on_the_posterior_and_on_the_rules():
    model = Model().eval()
    head = report(model, posterior_of(model).restrict("head"))
    assert [row.op for row in head.values() if row.variance != "none"] == ["aten.linear.default"]
    linearised = report(model, posterior_of(model), rules=vp.STREAMLINING)
    assert linearised["aten.relu.default", ""].rule == "delta"
    assert linearised["aten.relu.default", ""].exactness == "approximate"


def test_it_prints_as_a_table():
    model = Model().eval()
    text = str(vp.audit(model, posterior_of(model), torch.randn(3, 4)))
    title, header, *lines, legend = text.splitlines()
    assert title.startswith("Model under CVP: ")
    assert title.endswith("0 missing")
    assert header.split() == ["op", "module", "rule", "variance", "exactness", "note"]
    assert len(lines) == len(vp.audit(model, posterior_of(model), torch.randn(3, 4)))
    assert legend.startswith("exact: for independent Gaussian inputs")


def test_a_rule_is_needed_only_where_variance_is_asked_for():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.value = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return torch.softmax(torch.i0(self.gate(x)), -1) * self.value(x)

    model, x = Gated().eval(), torch.randn(3, 4)
    report = vp.audit(model, posterior_of(model), x)
    (row,) = [row for row in report if "i0" in row.op]
    assert (row.variance, row.rule, row.exactness) == ("unused", "", "")
    assert not report.missing
    torch.testing.assert_close(vp.propagate(model, posterior_of(model, 0.0))(x).mean, model(x))


@pytest.mark.parametrize(
    "combine",
    [
        lambda h: torch.einsum("bi,bj->bij", h, h).flatten(1),
        lambda h: torch.maximum(h, h),
        lambda h: torch.nn.functional.bilinear(h, h, torch.ones(2, 3, 3)),
    ],
    ids=["einsum", "maximum", "bilinear"],
)
def test_a_tensor_taken_twice_is_not_called_exact(combine):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return combine(self.linear(x))

    model = Twice().eval()
    table = vp.audit(model, posterior_of(model), torch.randn(2, 4))
    assert any("share a source" in row.note for row in table.independent)


def exactness(model, x, posterior=None):
    table = vp.audit(model.eval(), posterior or posterior_of(model), x)
    return [row.exactness for row in table if row.variance != "none"]


class Tokens(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed, self.head, self.dim = nn.Linear(4, 8), nn.Linear(8, 3), dim

    def forward(self, tokens):
        return self.head(torch.tanh(self.embed(tokens)).mean(self.dim, keepdim=True).expand(-1, 5, 8))


def test_tokens_share_the_noise_of_weights_features_do_not():
    assert exactness(Tokens(1), torch.randn(2, 5, 4))[2] == "independent"
    assert exactness(Tokens(-1), torch.randn(2, 5, 4))[2] == "exact"


def test_from_the_second_layer_on_all_entries_share_noise():
    mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    assert exactness(mlp, x) == ["exact"] * 4 + ["independent"]
    assert exactness(mlp, x, posterior_of(mlp).restrict("2")) == ["exact"] * 3
    assert exactness(mlp, vp.Moments(x, x.square())) == ["exact", "exact", "independent", "exact", "independent"]


def test_pixels_share_the_noise_of_a_convolution_channels_do_not():
    def net(*layers):
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), *layers)

    x = torch.randn(2, 3, 8, 8)
    assert exactness(net(nn.Conv2d(8, 4, 1)), x) == ["exact"] * 3 + ["independent"]
    assert exactness(net(nn.AvgPool2d(2)), x) == ["exact"] * 3 + ["independent"]
    assert exactness(net(nn.Flatten(), nn.Linear(288, 2)), x)[-1] == "independent"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda h, w: h + w, "independent"),  # a bias for every token: tokens share it
        (lambda h, w: h + w.expand(5, 8), "independent"),
        (lambda h, w: h * 2, "exact"),
        (lambda h, w: h.clone(), "exact"),
        (lambda h, w: h.flip(1).view(-1, 8, 5).transpose(1, 2), "exact"),
        (lambda h, w: h + h.flip(1), "independent"),
    ],
    ids=["bias", "expanded", "elementwise", "clone", "moved", "with itself"],
)
def test_sharing_through_elementwise_and_structural_ops(change, expected):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))

        def forward(self, x):
            return change(x, self.weight).sum(1)

    x = torch.randn(2, 5, 8)
    assert exactness(Net(), vp.Moments(x, x.square()))[-1] == expected


def test_exactness_is_decided_for_each_call():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x):
            h = self.linear(self.norm(x))
            return (h / 2) ** 2 + x / (h**1.5 + 9)

    model = Net().eval()
    found = [(row.op, row.exactness) for row in vp.audit(model, posterior_of(model), torch.rand(3, 4))]
    assert ("aten.layer_norm.default", "exact") in found  # only its weights are random
    assert [kind for op, kind in found if op == "aten.div.Tensor"] == ["exact", "approximate"]
    assert [kind for op, kind in found if op == "aten.pow.Tensor_Scalar"] == ["exact", "approximate"]


def test_a_rule_that_says_nothing_is_not_called_exact():
    @vp.rule(torch.ops.aten.relu.default)
    def silent(x):
        return x

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    table = vp.audit(model, posterior_of(model), torch.randn(2, 4), rules=vp.CVP.replace(silent))
    assert [row.note for row in table.approximate] == ["the rule does not say how exact it is"]


def test_an_op_without_a_rule_that_reduces_everything():
    class Determinant(nn.Linear):
        def forward(self, x):
            return torch.linalg.det(super().forward(x))

    model = Determinant(4, 4).eval()
    missing = vp.audit(model, posterior_of(model), torch.randn(4, 4)).missing
    assert any("det" in row.op for row in missing)


def test_what_a_router_decides_is_said():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Linear(4, 4)

        def forward(self, x):
            return x.gather(1, self.score(x).topk(2).indices) + self.score(x)[:, :2]

    row = report(model := Router().eval(), posterior_of(model))["aten.topk.default", ""]
    assert (row.exactness, row.variance) == ("approximate", "unused")
    assert "decided at the mean" in row.note
