"""The eight architectures, unmodified: what their networks of moments must have in common."""

import copy
import functools

import pytest
import torch

import varprop as vp
from tests.models import MAKERS, make, posterior_of

NAMES = sorted(MAKERS)


def also(*values):
    """What others show too: in the second target."""
    return pytest.param(*values, marks=pytest.mark.second)


@functools.cache
def propagated(name, rules="CVP"):
    model, batch = make(name)
    net = vp.propagate(model, posterior_of(model), getattr(vp, rules))
    return model, batch, net, net(**batch)


def without_variance(net):
    """A copy in which every weight is certain; to be traced, because products of the old variances are folded."""
    clone = copy.deepcopy(net)
    for var in dict([*clone.var]).values():
        var.zero_()
    return clone


@pytest.mark.parametrize("name", NAMES)
def test_zero_variance_is_the_plain_model(name):
    model, batch, net, _ = propagated(name)
    result = without_variance(net).trace(**batch)[""]
    torch.testing.assert_close(result.mean, model(**batch).logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(result.var, torch.zeros_like(result.mean))


@pytest.mark.parametrize("name", ["bert", also("gpt2"), also("llama"), also("resnet")])
def test_streamlining_keeps_every_mean_and_cvp_does_not(name):
    model, batch, _, result = propagated(name, "STREAMLINING")
    plain = model(**batch).logits
    torch.testing.assert_close(result.mean, plain, rtol=1e-4, atol=1e-5)
    assert (propagated(name)[3].mean - plain).abs().max() > 1e-4
    assert (result.var > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_flat_graph_equals_the_walk(name):
    _, batch, net, result = propagated(name)
    walked = net.trace(**batch)[""]
    torch.testing.assert_close(result.mean, walked.mean)
    torch.testing.assert_close(result.var, walked.var)


@pytest.mark.parametrize("name", NAMES)
def test_another_batch_size_needs_no_new_graph(name):
    _, batch, net, result = propagated(name)
    single = {key: value[:1] for key, value in batch.items()}
    torch.testing.assert_close(net(**single).var, result.var[:1], rtol=1e-4, atol=1e-7)
    assert len(net.signatures) == 1


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "llama"])
def test_another_length_needs_no_new_graph(name):
    model, batch, net, _ = propagated(name)
    longer = {key: torch.cat([value, value[:, :4]], 1) for key, value in batch.items()}
    torch.testing.assert_close(net(**longer).var, net.trace(**longer)[""].var)
    plain = without_variance(net).trace(**longer)[""].mean
    torch.testing.assert_close(plain, model(**longer).logits, rtol=1e-4, atol=1e-5)
    assert len(net.signatures) == 1


@pytest.mark.parametrize("name", ["bert", also("beit"), also("gpt2"), also("llama")])
def test_eager_attention_equals_sdpa(name):
    _, batch, _, result = propagated(name)
    model, _ = make(name, attn_implementation="eager")
    eager = vp.propagate(model, posterior_of(model))(**batch)
    seen = slice(None)
    if result.mean.ndim == 3 and "attention_mask" in batch:
        # Where a padding token sees nothing at all, the two implementations differ in the plain model already.
        seen = batch["attention_mask"].bool()
    torch.testing.assert_close(eager.mean[seen], result.mean[seen], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(eager.var[seen], result.var[seen], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["beit", also("llama")])
def test_nothing_is_missing_and_the_report_says_what_is_approximate(name):
    model, batch = make(name)
    report = vp.audit(model, posterior_of(model), **batch)
    assert not report.missing
    assert {row.exactness for row in report} <= {"", "exact", "independent", "approximate"}
    assert any(row.variance == "starts" for row in report)
    assert all(row.note for row in report.approximate)


@pytest.mark.parametrize("name", ["vit", "bert", "llama"])
def test_queries_and_keys_carry_no_variance(name):
    _, _, net, _ = propagated(name)
    read = {node.target for plan in net._plans for node in plan.module.graph.find_nodes(op="get_attr")}
    words = ("q_proj", "k_proj", "query", "key")
    assert any(path.startswith("mean.") and any(word in path for word in words) for path in read)
    assert not any(path.startswith("var.") and any(word in path for word in words) for path in read)


def test_what_depends_on_no_input_is_computed_once():
    """BEiT's table of relative positions is read at places that it finds from a grid, in several steps."""
    _, _, net, _ = propagated("beit")
    ops = {node.target for plan in net._plans for node in plan.module.graph.nodes}
    assert not ops & {torch.ops.aten.meshgrid.indexing, torch.ops.aten.select_scatter.default}


@pytest.mark.parametrize(
    ("name", "dtype"), [("bert", torch.bfloat16), also("llama", torch.bfloat16), also("llama", torch.double)]
)
def test_other_dtypes(name, dtype):
    _, batch, captured, before = propagated(name)
    net = copy.deepcopy(captured).to(dtype)
    after = net(**batch)
    assert after.mean.dtype == after.var.dtype == dtype
    assert all(tensor.dtype == dtype for tensor in net.state_dict().values() if tensor.is_floating_point())
    tolerance = 1e-4 if dtype == torch.float64 else 0.1
    torch.testing.assert_close(after.mean.float(), before.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(after.var.float(), before.var, rtol=tolerance, atol=tolerance * float(before.var.max()))


@pytest.mark.parametrize("name", ["bert", also("llama")])
def test_a_device_move(name):
    _, batch, captured, _ = propagated(name)
    net = copy.deepcopy(captured).to("meta")
    result = net(**{key: value.to("meta") for key, value in batch.items()})
    assert result.mean.device.type == result.var.device.type == "meta"
    with pytest.raises(vp.errors.DeviceMismatchError, match=r"an input is on cpu, the network on meta"):
        net(**batch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name):
    _, batch, captured, before = propagated(name)
    after = copy.deepcopy(captured).to("cuda")(**{key: value.cuda() for key, value in batch.items()})
    torch.testing.assert_close(after.mean.cpu(), before.mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(after.var.cpu(), before.var, rtol=1e-3, atol=1e-5)


def test_autocast():
    _, batch, net, result = propagated("vit")
    with torch.autocast("cpu", torch.bfloat16):
        mixed = net(**batch)
    torch.testing.assert_close(mixed.mean.float(), result.mean, rtol=0.05, atol=0.05)
    torch.testing.assert_close(mixed.var.float(), result.var, rtol=0.1, atol=float(result.var.max()) * 0.05)


@pytest.mark.parametrize(("name", "rules"), [also("bert", "CVP"), ("llama", "CVP"), ("vit", "FACTORED")])
def test_compiled_without_graph_breaks(name, rules):
    _, batch, net, result = propagated(name, rules)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for size in (3, 2):
        part = {key: value[:size] for key, value in batch.items()}
        torch.testing.assert_close(compiled(**part).var, result.var[:size], rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_compiled_by_inductor():
    _, batch, net, result = propagated("vit")
    compiled = torch.compile(net, fullgraph=True)(**batch)
    torch.testing.assert_close(compiled.mean, result.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.var, result.var, rtol=1e-4, atol=1e-7)
