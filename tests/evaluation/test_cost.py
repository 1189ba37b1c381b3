"""What a pass costs, on a network so small that only relations between the numbers can be right."""

import pytest
import torch
from torch import nn

from tests.models import posterior_of
from varprop.evaluation import cost
from varprop.evaluation.cost import relative_costs
from varprop.evaluation.methods import Method, listed
from varprop.rules import CVP, rule

X = torch.randn(4, 3)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


def test_relations(model, monkeypatch):
    """Times are synthetic: a propagated pass takes 3, a draw takes 1, a plain pass takes 2."""
    slow, slower = (CVP.replace(rule(torch.ops.aten.relu.default)(lambda x: x)) for _ in range(2))
    assert slow.name == slower.name  # and yet each is timed
    times = {"draw": 1.0, "plain": 2.0, slow: 4.0, slower: 6.0}
    monkeypatch.setattr(cost, "_medians", lambda functions, *_: {name: times.get(name, 3.0) for name in functions})
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    methods = listed("mean,temperature,mc-4,mc-1,cvp,cvp-none,streamlining,cvp-temperature")
    methods += [Method("slow", "slow", slow), Method("slower", "slower", slower)]
    found = relative_costs(methods, model, posterior_of(model), X)
    assert list(found) == [method.slug for method in methods]
    assert found["mean"] == found["temperature"] == {"plain": 1, "sample": pytest.approx(2 / 3)}
    assert found["mc-4"] == {"plain": 6, "sample": 4}
    assert found["mc-1"] == {"plain": 1.5, "sample": 1}
    assert found["cvp"] == found["cvp-none"] == found["streamlining"] == {"plain": 1.5, "sample": 1}
    assert found["cvp-temperature"] == found["cvp"]
    assert (found["slow"]["plain"], found["slower"]["plain"]) == (2, 3)


@pytest.mark.second
def test_measured(monkeypatch):
    """Compiled, for one network after another, though torch compiles one piece of code a few times only."""
    alive = []  # as compiled networks may be until somebody collects the garbage
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *a, **k: alive.append(compile_(*a, **k)) or alive[-1])
    methods = listed("mean,temperature,mc-4,cvp")
    with torch._dynamo.config.patch(recompile_limit=1):
        for seed in range(2):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(3, 4 + seed), nn.ReLU(), nn.Linear(4 + seed, 2)).eval()
            found = relative_costs(methods, model, posterior_of(model), X, rounds=3)
            assert list(found) == [method.slug for method in methods]
            assert found["mc-4"]["sample"] == pytest.approx(4)
            assert found["mean"]["plain"] == 1
            assert found["mean"] == found["temperature"]
            for value in found.values():
                assert 0 < value["sample"] < value["plain"]


def test_without_a_compiler(model, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand much more")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    with pytest.warns(UserWarning, match=r"costs are not measured.*No working C\+\+ compiler found\)$"):
        assert relative_costs(listed("mean,cvp"), model, posterior_of(model), X) == {}


def test_what_is_wrong_with_the_model_is_not_put_on_the_compiler(model):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        relative_costs(listed("mean"), model, posterior_of(model), torch.randn(4, 7))
