"""from_adam: torch's Adam and its kin, their state dicts, and checkpoints of Trainer and of Lightning."""

import copy
import json

import pytest
import torch
from torch import nn

from varprop.errors import (
    CurvatureError,
    DeviceMismatchError,
    OptimizerStateError,
    PosteriorFileError,
    PosteriorMismatchError,
    SettingError,
)
from varprop.posterior import Posterior

BATCH, EXAMPLES, DAMPING = 8, 1000, 0.5


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))


def train(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(BATCH, 3)).square().mean().backward()
        optimizer.step()


def trained(kind=torch.optim.AdamW, params=lambda model: model.parameters(), **options):
    model = network()
    optimizer = kind(params(model), lr=0.01, **options)
    train(model, optimizer)
    return model, optimizer


def decayed_or_not(model):
    """The usual two groups, without names: weights of matrices, and all vectors."""
    own = list(model.parameters())
    return [
        {"params": [p for p in own if p.ndim > 1], "betas": (0.9, 0.95)},
        {"params": [p for p in own if p.ndim == 1], "weight_decay": 0.0},
    ]


def expected(model, optimizer):
    """The formula, a second time: 1/(n (B v/(1 − β₂ᵗ) + δ)), in float64."""
    names = {id(p): name for name, p in model.named_parameters()}
    h = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p in optimizer.state:
                state = optimizer.state[p]
                h[names[id(p)]] = BATCH * state["exp_avg_sq"].double() / (1 - group["betas"][1] ** float(state["step"]))
    delta = DAMPING * torch.cat([part.flatten() for part in h.values()]).mean()
    return {name: 1 / (EXAMPLES * (part + delta)) for name, part in h.items()}


def read(model, source, **options):
    settings = {"batch_size": BATCH, "examples": EXAMPLES, "damping": DAMPING, **options}
    return Posterior.from_adam(model, source, **settings)


def check(posterior, model, optimizer):
    parameters, var = dict(model.named_parameters()), expected(model, optimizer)
    assert set(posterior) == set(var)
    for name in var:
        assert torch.equal(posterior[name].mean, parameters[name])
        torch.testing.assert_close(posterior[name].var.double(), var[name], rtol=1e-5, atol=0)
    assert len(torch.cat([part.flatten() for part in var.values()]).unique()) > len(var)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.Adam, {"amsgrad": True, "betas": (0.8, 0.9)}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"params": decayed_or_not}),
        (torch.optim.AdamW, {"params": lambda model: model.named_parameters()}),
        (torch.optim.NAdam, {}),
        (torch.optim.RAdam, {}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(value),
)
def test_variances_are_those_of_the_formula(kind, options):
    model, optimizer = trained(kind, **options)
    for source in (optimizer, optimizer.state_dict()):
        check(read(model, source), model, optimizer)


def test_a_rate_that_is_a_tensor_and_a_copy_of_the_model():
    """As capturable optimizers and checkpoints have them."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
    train(model, optimizer)
    check(read(copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())), model, optimizer)


def test_what_is_frozen_is_deterministic():
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    posterior = read(model, optimizer)
    assert set(posterior) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    check(posterior, model, optimizer)


def test_tied_weights_are_there_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    assert set(read(model, optimizer)) == {"0.weight", "0.bias", "2.bias"}


def test_the_scale_of_the_loss_and_the_batch_do_not_matter_without_a_number_of_examples():
    runs = []
    for scale in (1.0, 1e-4):
        model = network()
        torch.manual_seed(1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0, eps=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            (scale * model(torch.randn(BATCH, 3)).square().mean()).backward()
            optimizer.step()
        runs.append(Posterior.from_adam(model, optimizer, batch_size=BATCH * scale))
    for name in runs[0]:
        torch.testing.assert_close(runs[0][name].var, runs[1][name].var, rtol=1e-4, atol=0)
    var, isotropic = (
        torch.cat([part.flatten() for part in posterior.var.values()])
        for posterior in (runs[0], Posterior.isotropic(model))
    )
    torch.testing.assert_close(var.mean(), isotropic.mean())
    assert var.max() < 10 * var.mean()


# --- checkpoints -----------------------------------------------------------------------------------------


def trainer_folder(folder, optimizer, step=3):
    folder.mkdir()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "train_batch_size": BATCH}))
    return folder


def test_a_folder_of_trainer_is_read_by_its_rule_where_shapes_would_not_tell(tmp_path):
    """A BatchNorm's gain has weight decay, its bias has none; both are vectors of one length."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4))
    own = dict(model.named_parameters())
    groups = [{"params": [p for n, p in own.items() if ("bias" in n) == exempt]} for exempt in (False, True)]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    train(model, optimizer)
    with pytest.raises(PosteriorMismatchError, match="do not tell which parameters"):
        read(model, optimizer.state_dict())
    check(read(model, trainer_folder(tmp_path / "checkpoint-3", optimizer)), model, optimizer)


