"""Trained networks of four blocks beside samples, module by module: no change may make them worse than the table."""

import math

import pytest

from tests.evaluation.composed import NETWORKS, SAMPLES, measure, pinned


def assert_no_worse(name, samples):
    noise = 1 / math.sqrt(samples) + 1 / math.sqrt(SAMPLES)  # of this measurement and of the table's
    found = measure(name, samples)
    assert [row.module for row in found] == [row.module for row in pinned(name)]
    for row, old in zip(found, pinned(name), strict=True):
        # A sampled standard deviation is off by 1/√(2 samples), and entries that share noise do not average it out.
        assert abs(math.log(row.ratio)) < abs(math.log(old.ratio)) + 4 * noise, (row, old)
        assert row.mean_error < old.mean_error + 4 * noise, (row, old)
    return found


@pytest.mark.second
def test_a_trained_unet_is_as_near_to_samples_as_it_was():
    assert_no_worse("U-Net", 300)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_trained_network_is_as_near_to_samples_as_it_was(name):
    output = assert_no_worse(name, SAMPLES)[-1]
    assert output.mean_error < output.plain_error, "the plain network's mean is nearer"
