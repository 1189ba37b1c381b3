"""from_tensors, to, sample and the container itself."""

import copy
import pickle

import pytest
import torch

import varprop as vp
from varprop.errors import PosteriorError
from varprop.moments import Moments
from varprop.posterior import Posterior


def pair():
    mean = {"fc.weight": torch.tensor([[1.0, -2.0]]), "fc.bias": torch.tensor([0.5])}
    var = {"fc.weight": torch.tensor([[0.04, 0.25]]), "fc.bias": torch.tensor([0.0])}
    return mean, var


def message(mean, var):
    with pytest.raises(PosteriorError) as caught:
        Posterior.from_tensors(mean, var)
    return str(caught.value)


def test_it_is_a_mapping_of_names_to_moments():
    posterior = Posterior.from_tensors(*pair())
    assert len(posterior) == 2
    assert posterior.names == tuple(posterior) == ("fc.weight", "fc.bias")
    assert "fc.bias" in posterior
    assert "fc" not in posterior
    assert isinstance(posterior["fc.weight"], Moments)
    assert torch.equal(posterior.var["fc.weight"], posterior["fc.weight"].var)
    assert list(posterior.mean) == list(posterior.var) == list(posterior.names)


def test_it_cannot_be_changed():
    posterior = Posterior.from_tensors(*pair())
    with pytest.raises(TypeError):
        posterior["fc.bias"] = posterior["fc.weight"]
    with pytest.raises(AttributeError):
        posterior.mean = {}
    posterior.mean.clear()
    assert len(posterior) == len(posterior.mean) == 2


def test_tensors_are_copied_and_detached():
    model = torch.nn.Linear(2, 1)
    mean = dict(model.named_parameters())
    posterior = Posterior.from_tensors(mean, {name: torch.ones_like(p) for name, p in mean.items()})
    before = posterior["weight"].mean.clone()
    with torch.no_grad():
        model.weight.add_(1)
    assert torch.equal(posterior["weight"].mean, before)
    assert not posterior["weight"].mean.requires_grad
    assert not isinstance(posterior["weight"].mean, torch.nn.Parameter)
    assert not posterior["weight"].var.requires_grad


def test_an_expanded_variance_gets_memory_of_its_own():
    posterior = Posterior.from_tensors({"w": torch.zeros(3, 2)}, {"w": torch.tensor(0.5).expand(3, 2)})
    posterior["w"].var[0, 0] = 1
    assert posterior["w"].var.sum() == 3.5


def test_an_empty_posterior_is_legal():
    empty = Posterior.from_tensors({}, {})
    assert len(empty) == 0
    assert empty.sample() == {}
    assert empty.resolve(torch.nn.Linear(2, 1)) == {}
    assert repr(empty) == "<Posterior: 0 tensors, 0 entries>"


def test_repr():
    posterior = Posterior.from_tensors({"a": torch.zeros(2, 600)}, {"a": torch.full((2, 600), 0.04)})
    assert repr(posterior) == "<Posterior: 1 tensors, 1,200 entries, rms std 0.2>"


def test_equality_is_identity_and_never_an_error():
    posterior, other = Posterior.from_tensors(*pair()), Posterior.from_tensors(*pair())
    assert posterior != other
    assert other in [posterior, other]
    assert len({posterior, other}) == 2


def test_it_travels_to_other_processes():
    posterior = Posterior.from_tensors(*pair())
    for twin in (copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):  # noqa: S301
        assert torch.equal(twin["fc.weight"].mean, posterior["fc.weight"].mean)


