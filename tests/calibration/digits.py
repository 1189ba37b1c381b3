"""A small vision transformer on scikit-learn's digits with an IVON posterior, and data it has not seen."""

import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import varprop as vp

# By its path: an installed package may be called examples, too.
_SPEC = importlib.util.spec_from_file_location(
    "train_digits", Path(__file__).parents[2] / "examples" / "train_digits.py"
)
train_digits = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(train_digits)


class Digits(NamedTuple):
    model: nn.Module
    posterior: vp.Posterior
    held_out: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@functools.cache
def trained(seed: int = 0) -> Digits:
    """Trained on few images, so that there is something to be unsure about. The images are the same for every seed."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    seen, held_out, test = order.split([400, 600, 797])
    torch.manual_seed(seed)
    model = train_digits.ViT(width=32)
    optimizer = train_digits.train(model, images[seen], labels[seen], epochs=25, ess=1e4)
    posterior = vp.Posterior.from_ivon(model.eval(), optimizer)
    return Digits(model, posterior, (images[held_out], labels[held_out]), (images[test], labels[test]))
