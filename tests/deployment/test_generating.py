"""Token by token, the moments of a pass over the whole text."""

import pytest
import torch
from torch import nn

import varprop as vp
from varprop.deployment.generating import Stepper, generate, greedy, sampled
from varprop.errors import InputError
from varprop.graph.registry import scale_path

transformers = pytest.importorskip("transformers")

WORDS = 40


def gpt2():
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": WORDS, "n_positions": 200}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))


def llama():
    """Two heads of queries share one of keys."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, intermediate_size=64, vocab_size=WORDS))


def predictor_of(make, rules=vp.CVP):
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=0.05), rules)
    net.accelerator = torch.device("cpu")  # as for one with less memory
    net.capture(input_ids=torch.zeros(2, 5, dtype=torch.int64))
    for number, scale in enumerate(net.scale_names):  # as a calibration would
        net.scale[scale_path(scale)].detach().fill_(0.3 * (number % 3 - 1))
    net.temperature = 1.3
    return vp.Propagated(net, link=vp.links.MeanFieldSoftmax())


def assert_as_a_full_pass(predictor, prompt, found):
    """Every token against a pass over the prompt and all tokens before it."""
    ids = torch.cat([prompt, found.tokens], 1)
    full = predictor(input_ids=ids)
    places = slice(prompt.shape[1] - 1, ids.shape[1] - 1)
    tokens = found.tokens[:, :, None]
    log_prob = full.probs[:, places].gather(2, tokens)[:, :, 0].log()
    torch.testing.assert_close(found.log_prob, log_prob, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.var, full.logits.var[:, places].gather(2, tokens)[:, :, 0], rtol=1e-4, atol=1e-6)
    return full, places


def check(make, rules=vp.CVP):
    predictor = predictor_of(make, rules)
    stepper, prompt = Stepper(predictor), torch.randint(0, WORDS, (3, 6))
    assert stepper.step.accelerator == predictor.net.accelerator
    found = generate(stepper, prompt, tokens=9)
    full, places = assert_as_a_full_pass(predictor, prompt, found)
    assert torch.equal(found.tokens, full.probs[:, places].argmax(-1))
    torch.testing.assert_close(found.score, found.log_prob.mean(1))
    torch.testing.assert_close(found.total_var, found.var.sum(1))

    drawn = generate(stepper, prompt, tokens=9, choose=sampled(torch.Generator().manual_seed(0)))
    assert_as_a_full_pass(predictor, prompt, drawn)
    assert not torch.equal(drawn.tokens, found.tokens)
    again = generate(stepper, prompt, tokens=9, choose=sampled(torch.Generator().manual_seed(0)))
    assert torch.equal(drawn.tokens, again.tokens)

    # A shorter prompt, padded on the left, goes on as it does by itself.
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.int64), prompt[:1, :4]], 1)
    mask = (torch.arange(6) >= 2).long()[None]
    both = generate(
        stepper, torch.cat([padded, prompt[1:2]]), torch.cat([mask, torch.ones_like(mask)]), tokens=9, choose=greedy
    )
    alone = generate(stepper, prompt[:1, :4], tokens=9)
    assert torch.equal(both.tokens[:1], alone.tokens)
    torch.testing.assert_close(both.var[:1], alone.var, rtol=1e-4, atol=1e-6)
    assert torch.equal(both.tokens[1], found.tokens[1])

    # After its end, a text adds nothing to what is said of it.
    end = int(found.tokens[0, 3])
    stopped = generate(stepper, prompt, tokens=9, end=end)
    first = [row.tolist().index(end) + 1 if end in row else 9 for row in found.tokens]
    assert stopped.lengths.tolist() == first
    assert stopped.tokens.shape[1] == max(first)
    torch.testing.assert_close(stopped.score[0], found.log_prob[0, : first[0]].mean())
    assert float(stopped.var[0, first[0] :].sum()) == 0
    assert len(stepper.step.signatures) == 2, "one graph for prompts, one for all tokens after them"


@pytest.mark.second
def test_gpt2():
    check(gpt2)


@pytest.mark.slow
@pytest.mark.parametrize("rules", [vp.CVP, vp.FACTORED], ids=lambda rules: rules.name)
def test_llama(rules):
    check(llama, rules)


def test_what_does_not_generate():
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match="takes a Propagated causal language model, not a MeanNetwork"):
        generate(vp.MeanNetwork(model), torch.zeros(1, 2, dtype=torch.int64))
    predictor = vp.Propagated(vp.propagate(model, vp.Posterior.isotropic(model)))
    with pytest.raises(InputError, match="Linear is no causal language model"):
        generate(predictor, torch.zeros(1, 2, dtype=torch.int64))
