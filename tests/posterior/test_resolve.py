"""resolve: a posterior meets a model."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from varprop.errors import DeviceMismatchError, PosteriorError, PosteriorMismatchError
from varprop.posterior import Posterior


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(3)


def of(tensors, var=0.1):
    return Posterior.from_tensors(tensors, {name: torch.full_like(t, var) for name, t in tensors.items()})


def mismatch(posterior, model):
    with pytest.raises(PosteriorMismatchError) as caught:
        posterior.resolve(model)
    return str(caught.value)


def test_names_of_a_plain_model():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    resolved = of(dict(model.named_parameters())).restrict("2").resolve(model)
    assert list(resolved) == ["2.weight", "2.bias"]
    assert torch.equal(resolved["2.weight"].mean, model[2].weight)


@pytest.mark.parametrize("alias", ["embed.weight", "head.weight"])
def test_a_tied_weight_by_any_of_its_names(alias):
    model = Tied()
    resolved = of({alias: torch.rand(5, 3)}).resolve(model)
    assert list(resolved) == ["embed.weight"]


def test_both_names_of_a_tied_weight():
    model, weight = Tied(), torch.rand(5, 3)
    assert len(of({"embed.weight": weight, "head.weight": weight}).resolve(model)) == 1
    text = mismatch(of({"embed.weight": weight, "head.weight": weight + 1}), model)
    assert "'embed.weight' and 'head.weight' are one tied parameter with two different posteriors: keep one" in text
    mean = {"embed.weight": weight, "head.weight": weight}
    different = Posterior.from_tensors(mean, {"embed.weight": weight, "head.weight": weight * 2})
    assert "one tied parameter" in mismatch(different, model)


@pytest.mark.parametrize("alias", ["lm_head.weight", "transformer.wte.weight"])
def test_the_tied_head_of_gpt2(alias):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=4, n_layer=1, n_head=2)).eval()
    resolved = of({alias: torch.rand(11, 4)}).resolve(model)
    assert list(resolved) == ["transformer.wte.weight"]
    whole = of(dict(model.named_parameters())).resolve(model)
    assert list(whole) == [name for name, _ in model.named_parameters()]
    # state_dict() names the tied tensor twice; that is not a contradiction
    assert set(of(model.state_dict()).resolve(model)) == set(whole)


def test_every_mismatch_is_listed():
    model = Tied()
    model.codes = nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)
    model.lazy = nn.LazyLinear(2)
    posterior = of(
        {
            "embed.wieght": torch.rand(5, 3),
            "module.head.bias": torch.rand(5),
            "head.bias": torch.rand(4),
            "norm.running_mean": torch.rand(3),
            "codes": torch.rand(2),
            "lazy.weight": torch.rand(2, 2),
            "zzzzzz": torch.rand(1),
        }
    )
    text = mismatch(posterior, model)
    for phrase in (
        "the posterior does not fit Tied:",
        "'embed.wieght' is not a parameter of the model (did you mean 'embed.weight'",
        "'module.head.bias' is not a parameter of the model (did you mean 'head.bias'?)",
        "'head.bias' has shape (4,), in the model (5,)",
        "'norm.running_mean' is a buffer: buffers are constants, leave it out",
        "'codes' is torch.int8 in the model: only floating point",
        "'lazy.weight' is not initialised yet",
        "'zzzzzz' is not a parameter of the model\n",
        "posterior.restrict(...)",
    ):
        assert phrase in text
    assert len(text.splitlines()) == 9


def test_parameters_missing_from_the_posterior_are_left_out():
    model = nn.Linear(2, 3)
    assert list(of({"bias": torch.rand(3)}).resolve(model)) == ["bias"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_moments_take_the_dtype_of_the_parameter(dtype):
    model = nn.Linear(2, 3)
    posterior = of(dict(model.named_parameters()))
    resolved = posterior.resolve(model.to(dtype))
    assert {t.dtype for pair in resolved.values() for t in pair} == {dtype}


def test_a_half_precision_model_that_cannot_hold_the_variances():
    model = nn.Linear(2, 3)
    posterior = of(dict(model.named_parameters()), var=1e-9)
    with pytest.raises(PosteriorError, match=r"float16 cannot hold .*bfloat16"):
        posterior.resolve(model.half())


def test_another_device():
    model = nn.Linear(2, 3)
    posterior = of(dict(model.named_parameters()))
    expected = r"is on cpu, the model on meta \(2 of 2 .*'weight'\): move it with posterior.to\(\"meta\"\)"
    with pytest.raises(DeviceMismatchError, match=expected):
        posterior.resolve(model.to("meta"))
    assert len(posterior.to("meta").resolve(model)) == 2


def test_a_model_on_several_devices():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, device="meta"))
    with pytest.raises(DeviceMismatchError, match="the model is spread over devices: give from_tensors each tensor"):
        of({"0.weight": torch.rand(3, 2), "1.bias": torch.rand(1)}).resolve(model)


def test_mismatches_come_before_devices():
    model = nn.Linear(2, 3, device="meta")
    assert "not a parameter" in mismatch(of({"wrong": torch.rand(1)}), model)
