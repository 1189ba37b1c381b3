"""scikit-learn's handwritten digits: 1,797 images of 8×8, in the package itself."""

from __future__ import annotations

import torch

from experiments.data.images import Images, Split
from varprop.errors import DataError

TEST = 597


def digits() -> Images:
    """In random but fixed order; the last third is the test set."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise DataError("the digits come with scikit-learn: pip install 'varprop[demo]'") from None
    data = load_digits()
    images = torch.tensor(data.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    whole = Split(images, torch.tensor(data.target))
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    return Images(
        "digits", whole.take(order[:-TEST]), whole.take(order[-TEST:]), tuple(str(digit) for digit in range(10))
    )
