"""Links against closed forms, brute-force sampling and each other."""

import math

import mpmath
import pytest
import torch
from scipy import integrate, stats

import varprop as vp
from varprop.errors import InputError, OutputError
from varprop.prediction import expectations
from varprop.prediction import links as module
from varprop.prediction.expectations import LEADING, MANY, SOBOL_ENDS, Condensed, normals

CLASS_LINKS = [
    vp.links.Softmax(),
    vp.links.Softmax(samples=7),
    vp.links.MeanFieldSoftmax(),
    vp.links.Sigmoid(),
    vp.links.ProbitSigmoid(),
]


def logits(rows=6, classes=5, dtype=torch.float64, spread=1.0):
    generator = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(rows, classes, generator=generator, dtype=dtype)
    var = spread * torch.rand(rows, classes, generator=generator, dtype=dtype)
    return vp.Moments(mean, var)


def target_for(link, x):
    if isinstance(link, module.Bernoulli):
        return (torch.arange(x.mean.numel()).view(x.shape) % 3 == 0).to(x.mean.dtype)
    return torch.arange(x.shape[0]) % x.shape[1]


def brute_force(x, count=200_000):
    draws = x.sample(count, torch.Generator().manual_seed(1)).softmax(-1)
    return draws.mean(0), draws.std(0) / math.sqrt(count), draws


