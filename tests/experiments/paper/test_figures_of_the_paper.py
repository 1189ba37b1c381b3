import math

import numpy as np
import pytest

from experiments.paper.block_scales import block_scales, geometric, per_block, places
from experiments.paper.norms import Norms, load_norms, save_norms, scatter
from varprop.errors import ResultsError
from varprop.evaluation.results import Results, Row
from varprop.report.style import drawing_style

pytestmark = pytest.mark.second

OURS = {"norm1": 2.0, "norm2": 4.0, "mlp.1": 1.0}
VIT = {"layernorm_before": 2.0, "layernorm_after": 4.0, "mlp.activation_fn": 1.0}
OLD_VIT = {"layernorm_before": 2.0, "layernorm_after": 4.0, "intermediate.intermediate_act_fn": 1.0}
BERT = {"attention.output.LayerNorm": 2.0, "intermediate.intermediate_act_fn": 1.0, "output.LayerNorm": 4.0}
DISTIL = {"sa_layer_norm": 2.0, "ffn.activation": 1.0, "output_layer_norm": 4.0}
GPT = {"ln_1": 2.0, "ln_2": 4.0, "mlp.act": 1.0}


def network(prefix, block, before=(), behind=()):
    made = dict.fromkeys(before, 9.0)
    made |= {f"{prefix}{i}.{name}": alpha for i in range(12) for name, alpha in block.items()}
    return made | dict.fromkeys(behind, 3.0) | {"(output)": 0.5}


@pytest.mark.parametrize(
    "scales",
    [
        network("blocks.", OURS, behind=["norm"]),
        network("vit.layers.", VIT, behind=["vit.layernorm"]),
        network("vit.encoder.layer.", OLD_VIT, behind=["vit.layernorm", "vit.pooler.activation"]),
        network("bert.encoder.layer.", BERT, before=["bert.embeddings.LayerNorm"], behind=["bert.pooler.activation"]),
        network("distilbert.transformer.layer.", DISTIL, before=["distilbert.embeddings.LayerNorm"], behind=[""]),
        network("transformer.h.", GPT, behind=["transformer.ln_f"]),
        network("encoder.layers.encoder_layer_", GPT, behind=["encoder.ln"]),
    ],
)
def test_scales_are_found_in_every_kind_of_transformer(scales):
    found = per_block(scales)
    blocks = [place for place in found if place.isdigit()]
    assert blocks == [str(i) for i in range(12)]
    for place in blocks:
        # FFN: √(4 · 1); both: √(2 · 2).
        assert found[place] == pytest.approx({"attention": 2, "FFN": 2, "geometric mean": 2})
    assert found["P"] == pytest.approx({"geometric mean": 3})
    assert found["L"] == {"geometric mean": 0.5}
    assert list(found)[-2:] == ["P", "L"]
    assert ("E" in found) == ("embeddings" in next(iter(scales)))


def test_what_is_no_stack_of_transformer_blocks_is_left_alone():
    resnet = {f"layer{stage}.{block}.relu{n}": 1.0 for stage in (1, 2) for block in (0, 1) for n in ("", "#2", "#3")}
    assert places({"relu": 1.0, **resnet, "(output)": 1.0}) is None
    normed = {f"layer{stage}.{block}.norm1": 1.0 for stage in (1, 2) for block in (0, 1)}
    assert places(normed) is None  # stages are not one stack
    assert places({}) is None
    assert block_scales("d", [Row("d", "cvp", 0, 4, {"accuracy": 0.5}, scales=resnet)], ["cvp"]) is None


def test_geometric_means():
    assert geometric([1, 4]) == pytest.approx(2)
    assert math.isnan(geometric([1, 0]))


def test_the_figure_has_a_panel_per_method_and_a_band_over_seeds():
    rows = []
    for method in ("cvp", "streamlining-per-layer"):
        for seed in range(3):
            scales = {path: alpha * math.exp(seed - 1) for path, alpha in network("blocks.", OURS).items()}
            rows.append(Row("d", method, seed, 4, {"accuracy": 0.5}, scales=scales))
    with drawing_style():
        drawing = block_scales("d", rows, ["cvp", "streamlining-per-layer"])
    assert [axes.get_title("left") for axes in drawing.figure.axes] == ["CVP", "Streamlining + per layer"]
    line = drawing.data.set_index(["method", "place", "part"]).loc["cvp", "3", "attention"]
    # log α is log 2 − 1, log 2, log 2 + 1: its standard deviation is 1.
    np.testing.assert_allclose(line, [2, 2 / math.e, 2 * math.e, 3])
    axes = drawing.figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [*map(str, range(12)), "L"]


def synthetic_norms(title="Σ ~ U(0, 5)", size=20):
    rng = np.random.default_rng(0)
    points = {name: rng.random((size, 3)).astype(np.float32) for name in ("mean", "var")}
    rmse = {"cvp": {"mean": 0.01, "var": 0.02}, "streamlining": {"mean": 0.1, "var": 0.2}}
    return Norms(title, 4000, 12288, rmse, points)


def test_norms_come_back_as_they_were_and_are_drawn_with_their_errors(tmp_path):
    results, given = Results(tmp_path), [synthetic_norms(), synthetic_norms("Σ ~ U(0, 10)", 5)]
    assert load_norms(results, "synthetic") == ()
    save_norms(results, "synthetic", given)
    found = load_norms(results, "synthetic")
    assert [(n.title, n.samples, n.activations, n.rmse) for n in found] == [
        (n.title, n.samples, n.activations, n.rmse) for n in given
    ]
    for ours, theirs in zip(given, found, strict=True):
        for name, points in ours.points.items():
            np.testing.assert_array_equal(theirs.points[name], points)
    with drawing_style():
        drawing = scatter("synthetic", found, "LayerNorm")
    assert "Σ ~ U(0, 5), variance: RMSE CVP 0.02, Streamlining 0.2" in drawing.alt
    labels = [text.get_text() for text in drawing.figure.axes[0].get_legend().get_texts()]
    assert labels == ["CVP, RMSE 0.01", "Streamlining, RMSE 0.1"]
    assert len(drawing.data) == 2 * 25
    results.keep("norms/d", {"facts": np.array("[{}]")})
    with pytest.raises(ResultsError, match="norms/d holds no comparison"):
        load_norms(results, "d")
