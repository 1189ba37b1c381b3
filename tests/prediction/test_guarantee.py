"""The guarantee holds in simulation, its p-values are by hand, and it does not cost more coverage than it must."""

import math

import numpy
import pytest
import torch
from scipy.stats import beta, binom

from varprop.errors import GuaranteeError, MetricError
from varprop.prediction.guarantee import guarantee, p_value, upper_bound

RISK, LEVEL = 0.05, 0.95


class World:
    """Confidence c uniform on [0, 1], error rate base + slope (1 − c)² + top [c > 0.9], known in closed form.

    ``grid`` rounds confidences down to multiples of 1/grid, which makes ties. ``soft`` makes an error 1 with
    probability 0.8 rate and 0.4 with probability 0.5 rate.
    """

    def __init__(self, base=0.0, slope=0.0, top=0.0, grid=None, soft=False):
        self.base, self.slope, self.top, self.grid, self.soft = base, slope, top, grid, soft

    def draw(self, examples, seed):
        generator = torch.Generator().manual_seed(seed)
        c, noise = torch.rand(2, examples, generator=generator, dtype=torch.float64)
        rate = self.base + self.slope * (1 - c) ** 2 + self.top * (c > 0.9)
        errors = (noise < rate).double()
        if self.soft:
            errors = 0.6 * (noise < 0.8 * rate).double() + 0.4 * (noise < 1.3 * rate).double()
        return c if self.grid is None else (c * self.grid).floor() / self.grid, 1 - errors

    def risk(self, threshold):
        """The true risk of answering if confidence ≥ threshold."""
        t = max(0.0, threshold)
        if self.grid is not None:
            t = math.ceil(t * self.grid - 1e-9) / self.grid
        covered = 1 - t
        return self.base + self.slope * covered**2 / 3 + self.top * min(covered, 0.1) / covered

    def coverage(self, risk):
        """The largest coverage whose true risk is at most ``risk``."""
        return max((1 - t for t in numpy.arange(0, 1, 1e-4) if self.risk(t) <= risk), default=0.0)


WORLDS = {
    "informative": World(slope=0.6),
    "uninformative, just too risky": World(base=RISK * 1.0001),
    "informative, soft": World(slope=0.5, soft=True),
    "uninformative, just too risky, soft": World(base=RISK * 1.0001, soft=True),
}
ODD_WORLDS = {
    "ties": World(slope=0.6, grid=10),
    "ties, just too risky": World(base=RISK * 1.0001, grid=5),
    "ties, soft": World(slope=0.5, grid=10, soft=True),
    "worst where most confident": World(slope=0.3, top=0.1),
    "worst where most confident, ties": World(slope=0.3, top=0.1, grid=20),
}


def choose(world, examples, seed):
    try:
        return guarantee(*world.draw(examples, seed), RISK, LEVEL).threshold
    except GuaranteeError:
        return None


def violations(world, chosen):
    return sum(threshold is not None and world.risk(threshold) > RISK for threshold in chosen)


@pytest.mark.second
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_the_true_risk_exceeds_the_target_in_at_most_five_percent_of_draws(world):
    chosen = [choose(world, 800, seed) for seed in range(1000)]
    assert violations(world, chosen) <= binom.ppf(0.999, 1000, 1 - LEVEL)


@pytest.mark.second
@pytest.mark.parametrize("world", ODD_WORLDS.values(), ids=ODD_WORLDS)
def test_ties_and_risks_that_do_not_fall_with_the_confidence(world):
    chosen = [choose(world, 800, seed) for seed in range(300)]
    assert violations(world, chosen) <= binom.ppf(0.999, 300, 1 - LEVEL)


@pytest.mark.second
def test_taking_the_best_threshold_uncorrected_would_not_pass_that_test():
    world = WORLDS["uninformative, just too risky"]
    broken = 0
    for seed in range(1000):
        confidence, correctness = world.draw(800, seed)
        errors = (1 - correctness)[confidence.argsort(descending=True)].cumsum(0)
        broken += bool((binom.cdf(errors, numpy.arange(1, 801), RISK) <= 1 - LEVEL).any())
    assert broken > 2 * binom.ppf(0.999, 1000, 1 - LEVEL)


@pytest.mark.second
@pytest.mark.parametrize(
    ("world", "examples", "fraction"),
    [
        (World(slope=0.6), 5_000, 0.8),
        (World(slope=0.6), 100_000, 0.95),
        (World(slope=0.5, soft=True), 5_000, 0.7),
        (World(slope=0.5, soft=True), 100_000, 0.9),
        (World(slope=0.3, top=0.06), 50_000, 0.85),
        (World(base=0.03), 5_000, 0.99),
    ],
)
def test_coverage_is_close_to_the_best_possible(world, examples, fraction):
    draws = [guarantee(*world.draw(examples, seed), RISK, LEVEL).coverage for seed in range(20)]
    assert sum(draws) / len(draws) >= fraction * world.coverage(RISK)


def test_more_examples_and_lower_levels_cover_more():
    world = World(slope=0.6)
    assert guarantee(*world.draw(50_000, 0), RISK).coverage > guarantee(*world.draw(1_000, 0), RISK).coverage
    data = world.draw(5_000, 0)
    assert guarantee(*data, RISK, 0.8).coverage > guarantee(*data, RISK, 0.999).coverage


