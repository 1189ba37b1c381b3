"""Where Triton's kernels can be tested: on a GPU, or on a CPU in Triton's interpreter (``make test-kernels``)."""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
# The interpreter truncates to bfloat16 where a GPU rounds: twice the error.
DTYPES = ((torch.float32, 1e-5), (torch.bfloat16, 2e-2 if INTERPRETED else 1e-2))

GPU = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


def with_triton(test):
    """Skip the test where no kernel can run."""
    skip = pytest.mark.skipif(
        DEVICE == "cpu" and not INTERPRETED, reason="needs a GPU, or Triton's interpreter: make test-kernels"
    )
    # The interpreter computes both sides of tl.where with NumPy, and masked entries divide by zero.
    quiet = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
    return pytest.mark.triton(skip(quiet(test)))
