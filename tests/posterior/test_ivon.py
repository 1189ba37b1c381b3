"""from_ivon: the optimizer of the ivon-opt package, its checkpoints, and the layout with one state per parameter."""

import copy

import ivon
import pytest
import torch
from torch import nn

from tests.optim.tasks import through_a_file
from varprop.errors import PosteriorError, PosteriorMismatchError
from varprop.posterior import Posterior

ESS, DECAY = 50.0, 0.01


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def train(model, optimizer, steps=3):
    for _ in range(steps):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()


def trained(params=None):
    model = network()
    optimizer = ivon.IVON(params(model) if params else model.parameters(), lr=0.1, ess=ESS, weight_decay=DECAY)
    train(model, optimizer)
    return model, optimizer


def expected(model, optimizer):
    """Variances taken apart by hand, in the order in which the optimizer holds its parameters."""
    names = {id(p): name for name, p in model.named_parameters()}
    var = {}
    for group in optimizer.param_groups:
        flat = 1 / (group["ess"] * (group["hess"].double() + group["weight_decay"]))
        for p in group["params"]:
            var[names[id(p)]], flat = flat[: p.numel()].view(p.shape), flat[p.numel() :]
    return var


def check(posterior, model, optimizer):
    parameters, var = dict(model.named_parameters()), expected(model, optimizer)
    assert set(posterior) == set(var)
    for name in var:
        assert torch.equal(posterior[name].mean, parameters[name])
        assert torch.allclose(posterior[name].var.double(), var[name], rtol=1e-6, atol=0)
        assert len(var[name].unique()) > 1, "training should have made the curvatures differ"


def failure(model, source, kind=PosteriorError):
    with pytest.raises(kind) as caught:
        Posterior.from_ivon(model, source)
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize("saved", [lambda o: o, lambda o: o.state_dict(), lambda o: through_a_file(o.state_dict())])
def test_one_group(saved):
    model, optimizer = trained()
    check(Posterior.from_ivon(model, saved(optimizer)), model, optimizer)


def test_before_the_first_step():
    model = network()
    optimizer = ivon.IVON(model.parameters(), lr=0.1, ess=ESS, weight_decay=DECAY, hess_init=0.5)
    var = Posterior.from_ivon(model, optimizer)["0.weight"].var
    assert torch.allclose(var, torch.full((4, 3), 1 / (ESS * 0.51)))


def weights_and_biases(named=False):
    """The usual groups: decay for weights only. Their order is not the model's."""

    def groups(model):
        own = list(model.named_parameters())
        return [{"params": [(n, p) if named else p for n, p in own if n.endswith(e)]} for e in ("weight", "bias")]

    return groups


def test_several_groups_live_or_with_names():
    def layers(model):
        return [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[2].parameters(), "ess": 7.0}]

    for groups in (layers, weights_and_biases(), weights_and_biases(named=True)):
        model, optimizer = trained(groups)
        check(Posterior.from_ivon(model, optimizer), model, optimizer)
    check(Posterior.from_ivon(model, optimizer.state_dict()), model, optimizer)


def test_groups_without_names_that_could_be_either_are_refused():
    """Weights and biases of a norm have one shape: read in the order of the model, their variances were swapped.
    Of a vector for each group not even the shapes are known.
    """
    torch.manual_seed(0)
    norms = nn.Sequential(nn.LayerNorm(3), nn.Tanh(), nn.LayerNorm(3))
    model, optimizer = trained(weights_and_biases())
    other = PerParameter(weights_and_biases()(norms))
    for trainee, state in ((norms, other.state_dict()), (model, optimizer.state_dict())):
        text = failure(trainee, state, PosteriorMismatchError)
        assert "2 groups without names, and the shapes of their curvatures do not tell which parameters" in text
        assert "Pass the live optimizer" in text
        assert "model.named_parameters()" in text
    resumed = ivon.IVON(weights_and_biases()(model), lr=0.1, ess=1.0)
    resumed.load_state_dict(optimizer.state_dict())  # the advice
    check(Posterior.from_ivon(model, resumed), model, optimizer)


def test_frozen_parameters_outside_the_optimizer_are_deterministic():
    model = network()
    model[0].requires_grad_(False)
    optimizer = ivon.IVON([p for p in model.parameters() if p.requires_grad], lr=0.1, ess=ESS, weight_decay=DECAY)
    train(model, optimizer)
    for source in (optimizer, optimizer.state_dict()):
        assert Posterior.from_ivon(model, source).names == ("2.weight", "2.bias")
    # freezing everything for inference later must not change what is random
    model.requires_grad_(False)
    assert len(Posterior.from_ivon(model, optimizer)) == 2


