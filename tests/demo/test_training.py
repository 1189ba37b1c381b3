"""Training goes on after a kill as if nothing had happened, and only from a checkpoint that is its own."""

from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.demo.made import RECIPE, images
from varprop.demo import training
from varprop.demo.model import ViT
from varprop.demo.recipes import RECIPES
from varprop.demo.training import train

DATA = images().train.take(slice(64))


@pytest.fixture
def epochs(monkeypatch):
    """The epochs that are run, and in which of them, at its end, comes a kill."""

    class Epochs(list):
        kill_in = None

    run, original = Epochs(), training._epoch

    def epoch(*args):
        loss = original(*args)
        run.append(args[-1])
        if args[-1] == run.kill_in:
            raise KeyboardInterrupt  # the weights have moved, the checkpoint is not written yet
        return loss

    monkeypatch.setattr(training, "_epoch", epoch)
    return run


def run(checkpoint, recipe=RECIPE, seed=0):
    torch.manual_seed(seed)
    model = ViT(classes=3, **recipe.model)
    return train(model, DATA, recipe, seed, checkpoint, progress=False), model


def same(a, b):
    (one, model), (other, resumed) = a, b
    assert list(one) == list(other)
    assert all(torch.equal(one[name].mean, other[name].mean) for name in one)
    assert all(torch.equal(one[name].var, other[name].var) for name in one)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), resumed.parameters(), strict=True))


def test_a_killed_run_equals_an_uninterrupted_one(tmp_path, epochs):
    whole = run(tmp_path / "whole.safetensors")
    assert epochs == [0, 1, 2]
    for kill_in, expected in ((0, [0, 0, 1, 2]), (1, [0, 1, 1, 2]), (2, [0, 1, 2, 2])):
        epochs.clear()
        epochs.kill_in = kill_in
        path = tmp_path / f"{kill_in}.safetensors"
        with pytest.raises(KeyboardInterrupt):
            run(path)
        epochs.kill_in = None
        same(whole, run(path))
        assert epochs == expected


def test_finished_training_is_read_back(tmp_path, epochs):
    whole = run(tmp_path / "a.safetensors")
    epochs.clear()
    same(whole, run(tmp_path / "a.safetensors"))
    assert epochs == []


def test_a_checkpoint_of_another_run_is_passed_over(tmp_path, epochs):
    path = tmp_path / "a.safetensors"
    run(path)
    for changed, seed in (
        (replace(RECIPE, epochs=4), 0),
        (replace(RECIPE, ivon={**RECIPE.ivon, "lr": 0.4}), 0),
        (replace(RECIPE, model={**RECIPE.model, "width": 16}), 0),
        (RECIPE, 1),
    ):
        epochs.clear()
        run(path, changed, seed)
        assert len(epochs) == changed.epochs


@pytest.mark.parametrize("damage", ["empty", "cut", "nonsense", "no header", "other header"])
def test_a_broken_checkpoint_is_passed_over(tmp_path, epochs, damage):
    path = tmp_path / "a.safetensors"
    whole = run(path)
    data = path.read_bytes()
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    if damage == "no header":
        save_file(tensors, path)
    elif damage == "other header":
        save_file(tensors, path, {"state": "[1, 2]"})
    else:
        path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "nonsense": b"nonsense" * 99}[damage])
    epochs.clear()
    same(whole, run(path))
    assert epochs == [0, 1, 2]


def test_a_checkpoint_is_replaced_whole(tmp_path, epochs):
    """What is half-written lies beside it until it is done."""
    run(tmp_path / "a.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_recipes_fit_their_data():
    """Of each data set, one batch through the model that the recipe makes."""
    shapes = {"digits": (1, 8), "fashion-mnist": (1, 28), "cifar10": (3, 32)}
    assert shapes.keys() == RECIPES.keys()
    for name, (channels, side) in shapes.items():
        model = ViT(classes=10, **RECIPES[name].model)
        assert model(torch.zeros(2, channels, side, side)).shape == (2, 10)
