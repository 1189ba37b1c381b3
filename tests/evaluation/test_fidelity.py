import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


def test_a_linear_network_is_exact():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Identity(), nn.Linear(7, 3)).eval()
    posterior = posterior_of(model, 0.05)
    found = vp.compare(vp.propagate(model, posterior), vp.MonteCarlo(model, posterior, 2000), X)
    assert [row.path for row in found] == ["0", "1", "2", "(output)"]
    assert [row.module for row in found] == ["Linear", "Identity", "Linear", ""]
    for row in found:
        # 2000 samples tell a variance to 3 %, and there are only so many entries.
        assert row.variance_ratio == pytest.approx(1, abs=0.1)
        assert row.mean_error < 4 * found.noise
        assert row.correlation > 0.8


def test_it_tells_where_the_variance_is_wrong():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).eval()
    posterior = posterior_of(model, 0.05)
    net = vp.propagate(model, posterior)
    net.capture(X)
    with torch.no_grad():
        net.scale["(output).log_alpha"].fill_(1.5)
    found = vp.compare(net, vp.MonteCarlo(model, posterior, 500), X)
    assert found.rows[0].variance_ratio == pytest.approx(1, abs=0.2)
    assert found.output.variance_ratio == pytest.approx(torch.tensor(1.5).exp().item(), rel=0.2)
    text = str(found)
    assert "variance ratio" in text
    assert "500 sampled networks" in text


def test_the_plain_networks_error_is_given_too():
    """E[relu] is not relu(E): the plain network is off, the propagated one is not."""
    model = nn.Sequential(nn.Linear(5, 40), nn.ReLU()).eval()
    posterior = posterior_of(model, 1.0)
    found = vp.compare(vp.propagate(model, posterior), vp.MonteCarlo(model, posterior, 1000), X)
    assert found.output.mean_error < 3 * found.noise < found.output.plain_error


def test_a_module_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.act = nn.Linear(5, 5), nn.GELU()

        def forward(self, x):
            return self.act(self.linear(self.act(self.linear(x))))

    model = Twice().eval()
    posterior = posterior_of(model, 0.05)
    found = vp.compare(vp.propagate(model, posterior), vp.MonteCarlo(model, posterior, 10), X)
    assert [row.path for row in found] == ["linear", "act", "linear#2", "act#2", "(output)"]


def test_what_is_written_over_later_is_compared_as_it_was():
    """As a residual sum or a ReLU in place: the samples of a linear layer are those of its own output."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True)).eval()
    posterior = posterior_of(model, 0.05)
    found = vp.compare(vp.propagate(model, posterior), vp.MonteCarlo(model, posterior, 500), X)
    assert found.rows[0].variance_ratio == pytest.approx(1, abs=0.15)
    assert found.rows[0].mean_error < 4 * found.noise


def test_wrong_use():
    model = nn.Linear(5, 2).eval()
    posterior = posterior_of(model, 0.1)
    net = vp.propagate(model, posterior)
    with pytest.raises(InputError, match="takes a MonteCarlo"):
        vp.compare(net, vp.MeanNetwork(model), X)
    with pytest.raises(InputError, match="at least 2"):
        vp.compare(net, vp.MonteCarlo(model, posterior, 1), X)
