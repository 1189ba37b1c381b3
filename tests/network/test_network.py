"""MomentNet: calling, capturing, scales, moving, copying."""

import copy
import functools
import sys
import threading
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import make, posterior_of
from varprop.network import moment_net


class Twice(nn.Module):
    """One activation module, called twice; one linear layer, called once."""

    def __init__(self):
        super().__init__()
        self.inner, self.act, self.outer = nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3)

    def forward(self, x, shift=0.0, *, double=False):
        y = self.outer(self.act(self.inner(x) + shift))
        return self.act(2 * y if double else y)


class In(NamedTuple):
    a: torch.Tensor
    b: Any

    def both(self):
        return torch.cat([self.a, self.b["c"]], -1)


class Together(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs.both() if isinstance(inputs, In) else torch.cat(inputs, -1))


def test_a_named_tuple_reaches_the_model_as_it_is(tmp_path):
    torch.manual_seed(0)
    model, a, b = Together(4, 3), torch.randn(5, 2), torch.randn(5, 2)
    net, joined = vp.propagate(model, posterior_of(model)), nn.Linear(4, 3)
    joined.load_state_dict(model.state_dict())
    expected = vp.propagate(joined, posterior_of(joined))(torch.cat([a, b], -1))
    for given in (In(a, {"c": b}), In(vp.Moments(a, 0 * a), {"c": b}), (a, b), [a, b]):
        torch.testing.assert_close(net(given), expected)
    net.save_pretrained(tmp_path)
    loaded = vp.MomentNet.from_pretrained(tmp_path, model)
    assert len(net.signatures) == len(loaded.signatures) == 4
    torch.testing.assert_close(loaded(In(a, {"c": b})), expected)
    assert len(loaded.signatures) == 4
    found = loaded.double()(In(a.double(), {"c": b.double()}))
    torch.testing.assert_close(found.mean, expected.mean.double(), rtol=1e-4, atol=1e-5)


def network(model=None, var=1e-3, **options):
    torch.manual_seed(0)
    model = (model or Twice()).eval()
    return vp.propagate(model, posterior_of(model, var), **options)


@functools.cache
def _captured():
    net = network()
    net.capture(torch.randn(2, 4))
    return net


def captured():
    """A copy of a network that was captured once for all tests."""
    return copy.deepcopy(_captured())


@functools.cache
def vit():
    model, batch = make("vit")
    return model, batch, vp.propagate(model, posterior_of(model))


def test_called_like_the_model():
    net, x = network(), torch.randn(5, 4)
    by_position, by_name = net(x), net(x=x)
    assert torch.equal(by_position.var, by_name.var)
    assert len(net.signatures) == 1
    doubled = net(x, 0.5, double=True)
    assert torch.equal(net(double=True, shift=0.5, x=x).var, doubled.var)
    assert len(net.signatures) == 2
    assert not torch.allclose(doubled.mean, by_position.mean)
    mean, var = by_position
    assert mean.shape == var.shape == (5, 3)


def test_every_call_of_a_module_has_a_scale_of_its_own():
    assert captured().scales == {"act": 1.0, "act#2": 1.0, "(output)": 1.0}


@pytest.mark.parametrize("name", ["act", "act#2", "(output)"])
def test_scales_act(name):
    net, x = captured(), torch.randn(2, 4)
    before = net(x)
    path = {"act": "act.log_alpha", "act#2": "act.log_alpha_2", "(output)": "(output).log_alpha"}[name]
    with torch.no_grad():
        net.scale[path].fill_(torch.tensor(4.0).log())
    after = net(x)
    assert net.scales[name] == pytest.approx(4.0)
    if name == "(output)":
        torch.testing.assert_close(after.var, 4 * before.var)
        assert torch.equal(after.mean, before.mean)
    else:
        assert (after.var > before.var).all()
        assert not torch.equal(after.mean, before.mean)


def test_scales_are_trainable():
    net, x = captured(), torch.randn(2, 4)
    for parameter in net.parameters():
        parameter.requires_grad_(True)
    net(x).var.sum().backward()
    assert all(parameter.grad is not None and parameter.grad > 0 for parameter in net.parameters())
    assert len(list(net.parameters())) == 3


def test_scale_points_are_the_same_for_every_rule_set():
    x = torch.randn(2, 4)
    nets = [network(rules=rules) for rules in (vp.CVP, vp.STREAMLINING, vp.CVP.replace(vp.streamlining.NORMALIZATION))]
    for net in nets:
        net.capture(x)
    assert nets[0].scales == nets[1].scales == nets[2].scales