@pytest.mark.parametrize(("errors", "examples"), [(0, 59), (3, 200), (49, 1000), (999, 1000), (5_000, 10**6)])
@pytest.mark.parametrize("alpha", [0.05, 1e-4])
def test_upper_bound_is_that_of_clopper_and_pearson(errors, examples, alpha):
    expected = beta.isf(alpha, errors + 1, examples - errors)
    assert upper_bound(errors, examples, alpha, soft=False) == pytest.approx(expected, rel=1e-9)


def test_soft_p_values_by_hand():
    """10 examples with 0.45 errors, rate 0.2: Hoeffding's is the smaller; with 59.5 in 400, rate 0.3, Bentkus'."""
    q = 0.045
    hoeffding = math.exp(-10 * (q * math.log(q / 0.2) + (1 - q) * math.log((1 - q) / 0.8)))
    assert hoeffding < math.e * binom.cdf(1, 10, 0.2)
    assert p_value(0.45, 10, 0.2, soft=True) == pytest.approx(hoeffding, rel=1e-12)
    assert p_value(59.5, 400, 0.3, soft=True) == pytest.approx(math.e * binom.cdf(60, 400, 0.3), rel=1e-9)


@pytest.mark.parametrize("soft", [False, True])
def test_p_values_where_nothing_can_be_said(soft):
    assert p_value([0, 5, 10], [0, 10, 10], 0.2, soft) == pytest.approx([1, 1, 1], abs=1e-2)


def test_the_fields():
    confidence, correctness = World(slope=0.6).draw(5_000, 3)
    found = guarantee(confidence, correctness, RISK, LEVEL)
    answered = confidence >= found.threshold
    assert found.answered == int(answered.sum())
    assert found.examples == 5_000
    assert found.coverage == found.answered / 5_000
    assert found.empirical_risk == pytest.approx(float(1 - correctness[answered].mean()))
    assert found.empirical_risk < found.bound <= found.risk == RISK
    assert found.level == LEVEL


def test_the_threshold_is_the_lowest_confidence_answered():
    confidence = torch.linspace(1, 0, 400, dtype=torch.float32)
    correctness = (confidence > 0.5).float()
    found = guarantee(confidence, correctness, RISK)
    assert 200 < found.answered < 400
    assert found.threshold == float(confidence[found.answered - 1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ties_are_never_split(dtype):
    """300 right at 0.9, then 100 at 0.5 of which a fifth are right: answering them would be too risky."""
    confidence = torch.tensor([0.9] * 300 + [0.5] * 100, dtype=dtype)
    correctness = torch.tensor([1.0] * 320 + [0.0] * 80)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    found = guarantee(confidence[order], correctness[order], RISK)
    assert found.answered == int((confidence >= found.threshold).sum()) == 300


def test_ties_may_be_all_there_is():
    """59 of 74 are tested, which is just enough at this risk without an error."""
    found = guarantee(torch.zeros(74), torch.ones(74), RISK)
    assert (found.threshold, found.coverage) == (-math.inf, 1)
    assert found.bound == pytest.approx(1 - 0.05 ** (1 / 59), rel=1e-9)
    with pytest.raises(GuaranteeError, match="at least 74 examples"):
        guarantee(torch.zeros(73), torch.ones(73), RISK)


def test_soft_errors_that_the_first_part_did_not_show_count_in_full():
    """Whichever one example is soft: if the thresholds were fixed without it, its error of 0.5 counts as 1."""
    bounds = set()
    for i in range(200):
        correctness = torch.ones(200)
        correctness[i] = 0.5
        bounds.add(round(guarantee(torch.zeros(200), correctness, RISK).bound, 6))
    full, part = upper_bound(1, 160, 0.05, soft=False), upper_bound(0, 160, 0.05, soft=True)
    assert bounds == {round(full, 6), round(part, 6)}


def test_zeros_and_ones_may_come_in_any_dtype():
    confidence, correctness = World(slope=0.6).draw(3_000, 2)
    expected = guarantee(confidence, correctness, RISK)
    for dtype in (torch.bool, torch.int64, torch.bfloat16):
        assert guarantee(confidence, correctness.to(dtype), RISK) == expected


def test_the_error_says_what_was_reached_and_what_is_needed():
    confidence = torch.linspace(1, 0, 500)
    wrong = torch.zeros(500, dtype=torch.bool)
    wrong[::10] = True
    with pytest.raises(GuaranteeError) as caught:
        guarantee(confidence, ~wrong, 0.01, 0.9)
    message = str(caught.value)
    assert "risk at or below 0.01 with probability 0.9" in message
    assert "most confident of 400 examples tested" in message
    assert "at least 288 examples" in message  # of which 230 are tested: 0.99^230 < 0.1 < 0.99^229
    bound = float(message.split("the bound is ")[1].split(",")[0])
    assert 0.05 < bound < 0.3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: guarantee(torch.rand(3), torch.ones(3), 0.0), "risk must lie strictly between 0 and 1"),
        (lambda: guarantee(torch.rand(3), torch.ones(3), 0.1, 1.0), "level must lie strictly between 0 and 1"),
        (lambda: guarantee(torch.empty(0), torch.empty(0), 0.1), "no examples"),
        (lambda: guarantee(torch.tensor([math.nan]), torch.ones(1), 0.1), "nan"),
        (lambda: guarantee(torch.rand(3), torch.ones(3, 1), 0.1), r"not \[3, 1\]"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(MetricError, match=message):
        call()
