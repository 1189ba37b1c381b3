"""A forward that reads values of its inputs: a graph for each, and none for a call that has others."""

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of


class Reader(nn.Module):
    """Control flow and sizes that depend on a mask."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x, mask):
        y = self.first(x)
        if mask.sum().item() > 2:
            y = y.relu()
        chosen = self.last(y)[mask.nonzero()[:, 0]]
        return chosen.sum(0) + self.last(y[mask]).sum(0) * mask.long().unique().numel()


def masks(*rows):
    return [torch.tensor(row, dtype=torch.bool) for row in rows]


@pytest.mark.filterwarnings("ignore:Reader cannot be captured with free sizes")
def test_every_call_has_a_graph_that_saw_its_values():
    torch.manual_seed(0)
    model, x = Reader().eval(), torch.randn(4, 3)
    net = vp.propagate(model, posterior_of(model, 1e-14))
    for mask, graphs in zip(masks([1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 0, 1], [1, 1, 0, 0]), (1, 1, 2, 2), strict=True):
        torch.testing.assert_close(net(x, mask).mean, model(x, mask))
        assert len(net.signatures) == graphs


def test_such_a_graph_is_captured_anew_after_loading(tmp_path):
    model, x, (mask,) = Reader().eval(), torch.randn(4, 3), masks([1, 0, 1, 1])
    net = vp.propagate(model, posterior_of(model))
    expected = net(x, mask)
    net.save_pretrained(tmp_path)
    loaded = vp.MomentNet.from_pretrained(tmp_path, model)
    assert loaded.signatures == []
    torch.testing.assert_close(tuple(loaded(x, mask)), tuple(expected))
