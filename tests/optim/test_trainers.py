"""The examples: a loop of one's own, Hugging Face's Trainer, Lightning. They train, evaluate at the means, resume."""

import importlib
import logging
from pathlib import Path

import pytest
import torch

from tests.optim.tasks import curvature, same, weights
from varprop.optim import IVON
from varprop.posterior import Posterior

pytestmark = pytest.mark.second
EXAMPLES = Path(__file__).parents[2] / "examples"

# Of the trainers' own making: few loader workers, no metric logger, a deprecated call inside.
quiet = pytest.mark.filterwarnings(
    "ignore::UserWarning:lightning", "ignore::FutureWarning:lightning", "ignore::DeprecationWarning:lightning"
)


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield importlib.import_module
    torch.set_num_threads(threads)


def check_trained(model, optimizer, steps):
    assert isinstance(optimizer, IVON)
    assert not optimizer.perturbed
    assert all(optimizer.state[p]["step"] == steps for p in model.parameters())
    assert (curvature(optimizer) != optimizer.defaults["hess_init"]).float().mean() > 0.999
    posterior = Posterior.from_ivon(model, optimizer)
    assert all(torch.equal(posterior[name].mean, p.detach()) for name, p in model.named_parameters())


@pytest.mark.slow
def test_digits(example):
    pytest.importorskip("sklearn")
    module = example("train_digits")
    torch.manual_seed(0)
    images, labels, test_images, test_labels = module.digits()
    model = module.ViT()
    optimizer = module.train(model, images, labels)
    check_trained(model, optimizer, 900)
    assert module.accuracy(model, test_images, test_labels) >= 0.97
    with optimizer.sampled_params():
        assert module.accuracy(model, test_images, test_labels) >= 0.95


def test_hugging_face_trainer(example, tmp_path):
    for package in ("sklearn", "transformers", "accelerate"):
        pytest.importorskip(package)
    module = example("train_with_trainer")
    options = {"num_train_epochs": 4, "save_strategy": "epoch", "logging_strategy": "no"}
    straight = module.trainer(str(tmp_path / "straight"), **options)
    straight.train()
    optimizer = straight.optimizer.optimizer
    check_trained(straight.model, optimizer, 180)
    assert straight.evaluate()["eval_accuracy"] > 0.85
    assert len(Posterior.from_ivon(straight.model, straight.optimizer)) == 31

    torch.manual_seed(5)
    resumed = module.trainer(str(tmp_path / "resumed"), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-90"))
    assert same(weights(straight.model), weights(resumed.model))
    assert torch.equal(curvature(optimizer), curvature(resumed.optimizer.optimizer))


@quiet
def test_lightning(example, tmp_path):
    for package in ("sklearn", "lightning"):
        pytest.importorskip(package)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = example("train_with_lightning")
    loader, test = module.loaders()
    fixed = torch.utils.data.DataLoader(loader.dataset, batch_size=16)  # Lightning saves no state of the shuffling

    def fit(epochs, checkpoint=None):
        torch.manual_seed(0)
        model = module.Classifier(steps=180)
        built = module.trainer(max_epochs=epochs, default_root_dir=tmp_path)
        built.fit(model, fixed, test, ckpt_path=checkpoint)
        return model, built

    model, straight = fit(4)
    check_trained(model, straight.optimizers[0], 180)
    assert straight.callback_metrics["accuracy"] > 0.85
    assert len(Posterior.from_ivon(model, model.optimizers())) == 31
    _, half = fit(2)
    half.save_checkpoint(tmp_path / "half.ckpt")
    other, resumed = fit(4, tmp_path / "half.ckpt")
    assert same(weights(model), weights(other))
    assert torch.equal(curvature(straight.optimizers[0]), curvature(resumed.optimizers[0]))


@quiet
def test_lightning_without_the_hook_is_refused_when_accumulating(example, tmp_path):
    for package in ("sklearn", "lightning"):
        pytest.importorskip(package)
    module = example("train_with_lightning")

    class Forgetful(module.Classifier):
        def on_train_batch_start(self, batch, batch_idx):
            pass

    built = module.trainer(max_epochs=1, default_root_dir=tmp_path)
    with pytest.raises(RuntimeError, match="taken at the means.*before the first forward pass"):
        built.fit(Forgetful(45), module.loaders()[0])
    built = module.trainer(max_epochs=1, max_steps=3, accumulate_grad_batches=1, default_root_dir=tmp_path)
    built.fit(Forgetful(45), module.loaders()[0])  # otherwise the closure is enough
    assert {state["step"] for state in built.optimizers[0].state.values()} == {3}