@pytest.mark.parametrize("link", CLASS_LINKS, ids=str)
def test_without_variance_it_is_the_plain_network(link):
    x = logits()
    x = vp.Moments(x.mean, torch.zeros_like(x.var))
    plain = x.mean.sigmoid() if isinstance(link, module.Bernoulli) else x.mean.softmax(-1)
    torch.testing.assert_close(link(x).probs, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(link.average([x.mean]).probs, plain)
    target = target_for(link, x)
    torch.testing.assert_close(link.loss(x, target), -link.log_likelihood(x.mean, target))


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_softmax_agrees_with_many_random_samples(spread):
    x = logits(spread=spread)
    truth, error, _ = brute_force(x)
    # 4096 evenly spread points have about the error of as many random ones, or less.
    bound = 5 * (error + error * math.sqrt(200_000 / 4096))
    assert bool(((vp.links.Softmax(4096)(x).probs - truth).abs() < bound).all())


def test_evenly_spread_points_are_better_than_random_ones():
    x = logits(rows=64, classes=10)
    truth = vp.links.Softmax(1 << 16)(x).probs
    ours = (vp.links.Softmax(256)(x).probs - truth).square().mean().sqrt()
    random = []
    for seed in range(8):
        draws = x.sample(256, torch.Generator().manual_seed(seed)).softmax(-1).mean(0)
        random.append((draws - truth).square().mean().sqrt())
    assert ours < 0.7 * torch.stack(random).median()


@pytest.mark.parametrize("link", CLASS_LINKS, ids=str)
def test_the_loss_is_that_of_the_probabilities(link):
    x = logits()
    target, probs = target_for(link, x), link(x).probs
    if isinstance(link, module.Bernoulli):
        expected = -(target * probs.log() + (1 - target) * (1 - probs).log()).sum(-1)
    else:
        expected = -probs.gather(-1, target[:, None]).squeeze(-1).log()
    torch.testing.assert_close(link.loss(x, target), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("link", [*CLASS_LINKS, vp.links.Gaussian(0.1)], ids=str)
def test_the_loss_has_the_right_gradient(link):
    mean, var = (t.detach().requires_grad_() for t in logits(rows=3, classes=4))
    x = vp.Moments(mean.detach(), var.detach())
    target = x.mean + 0.3 if isinstance(link, vp.links.Gaussian) else target_for(link, x)
    # The sigmoid's quadrature is good to 1e-6, and so are differences of it over steps of 1e-4.
    assert torch.autograd.gradcheck(
        lambda m, v: link.loss(vp.Moments(m, v), target).sum(), (mean, var), eps=1e-4, atol=1e-4, rtol=1e-3
    )


def test_the_gradient_is_finite_without_variance():
    mean = torch.randn(3, 4, requires_grad=True)
    var = torch.zeros(3, 4, requires_grad=True)
    vp.links.Softmax().loss(vp.Moments(mean, var), torch.tensor([0, 1, 2])).sum().backward()
    assert bool(mean.grad.isfinite().all() and var.grad.isfinite().all())


@pytest.mark.parametrize(("mean", "var"), [(0.3, 0.5), (-4.0, 2.0), (2.0, 30.0), (-30.0, 1.0)])
def test_sigmoid_agrees_with_adaptive_quadrature(mean, var):
    std = math.sqrt(var)
    truth, _ = integrate.quad(
        lambda z: stats.norm.pdf(z) / (1 + math.exp(-(mean + std * z))), -12, 12, epsabs=0, epsrel=1e-10, limit=200
    )
    x = vp.Moments(torch.tensor([[mean]]), torch.tensor([[var]]))
    assert float(vp.links.Sigmoid()(x).probs) == pytest.approx(truth, rel=1e-3)
    loss = float(vp.links.Sigmoid().loss(x, torch.ones(1, 1)))
    assert loss == pytest.approx(-math.log(truth), abs=1e-3)


def test_the_sampled_mean_is_unbiased_in_each_dimension():
    points = normals(256, 50, dtype=torch.float64, device=torch.device("cpu"))
    # Each of 256 strata holds one point, so the mean of a coordinate is far nearer to 0 than 1/√256.
    assert points.mean(0).abs().max() < 0.02
    assert (points.square().mean(0) - 1).abs().max() < 0.05


def test_more_dimensions_than_sobol_has():
    points = normals(8, SOBOL_ENDS + 1, dtype=torch.float32, device=torch.device("cpu"))
    assert points.shape == (8, SOBOL_ENDS + 1)
    assert points.sum(0).abs().max() < 1e-5
    assert torch.equal(points, normals(8, SOBOL_ENDS + 1, dtype=torch.float32, device=torch.device("cpu")))


# --- many classes ----------------------------------------------------------------------------------------


def many(classes, rows=4, var=1.0, dtype=torch.float64):
    """As of a trained classifier: a few classes stand out, and variances differ by a factor of three."""
    generator = torch.Generator().manual_seed(0)
    mean = 1.5 * torch.randn(rows, classes, generator=generator, dtype=dtype)
    mean[:, 7 :: classes // 8] += torch.linspace(3, 10, rows, dtype=dtype)[:, None]
    return vp.Moments(mean, var * (0.5 + torch.rand(rows, classes, generator=generator, dtype=dtype)))


def by_sampling(x, draws=20_000):
    """Probabilities and their errors, and the mean entropy, from pairs ±z."""
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(draws // 200):
        z = torch.randn(100, *x.shape, generator=generator, dtype=x.mean.dtype)
        probs = (x.mean + x.var.sqrt() * torch.cat([z, -z])).softmax(-1)
        found.append((probs.mean(0), torch.special.entr(probs).sum(-1).mean(0)))
    probs, entropy = (torch.stack(part) for part in zip(*found, strict=True))
    return probs.mean(0), probs.std(0) / math.sqrt(len(found)), entropy.mean(0)


@pytest.mark.parametrize("var", [0.1, 1.0, 4.0])
def test_of_many_classes_the_likeliest_are_sampled(monkeypatch, var):
    x = many(3000, var=var)
    link, (truth, error, entropy) = vp.links.Softmax(), by_sampling(x)

    def divergence(probs):
        """The mean of KL(truth, probs)."""
        return float((truth * (truth / probs).log()).sum(-1).mean())

    probs = link(x).probs
    torch.testing.assert_close(probs.sum(-1), torch.ones(4, dtype=torch.float64))
    off = (probs - truth) / (error * math.sqrt(20_000 / 256))
    assert off.square().mean() < 1, "as by 256 random points"
    assert (off[truth > 0.01].abs() < 4).all()
    torch.testing.assert_close(link.expected_entropy(x), entropy, rtol=0.01, atol=2e-3)
    ours = divergence(probs)
    monkeypatch.setattr(expectations, "MANY", 3000)
    assert ours < divergence(link(x).probs), "with a point for every class"


@pytest.mark.parametrize("classes", [MANY + 1, 50_000])
def test_many_classes_without_variance_are_as_they_are(classes):
    x = many(classes, rows=2)
    x = vp.Moments(x.mean, torch.zeros_like(x.var))
    torch.testing.assert_close(vp.links.Softmax()(x).probs, x.mean.softmax(-1), rtol=1e-10, atol=1e-300)
    target = torch.tensor([7, 11])
    torch.testing.assert_close(
        vp.links.Softmax().loss(x, target), torch.nn.functional.cross_entropy(x.mean, target, reduction="none")
    )


@pytest.mark.parametrize("var", [9.0, 30.0])
def test_wide_gaussians_of_many_classes_are_sampled_throughout(monkeypatch, var):
    """There the others' sum is no constant, and their entropy not that of their means."""
    x, link = many(3000, var=var), vp.links.Softmax()
    _, _, entropy = by_sampling(x)
    probs, found, loss = link(x).probs, link.expected_entropy(x), link.loss(x, torch.arange(4))
    torch.testing.assert_close(found, entropy, rtol=0.05, atol=0.05)
    monkeypatch.setattr(expectations, "MANY", 3000)
    torch.testing.assert_close(probs, link(x).probs)
    torch.testing.assert_close(loss, link.loss(x, torch.arange(4)))
    torch.testing.assert_close(found, link.expected_entropy(x))


@pytest.mark.parametrize("viable", [20, LEADING + 1, 2000])
@pytest.mark.parametrize("var", [1.0, 9.0])
def test_of_many_classes_some_are_ruled_out(viable, var):
    mean = torch.full((2, 3000), -1e4, dtype=torch.float64)
    mean[:, :viable] = 0.1 * torch.randn(2, viable, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = vp.Moments(mean, torch.full_like(mean, var))
    truth, error, entropy = by_sampling(x)
    found = vp.links.Softmax()(x)
    off = (found.probs - truth)[:, :viable] / (error * math.sqrt(20_000 / 256))[:, :viable]
    assert off.square().mean() < 1
    assert found.probs[:, viable:].sum() == 0
    torch.testing.assert_close(vp.links.Softmax().expected_entropy(x), entropy, rtol=0.05, atol=0.05)


def test_wide_and_narrow_gaussians_in_one_batch():
    narrow, wide, link = many(3000, rows=5), many(3000, rows=5, var=30.0), vp.links.Softmax()
    mixed = vp.Moments(*(torch.stack([a, b], 1) for a, b in zip(narrow, wide, strict=True)))
    target = torch.arange(10).view(5, 2)
    for quantity in (lambda x, y: link(x).probs, link.loss, lambda x, y: link.expected_entropy(x)):
        apart = torch.stack([quantity(narrow, target[:, 0]), quantity(wide, target[:, 1])], 1)
        torch.testing.assert_close(quantity(mixed, target), apart)


@pytest.mark.parametrize("classes", [10, 3000])
def test_no_examples(classes):
    x, link = vp.Moments(torch.zeros(0, classes), torch.ones(0, classes)), vp.links.Softmax()
    assert link(x).probs.shape == (0, classes)
    assert link.loss(x, torch.zeros(0, dtype=torch.long)).shape == (0,)
    assert link.expected_entropy(x).shape == (0,)


def test_the_order_of_many_classes_makes_no_difference():
    x, order = many(3000), torch.randperm(3000)
    shuffled = vp.links.Softmax()(vp.Moments(x.mean[:, order], x.var[:, order])).probs
    torch.testing.assert_close(shuffled, vp.links.Softmax()(x).probs[:, order])


def test_the_loss_of_many_classes_is_that_of_the_probabilities():
    x, link = many(3000, rows=6), vp.links.Softmax()
    leading = Condensed.of(x).others[0]
    assert leading.shape == (6, LEADING)
    rest = [next(i for i in range(3000) if i not in row) for row in leading[3:].tolist()]
    target = torch.tensor([*leading[:3, 5].tolist(), *rest])
    expected = -link(x).probs.gather(-1, target[:, None]).squeeze(-1).log()
    torch.testing.assert_close(link.loss(x, target), expected)
    target[1] = -100
    torch.testing.assert_close(link.loss(x, target), torch.where(torch.arange(6) == 1, 0.0, expected))
    whole = vp.Moments(x.mean.view(2, 3, -1), x.var.view(2, 3, -1))
    torch.testing.assert_close(link(whole).probs.view(6, -1), link(x).probs)
    torch.testing.assert_close(link.expected_entropy(whole).view(6), link.expected_entropy(x))


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_the_loss_of_many_classes_has_the_right_gradient(monkeypatch, spread):
    monkeypatch.setattr(expectations, "STEADY", math.inf)
    monkeypatch.setattr(expectations, "MANY", 5)
    monkeypatch.setattr(expectations, "LEADING", 3)
    mean, var = (t.detach().requires_grad_() for t in logits(rows=4, classes=9, spread=spread))
    target = torch.tensor([0, 3, 5, 8])
    link = vp.links.Softmax(16)
    assert torch.autograd.gradcheck(lambda m, v: link.loss(vp.Moments(m, v), target).sum(), (mean, var))
    flat = torch.zeros(4, 9, dtype=torch.float64, requires_grad=True)
    link.loss(vp.Moments(mean, flat), target).sum().backward()
    assert flat.grad.isfinite().all()


def test_predicting_in_inference_mode_first():
    """What is kept for later calls can be used where gradients are needed."""
    x = logits(rows=2, classes=17, dtype=torch.float32)
    link = vp.links.Softmax(19)  # a size no other test has made points for
    with torch.inference_mode():
        link(x)
    var = x.var.clone().requires_grad_()
    link.loss(vp.Moments(x.mean, var), torch.tensor([0, 1])).sum().backward()
    assert bool(var.grad.isfinite().all())


def test_work_is_bounded(monkeypatch):
    """Many classes: the largest tensor ever made stays within the budget, and the result is that of one piece."""
    x = logits(rows=5, classes=40, dtype=torch.float32)
    target = torch.arange(5)
    link = vp.links.Softmax(64)
    whole, loss, entropy = link(x).probs, link.loss(x, target), link.expected_entropy(x)
    monkeypatch.setattr(expectations, "BUDGET", 1000)  # less than one row of samples
    sizes = []
    original = expectations.sampled
    monkeypatch.setattr(module, "sampled", lambda *args: sizes.append((out := original(*args)).numel()) or out)
    torch.testing.assert_close(link(x).probs, whole)
    torch.testing.assert_close(link.loss(x, target), loss)
    torch.testing.assert_close(link.expected_entropy(x), entropy)
    assert max(sizes) <= 1000


@pytest.mark.parametrize("link", [vp.links.Softmax(), vp.links.Sigmoid()], ids=str)
def test_an_example_alone_or_in_any_batch(link):
    x = logits(rows=33, dtype=torch.float32)
    together = link(x).probs
    assert torch.equal(together, link(x).probs)
    for row in (0, 7, 32):
        alone = link(vp.Moments(x.mean[row : row + 1], x.var[row : row + 1])).probs
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-5)


def test_leading_dimensions():
    x = vp.Moments(torch.randn(2, 3, 4), torch.rand(2, 3, 4))
    flat = vp.Moments(x.mean.view(6, 4), x.var.view(6, 4))
    target = torch.randint(0, 4, (2, 3))
    link = vp.links.Softmax(32)
    torch.testing.assert_close(link(x).probs.view(6, 4), link(flat).probs)
    torch.testing.assert_close(link.loss(x, target).view(6), link.loss(flat, target.view(6)))
    assert link(x).label.shape == (2, 3)


def test_average_is_taken_after_the_softmax():
    draws = torch.randn(5, 3, 4)
    prediction = vp.links.Softmax().average(draws)
    torch.testing.assert_close(prediction.probs, draws.softmax(-1).mean(0))
    torch.testing.assert_close(prediction.logits.mean, draws.mean(0))
    torch.testing.assert_close(prediction.logits.var, draws.var(0))


def test_regression_intervals():
    outputs = vp.Moments(torch.tensor([1.0, 2.0]), torch.tensor([0.25, 3.25]))
    prediction = vp.links.Gaussian(noise_std=0.75**0.5)(outputs)
    low, high = prediction.interval(0.95)
    torch.testing.assert_close(high - prediction.mean, 1.959964 * torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(prediction.mean - low, high - prediction.mean)
    assert prediction.confidence[0] > prediction.confidence[1]
    loss = vp.links.Gaussian(0.75**0.5).loss(prediction.logits, torch.tensor([0.0, 2.5]))
    expected = -stats.norm.logpdf([0.0, 2.5], [1.0, 2.0], [1.0, 2.0])
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float32))


def test_bfloat16_logits_are_handled_in_float32():
    x = logits(dtype=torch.float32)
    coarse = vp.Moments(x.mean.bfloat16(), x.var.bfloat16())
    assert vp.links.Softmax()(coarse).probs.dtype == torch.float32
    averaged = vp.links.Softmax().average([coarse.mean]).probs
    torch.testing.assert_close(averaged, coarse.mean.float().softmax(-1))


@pytest.mark.parametrize(
    ("link", "target", "message"),
    [
        (vp.links.Softmax(), torch.zeros(6, 1, dtype=torch.long), "squeeze"),
        (vp.links.Softmax(), torch.full((6,), 5), "labels from 5 to 5 for 5 classes: classes are counted from 0"),
        (vp.links.Softmax(), torch.full((6,), -1), "labels from -1"),
        (vp.links.Softmax(), torch.rand(6, 5), r"class indices .* link=vp.links.Gaussian\(\), .*Sigmoid\(\)"),
        (vp.links.Softmax(), torch.zeros(4, dtype=torch.long), r"shape \[4\]"),
        (vp.links.Sigmoid(), torch.zeros(6, dtype=torch.long), r"every answer. Class indices need .*Softmax\(\)"),
        (vp.links.Sigmoid(), torch.full((6, 5), 2.0), r"\[0, 1\]"),
        (vp.links.Gaussian(0.1), torch.zeros(6, 1), "shape"),
    ],
)
def test_wrong_labels(link, target, message):
    with pytest.raises(InputError, match=message):
        link.loss(logits(), target)


def test_one_logit():
    x = vp.Moments(torch.tensor([[2.0], [-1.0]]), torch.full((2, 1), 0.5))
    with pytest.raises(OutputError, match="Sigmoid"):
        vp.links.Softmax()(x)
    prediction = vp.links.Sigmoid()(x)
    assert prediction.label.tolist() == [1, 0]
    torch.testing.assert_close(prediction.confidence, torch.maximum(prediction.probs, 1 - prediction.probs)[:, 0])
    assert prediction.correctness(torch.tensor([1, 1])).tolist() == [1, 0]
    assert prediction.correctness(torch.tensor([[1], [1]])).tolist() == [1, 0]
    torch.testing.assert_close(
        vp.links.Sigmoid().loss(x, torch.tensor([1, 1])), vp.links.Sigmoid().loss(x, torch.ones(2, 1))
    )


def test_correctness_of_scores():
    prediction = vp.links.Sigmoid()(vp.Moments(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 2)))
    scores = torch.tensor([[0.6, 1.0], [0.3, 0.9]])
    torch.testing.assert_close(prediction.correctness(scores), torch.tensor([0.6, 0.9]))
    with pytest.raises(InputError, match="class indices"):
        prediction.correctness(torch.zeros(2, 1, dtype=torch.long))


def test_logits_that_are_not_finite():
    x = logits()
    x.mean[2, 1] = math.nan
    x.var[4, 0] = math.inf
    with pytest.raises(OutputError, match="2 of 6 examples"):
        vp.links.Softmax()(x)


def test_gaussian_without_any_variance():
    with pytest.raises(InputError, match="noise"):
        vp.links.Gaussian().loss(vp.Moments(torch.ones(2), torch.zeros(2)), torch.ones(2))
    with pytest.raises(InputError, match="standard deviation"):
        vp.links.Gaussian(-1.0)


def test_scores_of_strangeness():
    """Mutual information against its definition by brute force; the others by their formulas."""
    x = logits(rows=4, classes=3)
    prediction = vp.links.Softmax(1 << 14)(x)
    truth, _, draws = brute_force(x)
    expected = torch.special.entr(truth).sum(-1) - torch.special.entr(draws).sum(-1).mean(0)
    torch.testing.assert_close(vp.scores.mutual_information(prediction), expected, rtol=0.02, atol=1e-3)
    torch.testing.assert_close(vp.scores.total_variance(prediction), x.var.sum(-1))
    torch.testing.assert_close(vp.scores.max_probability(prediction), 1 - prediction.probs.amax(-1))
    certain = vp.links.Softmax()(vp.Moments(x.mean, torch.zeros_like(x.var)))
    assert vp.scores.mutual_information(certain).max() < 1e-6
    torch.testing.assert_close(vp.scores.entropy(certain), torch.special.entr(x.mean.softmax(-1)).sum(-1))


def test_mutual_information_of_a_sigmoid():
    x = logits(rows=4, classes=3)
    draws = x.sample(400_000, torch.Generator().manual_seed(1)).sigmoid()
    binary = lambda p: torch.special.entr(p) + torch.special.entr(1 - p)  # noqa: E731
    expected = (binary(draws.mean(0)) - binary(draws).mean(0)).sum(-1)
    torch.testing.assert_close(vp.scores.mutual_information(vp.links.Sigmoid()(x)), expected, rtol=0.02, atol=1e-3)


def test_more_points_than_memory_holds():
    logits = vp.Moments(torch.zeros(1, 2000), torch.ones(1, 2000))
    with pytest.raises(InputError, match="1000000 points for 2000 classes are more than .*: take fewer samples"):
        vp.links.Softmax(samples=1_000_000)(logits)


def log_mean_sigmoid(mean, var):
    """By mpmath, split around the peak of the integrand."""
    std = mpmath.sqrt(var)
    peak = min(std, max(0, -mean / std))
    cuts = [peak + sign * far for far in (0, 0.02, 0.2, 1, 5, 40) for sign in (-1, 1)]
    with mpmath.workdps(30):  # comes with torch, by way of sympy
        return float(
            mpmath.log(mpmath.quad(lambda z: mpmath.npdf(z) / (1 + mpmath.exp(-mean - std * z)), sorted(cuts)))
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_of_a_sigmoid_is_right_in_any_tail(dtype):
    pairs = [(m, v) for m in (-1e4, -200.0, -40.0, -3.0) for v in (1e-4, 1.0, 100.0, 1e4)]
    mean, var = torch.tensor(pairs, dtype=dtype).T[:, :, None]
    mean.requires_grad_()
    loss = vp.links.Sigmoid().loss(vp.Moments(mean, var), torch.ones_like(mean))
    expected = torch.tensor([-log_mean_sigmoid(*pair) for pair in pairs], dtype=dtype)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    (gradient,) = torch.autograd.grad(loss.sum(), mean)
    assert gradient.isfinite().all()
    assert (gradient < 0).all()
