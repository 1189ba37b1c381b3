"""The figures of the report, of what is in memory."""

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError

pytest.importorskip("matplotlib")
pytest.importorskip("pandas")
pytestmark = pytest.mark.second
X = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + torch.randn(300, generator=torch.Generator().manual_seed(1)) > 0).long()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2)).eval()


@pytest.fixture(scope="module")
def net(model):
    net = vp.propagate(model, posterior_of(model, 0.01))
    net.capture(X)
    return net


@pytest.fixture(scope="module")
def evaluations(model, net):
    return vp.evaluate({"mean": model, "cvp": vp.Propagated(net)}, [(X, Y)], progress=False)


def test_risk_and_coverage(evaluations):
    axes = vp.plot.risk_coverage(evaluations)
    assert [line.get_label() for line in axes.lines] == ["mean", "CVP"]
    for line, found in zip(axes.lines, evaluations.values(), strict=True):
        assert line.get_ydata()[-1] == pytest.approx(100 * (1 - found.metrics["accuracy"]), abs=1e-3)
    assert vp.plot.risk_coverage(evaluations["mean"]).lines[0].get_label() == "predictor"


def test_reliability(evaluations):
    axes = vp.plot.reliability(evaluations)
    assert len(axes) == 2
    assert axes[0].get_title("left") == f"mean, {100 * evaluations['mean'].metrics['ece']:.1f}"


def test_pareto(evaluations):
    costs = {"mean": {"plain": 1.0, "sample": 0.5}, "cvp": {"plain": 3.0, "sample": 1.5}}
    axes = vp.plot.pareto(evaluations, costs, "nll")
    assert "NLL" in axes.get_ylabel()
    with pytest.raises(InputError, match="no metric 'size'"):
        vp.plot.pareto(evaluations, costs, "size")
    with pytest.raises(InputError, match="nothing to draw"):
        vp.plot.pareto(evaluations, {})


def test_scales_and_fidelity(model, net):
    names = [label.get_text() for label in vp.plot.scales(net).get_yticklabels()]
    assert names == list(net.scales)
    comparison = vp.compare(net, vp.MonteCarlo(model, posterior_of(model, 0.01), 8), X[:4])
    variance, mean = vp.plot.fidelity({"cvp": comparison})
    assert len(variance.get_yticklabels()) == len(mean.get_yticklabels()) == len(comparison)


def test_what_is_refused(net):
    with pytest.raises(InputError, match="'predictor' is a MomentNet: what is drawn is a Evaluation"):
        vp.plot.risk_coverage(net)


def test_a_report_of_evaluations(evaluations, tmp_path):
    page = vp.write_report(evaluations, tmp_path / "mine")
    assert page == tmp_path / "mine" / "report.html"
    assert "CVP" in page.read_text()
    with pytest.raises(vp.errors.ResultsError, match="say where"):
        vp.write_report(evaluations)
