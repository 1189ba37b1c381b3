"""ECE and ACE by hand, at bin edges and with ties."""

import itertools

import pytest
import torch

from varprop.metrics import ace, ece


def tensors(*rows):
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def test_ece_by_hand():
    """Two bins: |0.3 + 0.4 − 1| and |0.6 + 0.8 + 1 − 2|, over five examples."""
    confidence, correctness = tensors([0.3, 0.6, 0.4, 0.8, 1.0], [0, 1, 1, 0, 1])
    assert float(ece(confidence, correctness, bins=2)) == pytest.approx((0.3 + 0.4) / 5, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [2, 3, 10, 15, 20])
def test_an_edge_opens_its_bin_in_every_dtype(bins, dtype):
    """k/bins, and the number just below it, fall into different bins: gaps of opposite sign do not cancel."""
    for k in range(1, bins):
        edge = torch.tensor(k / bins, dtype=torch.float64).to(dtype)
        below = torch.nextafter(edge.float(), torch.zeros(())) if dtype != torch.float64 else edge.nextafter(edge * 0)
        if dtype in (torch.float16, torch.bfloat16):  # nextafter does not know them
            bits = edge.view(torch.int16) - 1
            below = bits.view(dtype)
        confidence = torch.stack([edge, below.to(dtype)])
        separate = float(ece(confidence, torch.tensor([0, 1]), bins))
        expected = (float(edge) + 1 - float(below)) / 2
        assert separate == pytest.approx(expected, rel=1e-12)


def test_one_bin_is_the_mean_gap():
    confidence, correctness = tensors([0.1, 0.9, 1.0], [0, 1, 0])
    expected = abs(2.0 - 1) / 3
    assert float(ece(confidence, correctness, bins=1)) == pytest.approx(expected)
    assert float(ace(confidence, correctness, bins=1)) == pytest.approx(expected)


def test_ace_by_hand():
    """Bins {0.1, 0.2} and {0.7, 0.9}."""
    confidence, correctness = tensors([0.9, 0.1, 0.7, 0.2], [1, 0, 0, 1])
    assert float(ace(confidence, correctness, bins=2)) == pytest.approx((abs(0.3 - 1) + abs(1.6 - 1)) / 4, rel=1e-14)


def test_ace_gives_the_remainder_to_the_lowest_bins():
    """Five examples in two bins: three and two."""
    confidence, correctness = tensors([0.1, 0.2, 0.3, 0.6, 0.7], [0, 0, 1, 1, 1])
    assert float(ace(confidence, correctness, bins=2)) == pytest.approx((abs(0.6 - 1) + abs(1.3 - 2)) / 5, rel=1e-14)


def test_ace_with_more_bins_than_examples_is_the_mean_absolute_gap():
    confidence, correctness = tensors([0.1, 0.7], [1, 1])
    assert float(ace(confidence, correctness, bins=15)) == pytest.approx((0.9 + 0.3) / 2, rel=1e-14)


def test_ace_shares_correctness_within_a_tie():
    """The tie of 0.5 spans both bins; each of its three members counts as ⅓ correct."""
    confidence, correctness = tensors([0.1, 0.5, 0.5, 0.5], [0, 1, 0, 0])
    expected = (abs(0.1 + 0.5 - 1 / 3) + abs(1.0 - 2 / 3)) / 4
    for order in itertools.permutations(range(4)):
        assert float(ace(confidence[[*order]], correctness[[*order]], bins=2)) == pytest.approx(expected, rel=1e-14)


def test_perfect_calibration():
    confidence, correctness = tensors([0.25] * 4 + [0.75] * 4, [1, 0, 0, 0, 1, 1, 1, 0])
    assert float(ece(confidence, correctness)) == 0
    assert float(ace(confidence, correctness, bins=2)) == 0