def test_what_the_optimizer_holds_is_random_even_if_frozen():
    model = network()
    model[0].requires_grad_(False)
    optimizer = ivon.IVON(model.parameters(), lr=0.1, ess=ESS, weight_decay=DECAY)
    train(model, optimizer)
    for source in (optimizer, optimizer.state_dict()):
        assert len(Posterior.from_ivon(model, source)) == 4


def test_training_on_does_not_change_the_posterior():
    model, optimizer = trained()
    posterior = Posterior.from_ivon(model, optimizer)
    before = copy.deepcopy(dict(posterior))
    train(model, optimizer)
    assert all(torch.equal(before[name].mean, posterior[name].mean) for name in posterior)
    assert all(torch.equal(before[name].var, posterior[name].var) for name in posterior)


def test_a_checkpoint_in_a_fresh_model():
    model, optimizer = trained()
    weights, state = through_a_file((model.state_dict(), optimizer.state_dict()))
    fresh = network()
    fresh.load_state_dict(weights)
    check(Posterior.from_ivon(fresh, state), model, optimizer)
    resumed = ivon.IVON(fresh.parameters(), lr=0.1, ess=1.0)
    resumed.load_state_dict(state)
    check(Posterior.from_ivon(fresh, resumed), model, optimizer)


def test_a_model_moved_after_training():
    model, optimizer = trained()
    posterior = Posterior.from_ivon(model.double(), optimizer)
    assert posterior["0.weight"].var.dtype == torch.float64


def test_curvature_slightly_below_zero_is_fine_as_long_as_the_precision_is_positive():
    model, optimizer = trained()
    optimizer.param_groups[0]["hess"][0] = -DECAY / 2
    var = Posterior.from_ivon(model, optimizer)["0.weight"].var
    assert torch.isclose(var.flatten()[0], torch.tensor(2 / (ESS * DECAY)))


@pytest.mark.parametrize("bad", [float("nan"), -DECAY])
def test_a_precision_that_is_none(bad):
    model, optimizer = trained()
    optimizer.param_groups[0]["hess"][-1] = bad
    text = failure(model, optimizer)
    assert "cannot read a posterior from this IVON" in text
    assert "hess + weight_decay is not positive and finite in 1 of 2 entries of '2.bias'" in text
    assert "training diverged, or the checkpoint is damaged" in text


def test_inside_the_sampling_block():
    model = network()
    optimizer = ivon.IVON(model.parameters(), lr=0.1, ess=ESS, weight_decay=DECAY)
    train(model, optimizer, steps=1)
    with optimizer.sampled_params():
        assert "outside the optimizer's sampled_params() block" in failure(model, optimizer)
    Posterior.from_ivon(model, optimizer)


def test_another_optimizer_sampling_does_not_matter():
    model, optimizer = trained()
    _, other = trained()
    with other.sampled_params():
        check(Posterior.from_ivon(model, optimizer), model, optimizer)


def test_a_sampling_block_that_was_interrupted():
    model, optimizer = trained()
    with pytest.raises(KeyboardInterrupt), optimizer.sampled_params(train=True):
        raise KeyboardInterrupt
    text = failure(model, optimizer)
    assert "If a block was interrupted, which leaves a sample in place, load the last checkpoint" in text
    assert len(Posterior.from_ivon(model, optimizer.state_dict())) == 4


def test_a_copied_model_and_a_foreign_one():
    model, optimizer = trained()
    text = failure(copy.deepcopy(model), optimizer, PosteriorMismatchError)
    assert "4 of the optimizer's 4 parameters are not in this Sequential" in text
    assert "(4, 3), (4,), (2, 4), (2,)" in text
    assert "optimizer.state_dict()" in text
    assert "2 of the optimizer's 4" in failure(model[0], optimizer, PosteriorMismatchError)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    check(Posterior.from_ivon(twin, twin_optimizer), model, optimizer)


@pytest.mark.parametrize("given", [lambda m: m, nn.DataParallel], ids=["plain", "wrapped"])
@pytest.mark.parametrize("trained_as", [lambda m: m, nn.DataParallel], ids=["plain", "wrapped"])
def test_names_of_a_wrapped_model(given, trained_as):
    model, optimizer = trained(lambda m: trained_as(m).named_parameters())
    found = Posterior.from_ivon(given(model), optimizer.state_dict())
    assert found.names == tuple(name for name, _ in given(model).named_parameters())


