"""Random networks: what must hold for every one of them.

A long run is split among processes, each with a seed of its own. 2,016 networks on 16 cores, by three tests of 42:

    seq 16 | VARPROP_FUZZ=42 OMP_NUM_THREADS=1 xargs -P 16 -I{} env VARPROP_FUZZ_SEED={} pytest -n 0 -m second FILE
"""

import os
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import varprop as vp
from tests.models import posterior_of
from tests.network.programs import TOKENS, WIDTH, Program, programs

pytestmark = pytest.mark.second

EXAMPLES = int(os.environ.get("VARPROP_FUZZ", "8"))
SEED = os.environ.get("VARPROP_FUZZ_SEED")


def fuzz(test: Callable[..., None]) -> Callable[..., None]:
    """Give a test random networks: always the same few, or as many others as are asked for."""
    quiet = settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=SEED is None and EXAMPLES <= 8,
        database=None,
    )
    given_test = quiet(given(programs(), st.integers(0, 1000))(test))
    return given_test if SEED is None else seed(int(SEED))(given_test)


def inputs(number: int, batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, TOKENS, WIDTH, generator=torch.Generator().manual_seed(number))


@fuzz
def test_what_holds_for_every_network(model: Program, number: int) -> None:
    x = inputs(number)
    with torch.no_grad():
        plain = model(x)
    scale = 1e-5 * max(1.0, float(plain.abs().max()))

    still = vp.propagate(model, posterior_of(model, 0.0))(x)
    torch.testing.assert_close(still.mean, plain, rtol=1e-4, atol=scale)
    assert not bool(still.var.any()), "variance out of nothing"

    net = vp.propagate(model, posterior_of(model, 1e-3))
    found = net(x)
    assert found.mean.shape == found.var.shape == plain.shape
    assert bool(found.mean.isfinite().all())
    assert bool((found.var > 0).all()), "the head alone gives every output a variance"

    alone = net(x[:1])
    torch.testing.assert_close(alone.mean, found.mean[:1], rtol=1e-4, atol=scale)
    torch.testing.assert_close(alone.var, found.var[:1], rtol=1e-4, atol=1e-9)

    streamlined = vp.propagate(model, posterior_of(model, 1e-3), rules=vp.STREAMLINING)(x)
    torch.testing.assert_close(streamlined.mean, plain, rtol=1e-4, atol=scale)


@fuzz
def test_one_random_layer_at_the_end_agrees_with_the_delta_method(model: Program, number: int) -> None:
    """Where nothing mixes entries after the noise, small variances are those of the Jacobian: J² Σ."""
    x = inputs(number)
    var = 1e-8
    posterior = posterior_of(model, var).restrict("head")
    found = vp.propagate(model, posterior, rules=vp.STREAMLINING)(x)
    weights = {name: weight.detach() for name, weight in model.named_parameters() if name.startswith("head")}
    jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(model, w, (x,)))(weights)
    expected = sum(j.square().flatten(found.var.ndim).sum(-1) for j in jacobian.values()) * var
    torch.testing.assert_close(found.var, expected, rtol=1e-3, atol=1e-14)


@fuzz
def test_variance_is_of_the_size_that_samples_have(model: Program, number: int) -> None:
    """Dependence is neglected, so no more than the order of magnitude can be asked for."""
    x = inputs(number)
    posterior = posterior_of(model, 1e-4)
    found = vp.propagate(model, posterior)(x).var.mean()
    draws = torch.stack(list(vp.MonteCarlo(model, posterior, samples=64, at_once=64).draws(x)))
    assert 0.02 < float(found / draws.var(0).mean()) < 20
