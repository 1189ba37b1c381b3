"""from_samples: several checkpoints become one Gaussian."""

import copy
import gc
import weakref

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tests.posterior.exact import two_layers
from varprop.errors import PosteriorError, PosteriorMismatchError
from varprop.posterior import Posterior


def members(count=4):
    return [two_layers(seed) for seed in range(count)]


def stacked(models):
    return {
        name: torch.stack([m.get_parameter(name).detach() for m in models]) for name, _ in models[0].named_parameters()
    }


def check(posterior, models):
    values = stacked(models)
    assert set(posterior) == set(values)
    for name in values:
        torch.testing.assert_close(posterior[name].mean, values[name].mean(0), rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(posterior[name].var, values[name].var(0), rtol=1e-10, atol=0)


def failure(model, samples, kind=PosteriorMismatchError):
    with pytest.raises(kind) as caught:
        Posterior.from_samples(model, samples)
    assert type(caught.value) is kind
    return str(caught.value)


class Normed(nn.Module):
    """Parameters, buffers of two dtypes, and a tied weight."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.norm.running_mean.normal_()
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


def test_mean_and_unbiased_variance():
    models = members()
    check(Posterior.from_samples(models[0], models), models)
    check(Posterior.from_samples(two_layers(7), iter(models)), models)


def test_state_dicts_files_and_mixtures(tmp_path):
    models = members()
    for index, model in enumerate(models):
        save_file(model.state_dict(), tmp_path / f"{index}.safetensors")
    paths = sorted(tmp_path.iterdir())
    check(Posterior.from_samples(models[0], [model.state_dict() for model in models]), models)
    check(Posterior.from_samples(models[0], paths), models)
    check(Posterior.from_samples(models[0], [str(paths[0]), models[1], models[2].state_dict(), paths[3]]), models)


def test_one_sample_is_held_at_a_time():
    alive = []

    def stream():
        for seed in range(3):
            sample = two_layers(seed)
            alive.append(weakref.ref(sample))
            yield sample
            del sample
            gc.collect()
            assert sum(ref() is not None for ref in alive) <= 1

    check(Posterior.from_samples(two_layers(), stream()), members(3))


def test_buffers_and_tied_weights(tmp_path):
    models = [Normed(seed).double() for seed in range(3)]
    names = {"embed.weight", "norm.weight", "norm.bias"}
    assert set(Posterior.from_samples(models[0], models)) == names
    states = [model.state_dict() for model in models]
    assert {"head.weight", "norm.num_batches_tracked"} <= set(states[0])
    check(Posterior.from_samples(models[0], states), models)
    # Hugging Face writes one name of a tied weight, and not always the one named_parameters() gives.
    for index, state in enumerate(states):
        kept = {name: tensor for name, tensor in state.items() if name != "embed.weight"}
        save_file(kept, tmp_path / f"{index}.safetensors")
    check(Posterior.from_samples(models[0], sorted(tmp_path.iterdir())), models)


def test_names_from_wrappers():
    models = members(3)
    states = [nn.DataParallel(models[0]).state_dict(), torch.compile(models[1]).state_dict(), AveragedModel(models[2])]
    assert "module.0.weight" in states[0]
    check(Posterior.from_samples(models[0], states), models)
    check(
        Posterior.from_samples(models[0], [*map(AveragedModel, models[:2]), AveragedModel(models[2]).state_dict()]),
        models,
    )


def test_what_samples_and_model_share_is_deterministic():
    models = members(3)
    for model in models[1:]:
        model[0].load_state_dict(models[0][0].state_dict())
    assert Posterior.from_samples(models[0], models).names == ("1.weight", "1.bias")
    # A model with other values needs them from the samples: variance 0, but in the posterior.
    posterior = Posterior.from_samples(two_layers(9), models)
    assert len(posterior) == 4
    assert not posterior["0.weight"].var.any()
    assert torch.equal(posterior["0.weight"].mean, models[0][0].weight)


def test_dtype_follows_the_model():
    posterior = Posterior.from_samples(two_layers().float(), members())
    assert {t.dtype for pair in posterior.values() for t in pair} == {torch.float32}


def test_a_small_spread_survives_float32():
    base = torch.ones(50, 50)
    steps = [1e-6 * torch.randn(50, 50, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    samples = [{"weight": base + step, "bias": torch.full((50,), float(seed))} for seed, step in enumerate(steps)]
    exact = torch.stack([sample["weight"].double() for sample in samples]).var(0)
    var = Posterior.from_samples(nn.Linear(50, 50), samples)["weight"].var
    torch.testing.assert_close(var.double(), exact, rtol=1e-5, atol=0)


def test_too_few_and_identical_samples():
    model = two_layers()
    assert "at least 2 samples, and there are 0" in failure(model, [], PosteriorError)
    assert "there are 1" in failure(model, [model], PosteriorError)
    snapshots = []
    for _ in range(3):
        with torch.no_grad():
            model[0].weight.add_(1)
        snapshots.append(model.state_dict())  # the classic: all three are the live weights
    text = failure(model, snapshots, PosteriorError)
    assert "the 3 samples are all the same" in text
    assert "copy.deepcopy(model.state_dict())" in text


@pytest.mark.parametrize("one", [two_layers(), two_layers().state_dict(), "model.safetensors", 3])
def test_one_sample_instead_of_several(one):
    text = failure(two_layers(), one, PosteriorError)
    assert f"samples are several, not one {type(one).__name__}" in text
    assert "the model comes first" in failure([two_layers()], two_layers(), PosteriorError)


def test_everything_wrong_is_listed_at_once(tmp_path):
    model = two_layers()
    nan, shape, keys, kinds = (copy.deepcopy(model.state_dict()) for _ in range(4))
    nan["0.weight"][0, 0] = torch.nan
    nan["1.bias"][:] = torch.inf
    shape["0.weight"] = torch.ones(5, 3)
    keys["2.weight"] = keys.pop("1.weight")
    kinds["0.bias"], kinds["1.bias"] = torch.ones(4, dtype=torch.int64), [1.0]
    (tmp_path / "torn.safetensors").write_bytes(b"no such thing")
    samples = [
        nan,
        model,
        shape,
        keys,
        kinds,
        tmp_path / "torn.safetensors",
        tmp_path / "none.safetensors",
        tmp_path,
        5,
    ]
    text = failure(model, samples)
    for phrase in (
        "these samples are not the weights of one Sequential",
        "sample 0: '0.weight' is NaN or infinite in 1 of 12 entries",
        "sample 0: '1.bias' is NaN or infinite in 2 of 2 entries",
        "sample 2: '0.weight' has shape (5, 3), in the model (4, 3)",
        "sample 3: '1.weight' is missing",
        "sample 3: '2.weight' is not in the model (did you mean '1.weight'",
        "sample 4: '0.bias' is torch.int64, not floating point",
        "sample 4: '1.bias' is a list, not a tensor",
        "torn.safetensors: not a whole safetensors file",
        "pass torch.load(path, weights_only=True)",
        "none.safetensors: there is no such file",
        "it is a folder, name the file in it",
        "sample 8: a int is no model, state dict or path",
    ):
        assert phrase in text
    assert "sample 1" not in text
    assert len(text.splitlines()) == 12


def test_long_lists_are_cut():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
    text = failure(model, [model, {}])
    assert "… and 32 more" in text
    assert len(text.splitlines()) == 10


def test_a_whole_checkpoint_instead_of_its_weights():
    model = two_layers()
    assert "'model' is not in the model" in failure(model, [{"model": model.state_dict()}] * 2)