def test_inputs_may_be_random():
    model = nn.Linear(4, 3)
    certain = vp.Posterior.from_tensors({}, {})
    x = vp.Moments(torch.randn(5, 4), torch.rand(5, 4))
    result = vp.propagate(model, certain)(x)
    torch.testing.assert_close(result.mean, model(x.mean))
    torch.testing.assert_close(result.var, x.var @ (model.weight**2).T)
    assert torch.equal(vp.propagate(model, certain)(x.mean).var, torch.zeros(5, 3))


@pytest.mark.parametrize(
    ("make_model", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3)), (4, 6)),
        (lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), (4, 6)),
        (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 7, 7)),
    ],
    ids=["GELU", "ReLU", "convolution"],
)
def test_small_variance_agrees_with_sampling(make_model, shape):
    """Variances of 1e-10, relative to the weights: at this size textbook formulas return noise."""
    torch.manual_seed(0)
    model = make_model().double()
    x = torch.randn(shape, dtype=torch.float64)
    mean = dict(model.named_parameters())
    posterior = vp.Posterior.from_tensors(mean, {name: 1e-10 * tensor.detach() ** 2 for name, tensor in mean.items()})
    predicted = vp.propagate(model, posterior)(x).var
    noise = torch.Generator().manual_seed(1)
    weights = {
        name: tensor + posterior.var[name].sqrt() * torch.randn(20_000, *tensor.shape, generator=noise, dtype=x.dtype)
        for name, tensor in posterior.mean.items()
    }
    with torch.no_grad():
        outputs = torch.vmap(lambda w: torch.func.functional_call(model, w, x), chunk_size=2000)(weights)
    torch.testing.assert_close(predicted, outputs.var(0), rtol=0.05, atol=0)
    single = vp.propagate(model.float(), posterior.to(dtype=torch.float32))(x.float()).var
    torch.testing.assert_close(single.double(), predicted, rtol=1e-3, atol=0)


def test_trace_has_the_inputs_and_outputs_of_every_module():
    net, x = captured(), torch.randn(3, 4)
    trace = net.trace(x)
    assert set(trace) == {"", "inner", "act", "outer", "act#2"}
    torch.testing.assert_close(trace["outer"].var, trace.inputs["act#2"].var)
    torch.testing.assert_close(trace.inputs["act"].mean, trace["inner"].mean)
    assert trace.inputs["inner"] is x
    torch.testing.assert_close(trace[""].var, net(x).var)


def test_trace_gives_what_enters_a_norm():
    _, batch, net = vit()
    trace = net.trace(**batch)
    path = "vit.layers.1.layernorm_before"
    before, after = trace.inputs[path], trace[path]
    expected = vp.CVP[torch.ops.aten.layer_norm.default](
        before,
        [32],
        *(vp.Moments(net.mean[p], net.var[p]) for p in (f"{path}.weight", f"{path}.bias")),
        1e-12,
    )
    torch.testing.assert_close(after.mean, expected.mean)
    torch.testing.assert_close(after.var, expected.var)


def test_tied_weights_are_random_wherever_they_are_used():
    model, batch = make("gpt2")
    head_only = posterior_of(model).restrict("transformer.wte")
    net = vp.propagate(model, head_only)
    assert (net(**batch).var > 0).all()
    rows = list(vp.audit(model, head_only, **batch))
    assert {row.op for row in rows if row.variance == "starts"} == {"aten.embedding.default"}
    assert "share a source" in rows[-1].note  # the head's weight and its input both depend on the embedding


def test_parameters_missing_from_the_posterior_are_constant():
    model = Twice().eval()
    net = vp.propagate(model, posterior_of(model).restrict("outer"))
    assert {name for name, _ in net.var} == {"outer.weight", "outer.bias"}
    trace = net.trace(torch.randn(2, 4))
    assert isinstance(trace["inner"], torch.Tensor)
    assert isinstance(trace["outer"], vp.Moments)
    assert set(net.scales) == {"act#2", "(output)"}


