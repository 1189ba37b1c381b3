"""Rules and rule sets as values, and what every rule must say about itself."""

import functools

import pytest
import torch

import varprop as vp
from varprop.errors import RuleError
from varprop.rules import streamlining
from varprop.rules.activation import ACTIVATION
from varprop.rules.normalization import NORMALIZATION
from varprop.rules.ruleset import UNSTATED, op_name

aten = torch.ops.aten

X = vp.Moments(torch.ones(2), torch.ones(2))
RULES = {(rules.name, op): rules[op] for rules in (vp.CVP, vp.FACTORED, vp.STREAMLINING) for op in rules}


@vp.rule(aten.special_exp2.default, approximation=None)
def exp2(x):
    """y = 2^x."""
    return x


@vp.rule(aten.special_exp2.default, aten.relu.default, approximation="all of it", scaled=True)
def both(x):
    """Two at once."""
    return x


def test_every_rule_says_how_exact_it_is():
    for (name, op), rule in RULES.items():
        assert rule.approximation != UNSTATED, f"{name}: {op_name(op)}"
        function = rule.function
        while isinstance(function, functools.partial):
            function = function.func
        assert function.__doc__, f"{name}: {op_name(op)}"


@pytest.mark.parametrize("rules", [vp.STREAMLINING, vp.FACTORED], ids=lambda rules: rules.name)
def test_all_sets_scale_and_mix_at_the_same_ops(rules):
    for op in vp.CVP:
        assert vp.CVP[op].scaled == rules[op].scaled, op_name(op)
        assert vp.CVP[op].mixes == rules[op].mixes, op_name(op)


def test_scales_sit_before_activations_and_norms_with_input_statistics():
    scaled = {op for op in vp.CVP if vp.CVP[op].scaled}
    assert {aten.relu.default, aten.gelu.default, aten.layer_norm.default, aten.rms_norm.default} <= scaled
    assert not {aten._native_batch_norm_legit_no_training.default, aten.linear.default, aten.add.Tensor} & scaled


def test_a_rule_describes_itself():
    assert exp2.name == "exp2"
    assert exp2.neglects(X) is None
    assert both.neglects(X) == "all of it"
    assert vp.rule(aten.special_exp2.default)(lambda x: x).neglects(X) == "the rule does not say how exact it is"


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "expected"),
    [
        (aten.div.Tensor, (X, X.mean), {}, None),
        (aten.div.Tensor, (X.mean, X), {}, "divisor is linearised"),
        (aten.pow.Tensor_Scalar, (X, 3), {}, None),
        (aten.pow.Tensor_Scalar, (X, 0.5), {}, "negative values"),
        (aten.pow.Tensor_Scalar, (X, -0.5), {}, "Delta method"),
        (aten.layer_norm.default, (X, [2]), {}, "frozen at its expectation"),
        (aten.layer_norm.default, (X.mean, [2], X), {}, None),
        (aten.instance_norm.default, (X, None, None, None, None, True, 0.1, 1e-5, False), {}, "frozen"),
        (aten.instance_norm.default, (X, None, None, X.mean, X.var, False, 0.1, 1e-5, False), {}, None),
        (aten.scaled_dot_product_attention.default, (X.mean, X.mean, X), {}, None),
        (aten.scaled_dot_product_attention.default, (X.mean, X, X.mean), {}, "map"),
        (aten._to_copy.default, (X,), {"dtype": torch.float64}, None),
        (aten._to_copy.default, (X,), {"dtype": torch.int64}, "the variance ends here"),
    ],
)
def test_exactness_may_depend_on_the_arguments(op, args, kwargs, expected):
    neglected = vp.CVP[op].neglects(*args, **kwargs)
    assert neglected is None if expected is None else expected in neglected


def test_a_rule_may_be_a_partial_or_wrapped_function():
    def scaled_copy(x, factor):
        """y = f x."""
        return vp.Moments(factor * x.mean, factor**2 * x.var)

    rule = vp.rule(aten.special_exp2.default, approximation=None)(functools.partial(scaled_copy, factor=2.0))
    assert (rule.name, rule.approximation) == ("scaled_copy", None)


def test_a_rule_is_called_like_its_function():
    assert exp2(X) is X


@pytest.mark.parametrize("ops", [(), ("aten.relu.default",)])
def test_rule_wants_ops(ops):
    with pytest.raises(RuleError, match="takes the ops it is for"):
        vp.rule(*ops)


def test_sets_are_maps_from_ops():
    rules = vp.RuleSet(exp2, name="mine")
    assert dict(rules) == {aten.special_exp2.default: exp2}
    assert repr(rules) == "<RuleSet mine: 1 ops>"
    assert "unnamed" in repr(vp.RuleSet())


def test_sets_are_compared_by_their_rules_not_by_their_names():
    halves = [vp.CVP.replace(part) for part in (NORMALIZATION, streamlining.NORMALIZATION, streamlining.ACTIVATION)]
    assert len({rules.name for rules in halves}) == 1
    assert len({rules: rules.name for rules in halves}) == 3
    assert halves[0] == vp.CVP
    assert {vp.CVP: "found"}[halves[0]] == "found"


def test_merging_makes_a_new_set():
    extended = vp.CVP | exp2
    assert extended[aten.special_exp2.default] is exp2
    assert aten.special_exp2.default not in vp.CVP
    assert len(extended) == len(vp.CVP) + 1
    assert extended.name == "CVP"


def test_merging_refuses_a_clash():
    with pytest.raises(RuleError, match=r"aten.relu.default already has a rule, \w+: override it with replace"):
        vp.CVP | both
    with pytest.raises(RuleError, match=r"aten.special_exp2.default already has a rule, exp2"):
        vp.RuleSet(exp2, both)


def test_merging_refuses_what_is_no_rule():
    with pytest.raises(RuleError, match=r"not function: decorate it with @rule"):
        vp.CVP | (lambda x: x)


def test_replacing_overrides():
    replaced = (vp.CVP | exp2).replace(both)
    assert replaced[aten.special_exp2.default] is replaced[aten.relu.default] is both
    assert replaced[aten.gelu.default] is vp.CVP[aten.gelu.default]
    assert vp.CVP[aten.relu.default] is not both


def test_replacing_refuses_the_unknown():
    with pytest.raises(RuleError, match=r"nothing to replace for aten.special_exp2.default: add it with"):
        vp.CVP.replace(exp2)


def test_replacing_names_the_new_set():
    assert vp.CVP.replace(NORMALIZATION).name == "CVP (changed)"
    assert vp.CVP.replace(NORMALIZATION, name="again").name == "again"
    assert (vp.CVP.name, vp.STREAMLINING.name) == ("CVP", "STREAMLINING")


@pytest.mark.parametrize(
    ("members", "changed"),
    [(streamlining.NORMALIZATION, NORMALIZATION), (streamlining.ACTIVATION, ACTIVATION)],
    ids=["CVP without the norm rule", "CVP without exact activations"],
)
def test_the_papers_variants_are_replacements(members, changed):
    variant = vp.CVP.replace(members)
    assert set(variant) == set(vp.CVP)
    assert set(members) >= set(changed)
    for op in vp.CVP:
        assert variant[op] is (members[op] if op in members else vp.CVP[op])
