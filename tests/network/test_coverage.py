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
    return {(row.op, row.path): row for row in vp.coverage(model, posterior, torch.randn(3, 4), **options)}


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
    assert rows["aten.linear.default", "head"].line.startswith("test_coverage.py:")


def test_it_depends_on_the_posterior_and_on_the_rules():
    model = Model().eval()
    head = report(model, posterior_of(model).restrict("head"))
    assert [row.op for row in head.values() if row.variance != "none"] == ["aten.linear.default"]
    linearised = report(model, posterior_of(model), rules=vp.STREAMLINING)
    assert linearised["aten.relu.default", ""].rule == "delta"
    assert linearised["aten.relu.default", ""].exactness == "approximate"


def test_it_prints_as_a_table():
    model = Model().eval()
    text = str(vp.coverage(model, posterior_of(model), torch.randn(3, 4)))
    title, header, *lines = text.splitlines()
    assert title.startswith("Model under CVP: ")
    assert title.endswith("0 missing")
    assert header.split() == ["op", "module", "rule", "variance", "exactness", "note"]
    assert len(lines) == len(vp.coverage(model, posterior_of(model), torch.randn(3, 4)))


def test_a_rule_is_needed_only_where_variance_is_asked_for():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.value = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return torch.softmax(torch.lgamma(self.gate(x).abs() + 1), -1) * self.value(x)

    model, x = Gated().eval(), torch.randn(3, 4)
    report = vp.coverage(model, posterior_of(model), x)
    (row,) = [row for row in report if "lgamma" in row.op]
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
    table = vp.coverage(model, posterior_of(model), torch.randn(2, 4))
    assert any("share a source" in row.note for row in table)
