"""A predictor at the end of training, of what was trained."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import varprop as vp
from varprop.errors import InputError

X = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
QUICK = {"procedure": vp.FixedEpochs(1)}
pytestmark = [
    pytest.mark.second,
    pytest.mark.filterwarnings(
        "ignore:.*held-out examples for",
        "ignore:calibration ended after",
        "ignore:these predictions are underconfident",
        # Of Lightning's own making: few loader workers, a deprecated call inside.
        "ignore::UserWarning:lightning",
        "ignore::FutureWarning:lightning",
        "ignore::DeprecationWarning:lightning",
    ),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Dropout(0.1), nn.Linear(6, 2))

    def forward(self, x, labels=None):
        logits = self.stack(x)
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


def check(predictor, net, posterior):
    assert isinstance(predictor, vp.Propagated)
    with torch.no_grad():
        expected = net.stack(X)
    assert torch.allclose(predictor.net.mean["stack.0.weight"], net.stack[0].weight)
    assert float((predictor(X).label == expected.argmax(-1)).float().mean()) > 0.9
    variances = torch.cat([var.flatten() for _, var in predictor.net.var])
    assert (len(variances.unique()) > 1) == (posterior is not None)


DATA = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]


def train(folder, callback, eval_dataset=None, **options):
    """With Hugging Face's Trainer; returns the network."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    options |= {"max_steps": 4, "report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    arguments, net = transformers.TrainingArguments(str(folder), **options), Net()
    transformers.Trainer(net, arguments, None, DATA[:60], eval_dataset, callbacks=[callback]).train()
    return net


@pytest.mark.parametrize("posterior", [None, vp.Posterior.from_adam], ids=["isotropic", "adam"])
def test_trainer(tmp_path, posterior):
    callback_of = pytest.importorskip("varprop.integrations.trainer_callback").FitAtTrainEnd
    callback = callback_of(DataLoader(DATA[60:], 30), posterior=posterior, **QUICK)
    net = train(tmp_path, callback)
    check(callback.predictor, net, posterior)


def test_trainer_that_evaluates(tmp_path):
    """What it evaluates on is calibrated on; without any, the message says what to give."""
    callback_of = pytest.importorskip("varprop.integrations.trainer_callback").FitAtTrainEnd
    callback = callback_of(**QUICK)
    net = train(tmp_path, callback, DATA[60:], eval_strategy="steps", eval_steps=2)
    check(callback.predictor, net, None)
    with pytest.raises(InputError, match="held_out="):
        train(tmp_path, callback_of())


@pytest.mark.parametrize("posterior", [None, vp.Posterior.from_adam], ids=["isotropic", "adam"])
def test_lightning(tmp_path, posterior):
    lightning = pytest.importorskip("lightning")
    from varprop.integrations.lightning_callback import FitAtFitEnd

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.net.parameters(), lr=0.01)

        def training_step(self, batch, index):
            return self.net(*batch)["loss"]

        def validation_step(self, batch, index):
            pass

    callback = FitAtFitEnd(network=lambda module: module.net, posterior=posterior, **QUICK)
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    module, data = Module(), TensorDataset(X, Y)
    trainer.fit(module, DataLoader(data, 40), DataLoader(data, 60))
    check(callback.predictor, module.net, posterior)
