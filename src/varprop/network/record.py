"""What a calibration found, kept with the network it made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """``nll`` is the cross-validated loss of each candidate, per held-out example; ``chosen`` is the one taken.

    ``width`` is the root of Σ var / Σ mean² over the random weights, ``noise_std`` the standard deviation of a
    regression's noise (``None`` if it was given or the outputs are classes), ``passes`` what it cost: passes over the
    examples that were kept, a backward pass counted as two.
    """

    chosen: str
    nll: dict[str, float]
    width: float
    noise_std: float | None
    examples: int
    converged: bool
    passes: float