@pytest.mark.second  # transformers and accelerate take their time
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_a_checkpoint_that_trainer_wrote(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, num_labels=2
    )
    model = transformers.BertForSequenceClassification(config)
    model.bert.embeddings.requires_grad_(False)
    examples = [{"input_ids": [1 + i % 9, 2, 3], "attention_mask": [1, 1, 1], "labels": i % 2} for i in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=BATCH, max_steps=3, save_steps=3, use_cpu=True
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=examples)
    trainer.train()
    optimizer = trainer.optimizer.optimizer
    check(read(model, tmp_path / "checkpoint-3"), model, optimizer)
    check(read(model, trainer.optimizer), model, optimizer)  # inside accelerate's wrapper
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-3")
    again.bert.embeddings.requires_grad_(False)
    check(read(again, tmp_path / "checkpoint-3"), model, optimizer)
    with pytest.raises(PosteriorFileError, match="did you mean .*checkpoint-3"):
        read(model, tmp_path)


def test_a_checkpoint_of_lightning(tmp_path):
    model, optimizer = trained()
    path = tmp_path / "last.ckpt"
    whole = {"pytorch-lightning_version": "2.6.6", "epoch": 1, "global_step": 3, "state_dict": model.state_dict()}
    torch.save({**whole, "optimizer_states": [optimizer.state_dict()], "lr_schedulers": []}, path)
    check(read(model, path), model, optimizer)
    check(read(model, str(path)), model, optimizer)
    torch.save({**whole, "optimizer_states": [optimizer.state_dict()] * 2}, path)
    with pytest.raises(PosteriorFileError, match="2 optimizers"):
        read(model, path)
    torch.save(whole, path)
    with pytest.raises(PosteriorFileError, match="save_weights_only"):
        read(model, path)


class Anything:
    """What a checkpoint may hold that only unpickling would bring back."""


def test_files_that_could_run_code_are_refused(tmp_path):
    model, optimizer = trained()
    path = tmp_path / "last.ckpt"
    torch.save({"optimizer_states": [optimizer.state_dict()], "hyper_parameters": Anything()}, path)
    with pytest.raises(PosteriorFileError, match="could run code"):
        read(model, path)
    path.write_bytes(b"no checkpoint")
    with pytest.raises(PosteriorFileError, match="damaged"):
        read(model, path)
    with pytest.raises(PosteriorFileError, match="there is no"):
        read(model, tmp_path / "other.ckpt")
    with pytest.raises(OptimizerStateError, match="before the first step"):
        read(model, trainer_folder(tmp_path / "checkpoint-0", optimizer, step=0))
    for text in ("{", "[]", "{}"):
        (tmp_path / "checkpoint-0" / "trainer_state.json").write_text(text)
        with pytest.raises(PosteriorFileError, match=r"trainer_state\.json is damaged"):
            read(model, tmp_path / "checkpoint-0")


# --- refusals --------------------------------------------------------------------------------------------


def test_an_optimizer_of_another_model():
    _, optimizer = trained()
    with pytest.raises(PosteriorMismatchError, match="not in this Sequential"):
        read(network(), optimizer)
    other = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2))
    with pytest.raises(PosteriorMismatchError, match="of another model"):
        read(other, optimizer.state_dict())
    with pytest.raises(PosteriorMismatchError, match="those of another model"):
        read(other, trained(params=decayed_or_not)[1].state_dict())
    with pytest.raises(PosteriorMismatchError, match="cannot be told"):
        read(nn.Linear(3, 4), optimizer.state_dict())


def test_a_state_without_steps_or_without_moments():
    model = network()
    with pytest.raises(OptimizerStateError, match="no step"):
        read(model, torch.optim.AdamW(model.parameters()))
    for kind, options in (
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Adamax, {}),
    ):
        with pytest.raises(OptimizerStateError, match="Adam, AdamW, NAdam and RAdam"):
            read(*trained(kind, **options))


def test_quantised_states():
    """bitsandbytes keeps blocks of bytes and their scales."""
    model, optimizer = trained()
    state = copy.deepcopy(optimizer.state_dict())
    for entry in state["state"].values():
        squares = entry.pop("exp_avg_sq")
        entry |= {"state2": squares.to(torch.uint8), "qmap2": torch.zeros(256), "absmax2": torch.zeros(1)}
    with pytest.raises(OptimizerStateError, match="8-bit"):
        read(model, state)


def test_moments_that_are_not_finite_or_all_zero():
    model, optimizer = trained()
    optimizer.state[model[0].weight]["exp_avg_sq"][0, 0] = float("nan")
    with pytest.raises(CurvatureError, match="'0.weight': in 1 of 12"):
        read(model, optimizer)
    for state in optimizer.state.values():
        state["exp_avg_sq"].zero_()
    with pytest.raises(CurvatureError, match="zero everywhere"):
        read(model, optimizer)


@pytest.mark.parametrize("option", ["batch_size", "examples", "damping"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "8"])
def test_options_that_make_no_sense(option, value):
    with pytest.raises(SettingError, match=option):
        read(*trained(), **{option: value})


def test_a_model_on_several_devices():
    model, optimizer = trained()
    model[3].weight = nn.Parameter(torch.empty(2, 4, device="meta"))
    for make in (
        lambda: read(model, optimizer.state_dict()),
        lambda: Posterior.isotropic(model),
        lambda: Posterior.from_fisher(model, [(torch.randn(2, 3), torch.zeros(2))]),
    ):
        with pytest.raises(DeviceMismatchError, match="spread over cpu, meta"):
            make()
