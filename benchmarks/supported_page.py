"""The page of supported models, written from stored rows."""

from __future__ import annotations

import math
import statistics
from typing import Any

from tabulate import tabulate

Row = dict[str, Any]


def page(rows: list[Row], full: list[Row], samples: int, width: float, many: int, wide: float) -> str:
    """From the rows of ``architectures.py`` and of ``full_size.py``, and what the former were measured with."""
    tried = [row for row in rows if row["works"] is not None]
    good = [row for row in tried if row["works"]]
    cells = [
        (
            row["name"].partition(":")[2],
            row["name"].partition(":")[0].partition(".")[0],
            f"{row['parameters'] / 1e6:.1f}" if "parameters" in row else "",
            row.get("ops", ""),
            f"{row['capture']:.0f}" if "capture" in row else "",
            f"{row['ratio']:.2f}" if row["works"] else "",
            " / ".join(f"{error:.2f}" for error in row.get("mean_errors", ())),
            _approximate(row) if row["works"] else row["reason"].replace("|", "\\|"),
        )
        for row in sorted(tried, key=lambda row: (row["name"].partition(":")[0], row["name"].lower()))
    ]
    header = (
        "model",
        "library",
        "parameters, M",
        "ops",
        "capture, s",
        "sd ratio",
        "mean errors",
        "approximate, or why not",
    )
    middle = statistics.median(row["ratio"] for row in good)
    means = [row["mean_errors"] for row in good if "mean_errors" in row]
    nearer = sum(found < plain for found, plain in means)
    share = 100 * len(good) // len(tried)
    return f"""# Supported models

{len(good)} of {len(tried)} architectures propagate unmodified ({share}%). The table is written by
`benchmarks/architectures.py`; models have random weights, and those of transformers are built small.

- `sd ratio` is the median over outputs of the propagated standard deviation over that of {samples} sampled networks, at
  a standard deviation of {width:g} of each tensor's root mean square. Its median over models is {middle:.2f}. Noise
  that is shared and taken as independent makes it smaller or larger than 1.
- `mean errors` are those of the propagated mean and of the plain network's, against the mean of {many} sampled networks
  at a standard deviation of {wide:g} of the root mean square, in standard deviations of the samples, whose own error
  is {1 / math.sqrt(many):.2f}. Measured for {len(means)} models, the propagated mean is the nearer one for {nearer}.
- `capture` is wall-clock time, on machines that were doing other work as well.
- The last column names the ops whose rule is an approximation even for independent inputs, or says why a model fails.

{tabulate(cells, header, tablefmt="github", disable_numparse=True)}
{_full_size(full)}"""


def _full_size(rows: list[Row]) -> str:
    if not rows:
        return ""
    cells = [
        (
            row["name"].partition(":")[2],
            row["name"].partition(":")[0],
            row["dtype"],
            f"{row['parameters'] / 1e6:.0f}",
            *(f"{row[key]:.1f}" if key in row else "" for key in ("capture", "plain", "pass", "memory")),
            f"{row['error']:.0e}",
        )
        for row in rows
    ]
    header = ("model", "library", "dtype", "parameters, M", "capture, s", "plain, s", "pass, s", "memory, GiB", "error")
    return f"""
## At full size

By `benchmarks/full_size.py`, on one thread of a CPU: all weights random (a tenth of their root mean square), a batch of
two and then of three with the same graph (ViLT, which reads values of its inputs, takes two), mean and variance finite.
`plain` and `pass` are CPU seconds of one pass of the model and of its network; `memory` is the peak of the whole
process, with model, posterior and network in it; `error` is how far the mean at zero variance is from the model's
output, relative to its largest entry.

{tabulate(cells, header, tablefmt="github", disable_numparse=True)}
"""


def _approximate(row: Row) -> str:
    return ", ".join(sorted({op.removeprefix("aten.").partition(".")[0] for op in row["approximate"]}))
