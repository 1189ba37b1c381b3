"""Tokens and pixels without a label (-100) are left out everywhere, whatever the network says about them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError

G = torch.Generator().manual_seed(0)
torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()  # every token on its own
X = torch.randn(80, 6, 4, generator=G)
Y = torch.distributions.Categorical(logits=2 * MODEL(X)).sample()
SAID = torch.rand(80, 6, generator=G) < 0.6
SAID[::9] = False  # whole examples
MASKED = torch.where(SAID, Y, -100)
OTHER = torch.where(SAID[..., None], X, 50.0)  # what is there does not matter
LINKS = [vp.links.Softmax(), vp.links.MeanFieldSoftmax()]


@pytest.fixture(scope="module")
def net():
    return vp.propagate(MODEL, posterior_of(MODEL, 0.05))


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_losses(net, link):
    logits = net(X)
    found = link.loss(logits, MASKED)
    torch.testing.assert_close(found, torch.where(SAID, link.loss(logits, Y), 0.0))
    certain = link.log_likelihood(logits.mean, MASKED)
    torch.testing.assert_close(-certain, F.cross_entropy(logits.mean.mT, MASKED, reduction="none"))
    assert not link.loss(logits, torch.full_like(Y, -100)).any()


@pytest.mark.parametrize("link", [vp.links.Sigmoid(), vp.links.ProbitSigmoid()], ids=str)
def test_single_labels_of_many(net, link):
    logits, said = net(X[:, 0]), F.one_hot(Y[:, 0], 3)
    masked = said.masked_fill(SAID[:, :3] == 0, -100)
    alone = torch.stack(
        [link.loss(vp.Moments(*(x[:, k : k + 1] for x in logits)), said[:, k : k + 1]) for k in range(3)], -1
    )
    torch.testing.assert_close(link.loss(logits, masked), (alone * SAID[:, :3]).sum(-1))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"scales": ()}, id="temperature"),
        pytest.param(
            {"procedure": vp.FixedEpochs(epochs=1, batch_size=500)}, id="fixed epochs", marks=pytest.mark.second
        ),
        pytest.param({}, id="scales", marks=pytest.mark.second),
    ],
)
@pytest.mark.filterwarnings("ignore")  # few examples
def test_calibration(net, settings):
    settings = {"progress": False, **settings}
    found = vp.calibrate(net, [(OTHER[:30], MASKED[:30]), (OTHER[30:], MASKED[30:])], **settings)
    kept = SAID.any(1)
    expected = vp.calibrate(net, [(X[kept], MASKED[kept])], **settings)
    assert found.scales == pytest.approx(expected.scales, rel=1e-3)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-3)


def test_temperature_evaluation_and_abstention(net):
    predictor, flat = vp.Propagated(net), [(X[SAID], Y[SAID])]
    masked = [(OTHER[:9], torch.full((9, 6), -100)), (OTHER[:30], MASKED[:30]), (OTHER[30:], MASKED[30:])]
    scaled, expected = (vp.TemperatureScaled(predictor).fit(data) for data in (masked, flat))
    assert scaled.temperature == pytest.approx(expected.temperature, rel=1e-4)
    assert scaled.fitted.before == pytest.approx(expected.fitted.before, rel=1e-5)
    assert scaled.fitted.examples == int(SAID.sum())
    found, plain = (vp.evaluate(predictor, data, progress=False) for data in (masked, flat))
    assert found.metrics == pytest.approx(plain.metrics, rel=1e-5)
    assert len(found) == int(SAID.sum())
    selective, same = (vp.Selective(predictor).fit(data, risk=0.7).guarantee for data in (masked, flat))
    assert selective.answered == same.answered
    assert selective.examples == len(found)


def test_pixels():
    """An image of logits, classes last; the message says how they come there."""
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3, padding=1).eval()
    images, labels = torch.randn(12, 2, 5, 5), torch.randint(0, 3, (12, 5, 5))
    labels[:, 0] = -100
    posterior = posterior_of(model, 0.05)
    with pytest.raises(InputError, match=r"output=lambda logits: logits.movedim\(1, -1\)"):
        vp.calibrate(vp.propagate(model, posterior), [(images, labels)], progress=False)
    net = vp.propagate(model, posterior, output=lambda logits: logits.movedim(1, -1))
    fitted = vp.calibrate(net, [(images, labels)], scales=(), progress=False)
    assert len(vp.evaluate(vp.Propagated(fitted), [(images, labels)], progress=False)) == 12 * 4 * 5


def test_a_dtype_without_a_sign_has_no_such_label():
    """156 equals -100 there."""
    assert vp.links.Softmax().log_likelihood(torch.zeros(1, 200), torch.tensor([156], dtype=torch.uint8)).item() < 0


def test_what_is_refused(net):
    with pytest.raises(InputError, match="no held-out example has a label"):
        vp.TemperatureScaled(vp.Propagated(net)).fit([(X, torch.full_like(Y, -100))])
    with pytest.raises(InputError, match="give targets.float"):
        vp.links.Gaussian(1.0).loss(net(X[0]), torch.full((6, 3), -100))