def test_every_problem_is_listed_at_once():
    nan, inf = float("nan"), float("inf")
    mean = {
        "only_mean": torch.zeros(1),
        "shape": torch.zeros(2, 3),
        "dtype": torch.zeros(1),
        "device": torch.zeros(1),
        "integer": torch.zeros(1, dtype=torch.int64),
        "complex": torch.zeros(1, dtype=torch.complex64),
        "list": [0.0],
        "nan_mean": torch.tensor([nan, 0.0]),
        "inf_var": torch.zeros(2),
        "negative": torch.zeros(3),
        "sparse": torch.zeros(2).to_sparse(),
    }
    var = {name: torch.ones(1) for name in mean if name != "only_mean"} | {
        "only_var": torch.zeros(1),
        "shape": torch.zeros(3, 2),
        "dtype": torch.zeros(1, dtype=torch.float64),
        "device": torch.zeros(1, device="meta"),
        "nan_mean": torch.ones(2),
        "inf_var": torch.tensor([inf, nan]),
        "negative": torch.tensor([1.0, -0.5, -2.0]),
    }
    text = message(mean, var)
    for phrase in (
        "'only_mean' has a mean but no variance",
        "'only_var' has a variance but no mean",
        "'shape': the mean has shape (2, 3), the variance (3, 2)",
        "'dtype': the mean has dtype torch.float32, the variance torch.float64",
        "the variance of 'device' is on the meta device",
        "the mean of 'integer' is torch.int64, not floating point",
        "the mean of 'complex' is torch.complex64, not floating point",
        "the mean of 'list' is a list, not a tensor",
        "the mean of 'nan_mean' is NaN or infinite in 1 of 2 entries",
        "the variance of 'inf_var' is NaN or infinite in 2 of 2 entries",
        "the variance of 'negative' is negative in 2 of 3 entries (least -2); log-variances need .exp() first",
        "the mean of 'sparse' is torch.sparse_coo, not dense",
    ):
        assert phrase in text
    assert len(text.splitlines()) == 13


def test_arguments_must_be_mappings():
    assert "var must map parameter names to tensors, not be a list" in message({}, [torch.ones(1)])
    assert "the name 0 is not a string" in message({0: torch.ones(1)}, {0: torch.ones(1)})


def test_errors_are_value_errors():
    with pytest.raises(ValueError, match="no variance"):
        Posterior.from_tensors({"a": torch.ones(1)}, {})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_to_dtype(dtype):
    posterior = Posterior.from_tensors(*pair())
    moved = posterior.to(dtype=dtype)
    assert {t.dtype for p in moved.values() for t in p} == {dtype}
    assert posterior["fc.bias"].mean.dtype == torch.float32
    assert torch.allclose(moved["fc.weight"].var.float(), posterior["fc.weight"].var, rtol=1e-2)


def test_to_device():
    moved = Posterior.from_tensors(*pair()).to("meta")
    assert {t.device.type for p in moved.values() for t in p} == {"meta"}


def test_to_refuses_what_would_lose_the_posterior():
    tiny = Posterior.from_tensors({"w": torch.ones(3)}, {"w": torch.tensor([1e-9, 0.0, 1.0])})
    with pytest.raises(PosteriorError, match=r"torch.float16 cannot hold the posterior of 'w': 1 of 3 .*bfloat16"):
        tiny.to(dtype=torch.float16)
    with pytest.raises(PosteriorError, match="cannot be torch.int32"):
        tiny.to(dtype=torch.int32)
    with pytest.raises(PosteriorError, match=r"posterior.to\(dtype=torch.float64\)"):
        tiny.to(torch.float64)
    assert tiny.restrict("w").to(dtype=torch.bfloat16)["w"].var[0] > 0
    large = Posterior.from_tensors({"w": torch.ones(1)}, {"w": torch.ones(1)})
    assert large.to(dtype=torch.float16)["w"].var == 1


def test_sample_follows_the_seed_and_the_moments():
    shape = (200, 100)
    posterior = Posterior.from_tensors(
        {"a": torch.full(shape, 3.0), "b": torch.ones(2)}, {"a": torch.full(shape, 0.25), "b": torch.zeros(2)}
    )
    draw = posterior.sample(torch.Generator().manual_seed(0))
    again = posterior.sample(torch.Generator().manual_seed(0))
    other = posterior.sample(torch.Generator().manual_seed(1))
    assert list(draw) == ["a", "b"]
    assert torch.equal(draw["a"], again["a"])
    assert not torch.equal(draw["a"], other["a"])
    assert torch.equal(draw["b"], torch.ones(2))
    # 20,000 draws: 5 standard errors of the mean and of the variance
    assert abs(draw["a"].mean() - 3) < 5 * 0.5 / 20_000**0.5
    assert abs(draw["a"].var() - 0.25) < 5 * 0.25 * (2 / 20_000) ** 0.5


