"""What the rows of VQAv2 have in common: which questions are trained on, held out and tested."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from experiments.data.illustrated import Illustrated, View
from experiments.data.labelled import in_some_groups
from experiments.data.vqav2 import SIZE, Asked, vqav2
from experiments.experiment import Sources, Splits

HELD_OUT = 0.1
"""Of the images of val2014: a share to calibrate on."""
Tokenized = Callable[[Path, Sequence[str]], dict[str, Tensor]]


def splits(
    weights: Callable[[Sources], Path], tokens: Tokenized, view: View, size: int | None = SIZE
) -> Callable[[Sources, int], Splits]:
    """Trained on train2014; of val2014 a tenth of the images is held out, and the questions about the others tested.

    The labels of the test part are not published, and the paper does not say how it divided the others: this division
    is ours. Questions without an answer in the vocabulary are left out of the training; those tested nobody gets right.
    """

    @functools.lru_cache(maxsize=1)
    def load(sources: Sources) -> Splits:
        folder = weights(sources)
        data = vqav2(sources.data, size)

        def examples(part: Asked) -> Illustrated:
            return Illustrated(tokens(folder, part.texts), part.paths, view, part.scores)

        train, val = examples(data.train), examples(data.val)
        held = in_some_groups(data.val.paths, HELD_OUT)
        return Splits(
            train.take((data.train.scores.values.sum(1) > 0).nonzero()[:, 0]),
            val.take(held.nonzero()[:, 0]),
            val.take((~held).nonzero()[:, 0]),
            data.answers,
        )

    return lambda sources, _: load(sources)
