"""Architectures of Hugging Face that need norms, weight parametrisations and the like, unmodified and tiny."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import varprop as vp
from tests.models import posterior_of

pytestmark = pytest.mark.second

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}


def siglip():
    config = transformers.SiglipVisionConfig(**SMALL, image_size=16, patch_size=4)
    return transformers.SiglipVisionModel(config), torch.randn(2, 3, 16, 16), "pooler_output"


def swinv2():
    config = transformers.Swinv2Config(
        image_size=16, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4, num_labels=3
    )
    return transformers.Swinv2ForImageClassification(config), torch.randn(2, 3, 16, 16), None


def convnextv2():
    config = transformers.ConvNextV2Config(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=3)
    return transformers.ConvNextV2ForImageClassification(config), torch.randn(2, 3, 32, 32), None


def audio(config, model):
    tiny = config(
        **SMALL,
        conv_dim=(16, 16),
        conv_stride=(4, 2),
        conv_kernel=(8, 4),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        num_feat_extract_layers=2,
        classifier_proj_size=16,
        num_labels=3,
    )
    return model(tiny), torch.randn(2, 400), None


def experts(config, model, **more):
    """Routing by softmax (Mixtral), with biases and transposed weights (gpt-oss)."""
    tiny = config(**SMALL, vocab_size=50, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2, **more)
    return model(tiny), torch.randint(1, 50, (2, 5)), None


def longformer():
    """Whether a token attends globally is read from the mask."""
    config = transformers.LongformerConfig(**SMALL, vocab_size=50, attention_window=4, max_position_embeddings=32)
    return transformers.LongformerForSequenceClassification(config), torch.randint(3, 50, (2, 8)), None


def bit():
    """Its convolutions standardise their weights, as a batch of one."""
    config = transformers.BitConfig(hidden_sizes=[16, 32], depths=[1, 1], embedding_size=16, num_groups=8, num_labels=3)
    return transformers.BitForImageClassification(config), torch.randn(2, 3, 32, 32), None


MAKERS = {
    "bit": bit,
    "longformer": longformer,
    "mixtral": lambda: experts(transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "gpt-oss": lambda: experts(transformers.GptOssConfig, transformers.GptOssForCausalLM, head_dim=8),
    "siglip": siglip,
    "swinv2": swinv2,
    "convnextv2": convnextv2,
    "wav2vec2": lambda: audio(transformers.Wav2Vec2Config, transformers.Wav2Vec2ForSequenceClassification),
    "hubert": lambda: audio(transformers.HubertConfig, transformers.HubertForSequenceClassification),
}


LONG = {"gpt-oss", "longformer", "mixtral", "siglip", "swinv2", "wav2vec2"}  # a quarter of a minute each


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in MAKERS])
def test_it_propagates(name):
    torch.manual_seed(0)
    model, x, output = MAKERS[name]()
    model.eval()
    options = {} if output is None else {"output": output}
    assert vp.audit(model, posterior_of(model), x, **options).missing == ()
    plain = getattr(model(x), output or "logits").detach()
    found = vp.propagate(model, posterior_of(model, 1e-6), vp.STREAMLINING, **options)(x)
    torch.testing.assert_close(found.mean, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()))
    assert found.var.isfinite().all()
    assert (found.var > 0).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* cannot be captured with free sizes")
def test_chunks_of_a_scan_at_another_length():
    """Mamba2 pads to whole chunks, by as much as the length lacks."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1}
    model = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**sizes, vocab_size=50, chunk_size=4)).eval()
    net = vp.propagate(model, posterior_of(model, 1e-12))
    for length in (8, 7, 3):
        ids = torch.randint(0, 50, (2, length))
        found, plain = net(input_ids=ids), model(input_ids=ids).logits.detach()
        torch.testing.assert_close(found.mean, plain, rtol=1e-4, atol=1e-5)
        assert (found.var > 0).all()


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "architectures.py"


def test_the_table_of_architectures_is_written_and_goes_on_where_it_stopped(tmp_path):
    out = tmp_path / "rows.jsonl"

    def run(*args):
        return subprocess.run([sys.executable, SCRIPT, *args], check=True, capture_output=True, text=True).stdout

    for most in ("1", "1"):
        run("run", "--libraries", "sample", "--most", most, "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({row["name"] for row in rows}) == len(rows) == 2
    assert all(row["works"] and 0.5 < row["ratio"] < 2 for row in rows)
    assert "2 of 2 architectures" in run("page", out)


def test_a_run_that_is_out_of_time_says_nothing_of_a_model(tmp_path):
    out = tmp_path / "rows.jsonl"
    subprocess.run([sys.executable, SCRIPT, "run", "--libraries", "sample", "--total", "1", "--out", out], check=True)
    assert not out.exists()