def test_sample_does_not_depend_on_the_order_of_names():
    mean, var = pair()
    turned = Posterior.from_tensors(dict(reversed(mean.items())), dict(reversed(var.items())))
    draws = [p.sample(torch.Generator().manual_seed(0)) for p in (Posterior.from_tensors(mean, var), turned)]
    assert torch.equal(draws[0]["fc.weight"], draws[1]["fc.weight"])


def test_draws_keep_shapes_and_differ():
    mean = {"a": torch.zeros(3, 5), "b": torch.zeros(()), "c": torch.zeros(0, 2), "d": torch.zeros(2, 3, 4, 4)}
    posterior = Posterior.from_tensors(mean, {name: torch.full_like(x, 4.0) for name, x in mean.items()})
    draws = posterior.samples(torch.Generator().manual_seed(0))
    first, second = next(draws), next(draws)
    assert list(first) == list(mean)
    assert all(first[name].shape == x.shape for name, x in mean.items())
    assert not torch.equal(first["a"], second["a"])
    several = torch.stack([next(draws)["d"] for _ in range(100)])
    assert abs(float(several.std()) - 2) < 5 * 2 / (2 * several.numel()) ** 0.5


def test_draws_in_place_are_the_same_numbers_in_the_same_tensors():
    posterior = Posterior.from_tensors(*pair())
    fresh = posterior.samples(torch.Generator().manual_seed(0))
    draws = posterior.samples(torch.Generator().manual_seed(0), in_place=True)
    place = None
    for _ in range(3):
        draw, expected = next(draws), next(fresh)
        assert all(torch.equal(draw[name], x) for name, x in expected.items())
        assert place in (None, draw["fc.weight"].data_ptr())
        place = draw["fc.weight"].data_ptr()


def test_weights_lie_in_memory_as_in_the_model():
    model = torch.nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    for pair_of in (Posterior.isotropic(model), Posterior.isotropic(model).to(dtype=torch.float64)):
        assert all(x.is_contiguous(memory_format=torch.channels_last) for x in pair_of["weight"])
    net = vp.propagate(model, Posterior.isotropic(model))
    assert net.mean["weight"].is_contiguous(memory_format=torch.channels_last)
    many = torch.ones(1).expand(3)  # entries that share memory
    assert Posterior.from_tensors({"w": many}, {"w": many})["w"].mean.is_contiguous()


def test_draws_lie_in_memory_as_the_weights_do(tmp_path):
    model = torch.nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    Posterior.isotropic(model).save(tmp_path / "p")
    usual = Posterior.load(tmp_path / "p")
    assert usual["weight"].mean.is_contiguous()
    for posterior in (usual, Posterior.isotropic(model)):
        for in_place in (False, True):
            draws = vp.MonteCarlo(model, posterior, samples=2).weights(in_place=in_place)
            for draw, expected in zip(draws, usual.samples(torch.Generator().manual_seed(0)), strict=False):
                assert draw["weight"].is_contiguous(memory_format=torch.channels_last)
                assert all(torch.equal(draw[name], x) for name, x in expected.items())


def test_sample_without_a_generator_follows_the_global_seed():
    posterior = Posterior.from_tensors(*pair())
    torch.manual_seed(7)
    first = posterior.sample()
    torch.manual_seed(7)
    assert torch.equal(first["fc.weight"], posterior.sample()["fc.weight"])


def test_a_sample_runs_the_model():
    model = torch.nn.Linear(2, 1)
    mean = dict(model.named_parameters())
    posterior = Posterior.from_tensors(mean, {name: torch.zeros_like(p) for name, p in mean.items()})
    x = torch.randn(4, 2)
    assert torch.equal(torch.func.functional_call(model, posterior.sample(), x), model(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_seed_means_the_same_draw_on_every_device():
    posterior = Posterior.from_tensors(*pair())
    here = posterior.sample(torch.Generator().manual_seed(0))
    there = posterior.to("cuda").sample(torch.Generator().manual_seed(0))
    assert there["fc.weight"].is_cuda
    assert torch.allclose(here["fc.weight"], there["fc.weight"].cpu())