def test_the_model_is_neither_changed_nor_followed():
    model, x = Twice().eval(), torch.randn(2, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    net = vp.propagate(model, posterior_of(model).restrict("outer"))
    result = net(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(net(x).mean, result.mean)


def test_the_logits_are_found_beside_a_loss():
    model, batch = make("bert")
    labels = {**batch, "labels": torch.tensor([0, 1, 2])}
    net = vp.propagate(model, posterior_of(model, 0.0))
    torch.testing.assert_close(net(**labels).mean, model(**labels).logits)


def test_outputs_are_named():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return {"hidden": self.layer(x), "pooled": self.layer(x).mean(1, keepdim=True)}

    model, x = Two().eval(), torch.randn(2, 4)

    def mean(output):
        return vp.propagate(model, posterior_of(model, 0.0), output=output)(x).mean

    with pytest.raises(vp.errors.OutputError, match="returns no tensor 'logits', only 'hidden', 'pooled'"):
        mean("logits")
    with pytest.raises(vp.errors.OutputError, match="'hidden', 'pooled' and no logits: name one"):
        mean(None)
    torch.testing.assert_close(mean("pooled"), model(x)["pooled"])
    torch.testing.assert_close(mean(lambda result: result["hidden"][:, 0]), model(x)["hidden"][:, 0])


def test_copies_are_independent():
    net, x = captured(), torch.randn(2, 4)
    before = net(x)
    clone = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in clone.parameters():
            parameter.fill_(1.0)
    assert torch.equal(net(x).var, before.var)
    assert (clone(x).var > before.var).all()
    assert clone.state_dict().keys() == net.state_dict().keys()


def test_state_dict_round_trip():
    x = torch.randn(2, 4)
    net, other = captured(), network(var=0.5)
    other.capture(x)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x).var, net(x).var)
    assert set(net.state_dict()) == {
        *(
            f"{kind}.{layer}.{leaf}"
            for kind in ("mean", "var")
            for layer in ("inner", "outer")
            for leaf in ("weight", "bias")
        ),
        "scale.act.log_alpha",
        "scale.act.log_alpha_2",
        "scale.(output).log_alpha",
    }


def test_loading_into_a_network_leaves_the_posterior_alone():
    model = Twice().eval()
    posterior = posterior_of(model)
    net = vp.propagate(model, posterior)
    net.load_state_dict(network(var=0.5).state_dict())
    assert all((var == 0.5).all() for _, var in net.var)
    assert all((var == 1e-4).all() for var in posterior.var.values())


def test_parameters_take_at_most_three_times_the_memory():
    model, batch, net = vit()
    net.capture(**batch)
    size = lambda module: sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))  # noqa: E731
    assert size(net) <= 3 * size(model)


def test_float16_is_refused_and_nothing_is_lost():
    net, x = captured(), torch.randn(2, 4)
    before = net(x)
    with pytest.raises(vp.errors.PrecisionError, match="use bfloat16"):
        net.half()
    assert torch.equal(net(x).var, before.var)


def test_a_model_whose_sizes_cannot_be_free_gets_a_graph_for_each():
    class Rigid(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x) * (2.0 if x.shape[0] > 4 else 1.0)

    model = Rigid().eval()
    net = vp.propagate(model, posterior_of(model, 0.0))
    inputs = [torch.randn(count, 4) for count in (3, 8, 3)]
    with pytest.warns(UserWarning, match="every new shape of its inputs gets a graph"):
        found = [net(x).mean for x in inputs]
    for x, mean in zip(inputs, found, strict=True):
        torch.testing.assert_close(mean, model(x))
    assert len(net.signatures) == 2
    assert len(dict([*net.folded])) <= 1  # both graphs share E[W²]


def test_moments_as_dict_batches_and_lists():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, batch, extras):
            return self.layer(batch["x"]) + extras[0]

    model = Pair().eval()
    net = vp.propagate(model, posterior_of(model))
    x, noise = torch.randn(2, 4), vp.Moments(torch.zeros(2, 3), torch.ones(2, 3))
    assert (net({"x": x}, [noise]).var > 1).all()
    with pytest.raises(vp.errors.InputError, match=r"extras\[0\] is a object"):
        net({"x": x}, [object()])


def test_captured_in_inference_mode_and_trained_later():
    net, x = network(), torch.randn(2, 4)
    with torch.inference_mode():
        before = net(x)
    for parameter in net.parameters():
        parameter.requires_grad_(True)
    result = net(x)
    result.var.sum().backward()
    assert torch.equal(result.var, before.var)


def test_a_model_without_parameters():
    x = vp.Moments(torch.randn(3, 4), torch.rand(3, 4))
    net = vp.propagate(nn.ReLU(), vp.Posterior.from_tensors({}, {}))
    torch.testing.assert_close(net(x).var, vp.CVP[torch.ops.aten.relu.default](x).var)


def test_it_says_what_it_is():
    net = network()
    assert repr(net) == "MomentNet(Twice, rules=CVP, 51 random weights, 0 graphs)"


