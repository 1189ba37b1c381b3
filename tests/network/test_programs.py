"""Random networks: what must hold for every one of them.

A long run is split among processes, each with a seed of its own. 2,080 networks on 16 cores, by three tests of 40 and
one of 10:

    seq 16 | VARPROP_FUZZ=40 OMP_NUM_THREADS=1 xargs -P 16 -I{} env VARPROP_FUZZ_SEED={} pytest -n 0 -m second FILE
"""

import os
import tempfile
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import varprop as vp
from tests.models import posterior_of
from tests.network.programs import TOKENS, WIDTH, Program, programs, trees
from varprop.calibration.widths import PosteriorWidth
from varprop.graph.output import select_output
from varprop.prediction.monte_carlo import exchanged, places_of

pytestmark = [pytest.mark.second, pytest.mark.filterwarnings("ignore:.* cannot be captured with free sizes")]

EXAMPLES = int(os.environ.get("VARPROP_FUZZ", "8"))
SEED = os.environ.get("VARPROP_FUZZ_SEED")


def fuzz(networks: st.SearchStrategy[Program], share: int = 1) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a test random networks: always the same few, or as many others as are asked for."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        quiet = settings(
            max_examples=max(2, EXAMPLES // share),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=SEED is None and EXAMPLES <= 8,
            database=None,
            phases=(Phase.generate,),  # programs are short: to shrink them would take longer than to read them
        )
        given_test = quiet(given(networks, st.integers(0, 1000))(test))
        return given_test if SEED is None else seed(int(SEED))(given_test)

    return decorate


def inputs(model: Program, number: int, tokens: int = TOKENS, batch: int = 3) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(batch, tokens, WIDTH, generator=generator)
    return (x, torch.randn(batch, WIDTH, generator=generator)) if model.start == "two inputs" else (x,)


def outputs(model: Program, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The model may write to its inputs: it gets copies."""
    with torch.no_grad():
        return select_output(model(*(x.clone() for x in args)), None)


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(expected.abs().max())))


@fuzz(programs())
def test_what_holds_for_every_network(model: Program, number: int) -> None:
    x = inputs(model, number)
    plain, kept = outputs(model, x), [each.clone() for each in x]
    posterior = posterior_of(model, 1e-4)
    net = vp.propagate(model, posterior)
    found = net(*x)
    assert all(map(torch.equal, x, kept)), "the inputs were changed"
    assert found.mean.shape == found.var.shape == plain.shape
    assert bool(found.mean.isfinite().all())
    assert bool((found.var > 0).all()), "the head alone gives every output a variance"

    alone = net(*(each[:1] for each in x))
    assert_same(alone.mean, found.mean[:1])
    torch.testing.assert_close(alone.var, found.var[:1], rtol=1e-4, atol=1e-9)

    # Dependence is neglected, so no more than the order of magnitude can be asked for.
    draws = torch.stack([outputs(model, x) for _ in sampled(model, posterior, 64)])
    assert 0.02 < float(found.var.mean() / draws.var(0).mean()) < 20

    PosteriorWidth(net).set(0.0)
    still = net(*x)
    assert_same(still.mean, plain)
    assert not bool(still.var.any()), "variance out of nothing"


def sampled(model: Program, posterior: vp.Posterior, samples: int) -> Iterator[None]:
    """The model with the weights of each draw in turn."""
    for weights in vp.MonteCarlo(model, posterior, samples).weights():
        with exchanged(places_of(model), weights):
            yield


@fuzz(programs())
def test_streamlining_keeps_the_plain_mean_at_any_size(model: Program, number: int) -> None:
    net = vp.propagate(model, posterior_of(model, 1e-3), rules=vp.STREAMLINING)
    for tokens, batch in ((TOKENS, 2), (TOKENS + 1, 2), (TOKENS, 1)):
        x = inputs(model, number, tokens, batch)
        found, plain = net(*x), outputs(model, x)
        assert_same(found.mean, plain)
        assert found.var.shape == plain.shape
        assert bool((found.var > 0).all())


@fuzz(trees())
def test_variances_of_trees_are_those_of_the_delta_method(model: Program, number: int) -> None:
    """Where entries that share noise never meet, small variances are those of the whole network's Jacobian: J² Σ."""
    x = inputs(model, number)
    var = 1e-8
    posterior = posterior_of(model, var).restrict("head", "probe")
    found = vp.propagate(model, posterior, rules=vp.STREAMLINING)(*x)
    weights = {name: weight.detach() for name, weight in model.named_parameters() if name in posterior}
    call = lambda w: torch.func.functional_call(model, w, tuple(each.clone() for each in x))  # noqa: E731
    jacobian = torch.func.jacfwd(call)(weights)  # backwards, torch refuses what was written to in place
    expected = sum(j.square().flatten(found.var.ndim).sum(-1) for j in jacobian.values()) * var
    torch.testing.assert_close(found.var, expected, rtol=1e-3, atol=1e-14)


@fuzz(programs(), share=4)
def test_compiled_and_loaded_networks_are_the_same(model: Program, number: int) -> None:
    x = inputs(model, number)
    net = vp.propagate(model, posterior_of(model, 1e-3))
    found = net(*x)
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="eager")(*x)
    torch.testing.assert_close(tuple(compiled), tuple(found), rtol=1e-5, atol=1e-7)
    with tempfile.TemporaryDirectory() as folder:
        net.save_pretrained(folder)
        loaded = vp.MomentNet.from_pretrained(folder, model)
    assert all(map(torch.equal, loaded(*x), found))