def test_a_state_dict_of_another_model():
    _, optimizer = trained()
    text = failure(nn.Linear(3, 4), optimizer.state_dict(), PosteriorMismatchError)
    assert "the state dict holds 4 parameters, Linear has 2, 2 of them trainable" in text
    assert "model.named_parameters()" in text
    _, named = trained(lambda m: m.named_parameters())
    text = failure(nn.Sequential(nn.Linear(3, 4)), named.state_dict(), PosteriorMismatchError)
    assert "the state dict names parameters Sequential lacks" in text
    assert "'2.weight' (did you mean '0.weight'" in text
    wide = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    assert '"hess" is 26 entries' in failure(wide, optimizer.state_dict())


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        (lambda g: g.pop("ess"), 'no "ess" among its options'),
        (lambda g: g.pop("weight_decay"), 'no "weight_decay" among its options'),
        (lambda g: g.pop("hess"), "no \"hess\" for '0.weight', '0.bias', '2.weight', '2.bias'"),
        (lambda g: g.pop("params"), 'has no "params"'),
        (lambda g: g.update(ess=0.0), "ess is 0.0"),
        (lambda g: g.update(ess="many"), "\"ess\" is 'many', not a finite number"),
        (lambda g: g.update(weight_decay=-1.0), "weight_decay -1.0"),
        (lambda g: g.update(hess=torch.ones(25)), '"hess" is 25 entries'),
        (lambda g: g.update(hess=None), '"hess" is a NoneType'),
    ],
)
def test_damaged_state_dicts(change, phrase):
    model, optimizer = trained()
    state = copy.deepcopy(optimizer.state_dict())
    change(state["param_groups"][0])
    assert phrase in failure(model, state)


def test_what_is_no_optimizer_at_all():
    model, optimizer = trained()
    text = failure(model, {"model": {}, "optimizer": optimizer.state_dict()})
    assert "a dict with keys 'model', 'optimizer' is neither an optimizer nor its state dict" in text
    assert 'checkpoint["optimizer"]' in text
    assert "a list is neither" in failure(model, [])
    assert "the model comes first, not IVON" in failure(optimizer, model)
    adam = torch.optim.AdamW(model.parameters())
    text = failure(model, adam)
    assert "cannot read a posterior from this AdamW" in text
    assert "only an IVON optimizer" in text
    assert not adam.state, "looking must not create state"
    assert "holds no parameters" in failure(model, {"state": {}, "param_groups": []})


class PerParameter(torch.optim.Optimizer):
    """Keeps its curvature as torch's own optimizers keep theirs: one state per parameter."""

    def __init__(self, params):
        super().__init__(params, {"ess": ESS, "weight_decay": DECAY})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["hess"] = torch.rand_like(p)


@pytest.mark.parametrize("saved", [lambda o: o, lambda o: through_a_file(o.state_dict())])
def test_one_state_per_parameter(saved):
    model = network()
    first, second = weights_and_biases()(model)
    optimizer = PerParameter([first, second | {"ess": 9.0}])
    posterior = Posterior.from_ivon(model, saved(optimizer))
    for name, ess in (("0.weight", ESS), ("2.weight", ESS), ("2.bias", 9.0)):
        hess = optimizer.state[model.get_parameter(name)]["hess"]
        assert torch.allclose(posterior[name].var, 1 / (ess * (hess + DECAY)))


def test_one_state_per_parameter_damaged():
    model = network()
    optimizer = PerParameter(model.parameters())
    optimizer.state[model[0].bias]["hess"] = torch.ones(3)
    text = failure(model, optimizer, PosteriorMismatchError)
    assert "'hess' of '0.bias' has shape (3,), the parameter (4,)" in text
    del optimizer.state[model[0].bias]
    assert "no \"hess\" for '0.bias'" in failure(model, optimizer)


def test_a_state_dict_keyed_by_names():
    """As torch.distributed.checkpoint writes it."""
    model = network()
    optimizer = PerParameter(model.parameters())
    names = [name for name, _ in model.named_parameters()]
    state = optimizer.state_dict()
    renamed = {
        "state": {names[index]: value for index, value in state["state"].items()},
        "param_groups": [state["param_groups"][0] | {"params": names[::-1]}],
    }
    posterior = Posterior.from_ivon(model, renamed)
    live = Posterior.from_ivon(model, optimizer)
    assert all(torch.equal(posterior[name].var, live[name].var) for name in names)


def test_the_draws_are_those_of_ivon():
    """Same mean and variance as the optimizer's own sampling."""
    model, optimizer = trained()
    posterior = Posterior.from_ivon(model, optimizer)
    draws = []
    for _ in range(1000):
        with optimizer.sampled_params():
            draws.append(model[2].bias.detach().clone())
    spread = torch.stack(draws).var(0)
    assert torch.allclose(spread, posterior["2.bias"].var, rtol=5 * (2 / 1000) ** 0.5)