def test_a_first_call_from_several_threads(monkeypatch):
    """One of them captures, the others wait for it."""
    plan_call, captures = moment_net.plan_call, []
    monkeypatch.setattr(moment_net, "plan_call", lambda *args: captures.append(args) or plan_call(*args))
    net, x, together, found = network(), torch.randn(5, 4), threading.Barrier(4), []

    def call():
        together.wait()
        found.append(net(x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(captures) == len(net.signatures) == 1
    expected = captured()(x)
    assert len(found) == 4
    for moments in found:
        torch.testing.assert_close(moments, expected)


@pytest.fixture
def threads_that_take_turns():
    """Every few microseconds: what two of them can do to each other, they do."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("threads_that_take_turns")
def test_first_calls_of_two_networks_of_one_model():
    """While it is captured, a model has hooks and tensors of the network that captures it."""
    model, x, together = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval(), torch.randn(5, 4), {}
    mean = {name: parameter.detach() for name, parameter in model.named_parameters()}
    other = {name: tensor + 0.5 for name, tensor in mean.items()}
    posteriors = [
        vp.Posterior.from_tensors(each, {k: 0.01 * v.abs() for k, v in mean.items()}) for each in (mean, other)
    ]
    expected = [vp.propagate(model, posterior)(x) for posterior in posteriors]
    ready = threading.Barrier(2)

    def call(place):
        ready.wait()
        together[place] = vp.propagate(model, posteriors[place])(x)

    threads = [threading.Thread(target=call, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close([together[place] for place in range(2)], expected)


class Interrupted(nn.Module):
    """Something happens in another thread whenever its forward runs, also while it is captured."""

    def __init__(self):
        super().__init__()
        self.layer, self.meanwhile = nn.Linear(4, 3), lambda: None

    def forward(self, x):
        thread = threading.Thread(target=self.meanwhile)
        thread.start()
        thread.join()
        return self.layer(x)


def test_calls_while_another_thread_captures():
    """Torch's exporter fills modules with fake tensors and says that it compiles, in all threads."""
    net, x, found = network(Interrupted()), torch.randn(2, 4), []
    expected = net(x)

    def meanwhile():
        with pytest.raises(vp.errors.InputError, match="variance of an input is negative"):
            net(vp.Moments(x, -x.square()))
        found.append(net(x))

    net.lifting.model.meanwhile = meanwhile
    net(x[None])
    assert len(found) > 1
    for moments in found:
        assert torch.equal(moments.mean, expected.mean)
        assert torch.equal(moments.var, expected.var)


class LastPiece(nn.Module):
    """The length of the last piece is no formula of the length of all."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x).split(3, dim=1)[-1].sum(1)


class Last(nn.Module):
    """The last state of a recurrent layer, which is captured step by step, but for any batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.RNN(2, 2, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0][:, -1]


@pytest.mark.parametrize(
    ("model", "lengths"),
    [
        pytest.param(LastPiece(), (4, 5, 7, 8, 10), id="no free length"),
        pytest.param(Last(), (1, 2, 3, 4), id="recurrent", marks=pytest.mark.second),
    ],
)
def test_a_graph_for_each_shape_is_said_once_and_their_number_bounded(model, lengths, monkeypatch):
    monkeypatch.setattr(moment_net, "MOST_GRAPHS", 2)
    net = network(model)
    with warnings.catch_warnings(record=True, action="always") as said:
        for length in lengths:
            net(torch.randn(2, length, 2))
    assert len(said) == 1
    assert "cannot be captured with free sizes" in str(said[0].message)
    latest = f"{lengths[-1]}, 2]"
    assert any(latest in text for text in net.signatures)
    for freedom in range(3):
        assert sum(plan.signature.freedom == freedom for plan in net._plans) <= 2


def test_a_graph_for_each_number_is_said_once_and_their_number_bounded(monkeypatch):
    monkeypatch.setattr(moment_net, "MOST_GRAPHS", 2)
    model = Shifted()
    net, x = network(model), torch.randn(3, 2)
    with warnings.catch_warnings(record=True, action="always") as said:
        for shift in (0.5, 1.5, 2.5):
            torch.testing.assert_close(net(x, [shift]).mean, model(x, [shift]).detach())
    assert len(said) == 1
    assert "every new number that Shifted is called with gets a graph" in str(said[0].message)
    assert said[0].filename == __file__
    assert len(net.signatures) == 2


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x, shifts):
        return self.layer(x) + shifts[0]
