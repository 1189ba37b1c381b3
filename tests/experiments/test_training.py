"""Training: a kill changes nothing, neighbours change nothing, and rate and order are what the recipe says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from experiments import training
from experiments.augment import Augment
from experiments.data.examples import Examples
from experiments.experiment import NO_SOURCES
from experiments.recipes import Recipe, Schedule
from experiments.rows import ROWS
from experiments.rows.starting_points import centred, vit
from experiments.training import Run, train
from tests.experiments.synthetic import ADAMW, RECIPE, experiment, splits
from varprop.errors import InputError
from varprop.posterior import Posterior

pytestmark = pytest.mark.second

DATA = splits().train
CHANGED = replace(RECIPE, augment=Augment(pad=2, flip=True, jitter=0.2, erase=2))


@pytest.fixture
def epochs(monkeypatch):
    """The epochs that are run, and in which of them, at its end, comes a kill. Checkpoints are written after each."""

    class Epochs(list):
        kill_in = None

    run, original = Epochs(), training._Loop.epoch

    def epoch(self):
        number = self.done
        losses = original(self)
        run.append(number)
        if number == run.kill_in:
            raise KeyboardInterrupt  # the weights have moved, the checkpoint is not written yet
        return losses

    monkeypatch.setattr(training._Loop, "epoch", epoch)
    monkeypatch.setattr(training, "SAVE_EVERY", -1.0)
    return run


@pytest.fixture
def steps(monkeypatch):
    """The draws and the rates of every step."""
    seen, original = [], training._Loop._step

    def step(self, number, draws):
        kept = dict(draws)
        loss = original(self, number, draws)
        seen.append((number, kept, [group["lr"] for group in self.optimizer.param_groups]))
        return loss

    monkeypatch.setattr(training._Loop, "_step", step)
    return seen


def run(folder, *seeds, recipe=RECIPE):
    return trained([Run(recipe, seed, folder / f"{seed}.safetensors") for seed in seeds or (0,)])


def trained(runs):
    return train(experiment(), runs, DATA, "cpu", progress=False)


def same(a, b):
    for one, other in zip(a, b, strict=True):
        assert list(one) == list(other)
        assert all(torch.equal(one[name].mean, other[name].mean) for name in one)
        assert all(torch.equal(one[name].var, other[name].var) for name in one)


@pytest.mark.parametrize(
    ("seeds", "recipe"),
    [((0,), CHANGED), ((0, 3), CHANGED), ((0, 3), ADAMW)],
    ids=["alone", "side by side", "AdamW"],
)
def test_a_killed_run_equals_an_uninterrupted_one(tmp_path, epochs, seeds, recipe):
    (tmp_path / "whole").mkdir()
    whole = run(tmp_path / "whole", *seeds, recipe=recipe)
    assert epochs == [0, 1, 2]
    for kill_in, expected in ((0, [0, 0, 1, 2]), (1, [0, 1, 1, 2]), (2, [0, 1, 2, 2])):
        epochs.clear()
        epochs.kill_in = kill_in
        folder = tmp_path / str(kill_in)
        folder.mkdir()
        with pytest.raises(KeyboardInterrupt):
            run(folder, *seeds, recipe=recipe)
        epochs.kill_in = None
        same(whole, run(folder, *seeds, recipe=recipe))
        assert epochs == expected


def test_finished_training_is_read_back(tmp_path, epochs):
    whole = run(tmp_path)
    assert Run(RECIPE, 0, tmp_path / "0.safetensors").finished
    epochs.clear()
    same(whole, run(tmp_path))
    assert epochs == []


def test_checkpoints_are_written_now_and_then_and_at_the_end(tmp_path, epochs, monkeypatch):
    monkeypatch.setattr(training, "SAVE_EVERY", 1e9)
    epochs.kill_in = 1
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert list(tmp_path.iterdir()) == []
    epochs.kill_in = None
    run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["0.safetensors"]  # nothing half-written beside it


def test_networks_that_are_not_equally_far_begin_again_together(tmp_path, epochs):
    whole = run(tmp_path, 0, 1)
    (tmp_path / "1.safetensors").unlink()
    epochs.clear()
    same(whole, run(tmp_path, 0, 1))
    assert epochs == [0, 1, 2]


def test_a_checkpoint_of_another_run_is_passed_over(tmp_path, epochs):
    path = tmp_path / "a.safetensors"

    def once(recipe, seed):
        epochs.clear()
        trained([Run(recipe, seed, path)])
        return len(epochs)

    assert once(RECIPE, 0) == 3
    for changed, seed in (
        (replace(RECIPE, epochs=4), 0),
        (replace(RECIPE, ivon={**RECIPE.ivon, "lr": 0.4}), 0),
        (replace(RECIPE, model={**RECIPE.model, "width": 16}), 0),
        (replace(RECIPE, schedule=Schedule(plateau=0.5)), 0),
        (CHANGED, 0),
        (RECIPE, 1),
    ):
        assert not Run(changed, seed, path).finished
        assert once(changed, seed) == changed.epochs
        assert once(changed, seed) == 0


@pytest.mark.parametrize("damage", ["empty", "cut", "nonsense", "no header", "other header"])
def test_a_broken_checkpoint_is_passed_over(tmp_path, epochs, damage):
    whole, path = run(tmp_path), tmp_path / "0.safetensors"
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
    same(whole, run(tmp_path))
    assert epochs == [0, 1, 2]


def test_neighbours_change_nothing_but_the_rounding(tmp_path):
    """Also neighbours of another rate, and with other changes of their images."""
    other = replace(CHANGED, ivon={**CHANGED.ivon, "lr": 0.2}, augment=Augment(pad=1), gradient_clip=0.1)
    recipes = {0: CHANGED, 1: other, 5: RECIPE}
    together = trained([Run(recipe, seed, tmp_path / f"{seed}.safetensors") for seed, recipe in recipes.items()])
    (tmp_path / "alone").mkdir()
    for (seed, recipe), found in zip(recipes.items(), together, strict=True):
        alone = run(tmp_path / "alone", seed, recipe=recipe)[0]
        for name in alone:
            torch.testing.assert_close(found[name].mean, alone[name].mean, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found[name].var, alone[name].var, rtol=1e-4, atol=0)
    assert not torch.equal(together[0]["head.weight"].mean, together[2]["head.weight"].mean)


def test_adamw_is_that_of_torch(tmp_path):
    """Two networks side by side are what a plain loop makes of each, and so are their second moments."""
    # With a larger eps: Adam makes whole steps of the rounding errors that are all of the gradient of a key's bias.
    recipe = replace(ADAMW, adamw={**ADAMW.adamw, "eps": 1e-3})
    found = run(tmp_path, 0, 3, recipe=recipe)
    for seed, posterior in zip((0, 3), found, strict=True):
        model = vit(recipe, NO_SOURCES, seed).eval()
        optimizer = torch.optim.AdamW(model.parameters(), **recipe.adamw)
        for epoch in range(3):
            order = torch.randperm(70, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
            for step in range(4):
                optimizer.param_groups[0]["lr"] = 0.01 * recipe.schedule((4 * epoch + step + 1) / 12)
                rows = order[16 * step : 16 * (step + 1)]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(centred(DATA.inputs[rows])), DATA.labels[rows]).backward()
                optimizer.step()
        plain = Posterior.from_adam(model, optimizer, batch_size=16)
        assert set(plain) == set(posterior)
        for name in plain:
            torch.testing.assert_close(posterior[name].mean, plain[name].mean, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(posterior[name].var, plain[name].var, rtol=1e-3, atol=0)
    with safe_open(tmp_path / "0.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"mean", "exp_avg", "exp_avg_sq"}


def test_networks_side_by_side_agree_in_what_they_must(tmp_path):
    first = Run(RECIPE, 0, tmp_path / "0")
    with pytest.raises(InputError, match=r"the same epochs and batch, not \[\(3, 8\), \(3, 16\)\]"):
        trained([first, Run(replace(RECIPE, batch=8), 1, tmp_path / "1")])
    with pytest.raises(InputError, match="the same optimizer"):
        trained([first, Run(ADAMW, 1, tmp_path / "1")])


def test_every_epoch_is_an_order_of_its_own(tmp_path, steps):
    """70 examples in batches of 16: four steps, six examples wait for another epoch."""
    run(tmp_path, 0, 1, recipe=CHANGED)
    assert [number for number, _, _ in steps] == list(range(12))
    orders = torch.stack([draws["rows"].view(2, 16) for _, draws, _ in steps])  # [steps, networks, batch]
    orders = orders.view(3, 4, 2, 16).permute(2, 0, 1, 3).flatten(2)  # [networks, epochs, examples]
    for network in range(2):
        for epoch in range(3):
            assert len(orders[network, epoch].unique()) == 64
            expected = torch.randperm(70, generator=torch.Generator().manual_seed(1_000_003 * network + epoch))
            assert torch.equal(orders[network, epoch], expected[:64])
    assert len({tuple(order.tolist()) for order in orders.flatten(0, 1)}) == 6
    shifts = torch.stack([draws["shift"] for _, draws, _ in steps])
    assert shifts.shape == (12, 32, 2)
    assert shifts.unique().tolist() == [-2, -1, 0, 1, 2]


def test_unchanged_images_draw_nothing(tmp_path, steps):
    run(tmp_path)
    assert all(set(draws) == {"rows"} for _, draws, _ in steps)


def test_the_rate_follows_the_schedule(tmp_path, steps):
    schedule = Schedule(warmup=0.25, plateau=0.25)
    run(tmp_path, recipe=replace(RECIPE, schedule=schedule))
    rates = [lr for _, _, (lr,) in steps]
    assert rates == pytest.approx([0.5 * schedule((i + 1) / 12) for i in range(12)])
    assert rates[:6] == pytest.approx([0.5 / 3, 1 / 3, 0.5, 0.5, 0.5, 0.5])
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    assert sorted(rates[5:], reverse=True) == rates[5:]


def test_the_shape_of_schedules():
    plain, flat = Schedule(warmup=0.1), Schedule(warmup=0.1, plateau=0.4)
    assert [plain(p) for p in (0.05, 0.1, 0.55, 1.0)] == pytest.approx([0.5, 1.0, 0.5, 0.0])
    assert [flat(p) for p in (0.05, 0.1, 0.3, 0.5, 0.75, 1.0)] == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.5, 0.0])
    assert Schedule(warmup=0.0)(1e-9) == pytest.approx(1.0)


def test_a_large_batch_is_all_there_is(tmp_path, steps):
    run(tmp_path, recipe=replace(RECIPE, batch=1000, epochs=1))
    assert len(steps) == 1
    assert sorted(steps[0][1]["rows"].tolist()) == list(range(70))


def test_gradients_are_clipped_by_each_networks_own_norm(tmp_path):
    clips = (1.0, 1.0, 9.0)
    runs = [Run(replace(RECIPE, gradient_clip=c), seed, tmp_path / str(seed)) for seed, c in enumerate(clips)]
    loop = training._Loop(experiment(), runs, DATA, "cpu")
    sizes = iter((50.0, 0.5, 10.0))
    for rows in loop.rows:
        rows.grad = torch.stack([torch.full_like(row, next(sizes) / len(row) ** 0.5) for row in rows.detach()])
    loop._clip()
    norms = [float(gradient.norm()) for rows in loop.rows for gradient in rows.grad]
    assert norms == pytest.approx([1.0, 0.5, 9.0], rel=1e-4)


def test_inputs_by_name(tmp_path):
    """A text model takes a dict; what a model does not train is shared and has no posterior."""

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4).requires_grad_(False), nn.Linear(4, 2)

        def forward(self, input_ids, attention_mask):
            weight = attention_mask[..., None].float()
            return self.head((self.words(input_ids) * weight).sum(1) / weight.sum(1))

    def bag(recipe, sources, seed):
        torch.manual_seed(0)
        return Bag()

    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 9, (40, 5), generator=rng)
    data = Examples({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, (ids < 4).sum(1).gt(2).long())
    recipe = Recipe(epochs=2, batch=8, ivon={"lr": 0.5, "ess": 100.0, "hess_init": 0.1})
    bags = experiment(recipe, model=bag, prepare=dict)
    runs = [Run(recipe, seed, tmp_path / f"{seed}.safetensors") for seed in (0, 1)]
    found = train(bags, runs, data, "cpu", progress=False)
    apart = replace(runs[1], checkpoint=tmp_path / "alone.safetensors")
    alone = train(bags, [apart], data, "cpu", progress=False)
    assert set(found[0]) == {"head.weight", "head.bias"}
    torch.testing.assert_close(found[1]["head.weight"].mean, alone[0]["head.weight"].mean)
    assert not torch.equal(found[0]["head.weight"].mean, found[1]["head.weight"].mean)


def test_a_second_training_in_a_process_is_compiled_too():
    """Of another batch and number of networks, after which the compiler would take sizes as symbols."""
    torch.compiler.reset()
    for count, batch in ((1, 6), (3, 4)):
        runs = [Run(replace(RECIPE, batch=batch), seed, Path("nowhere")) for seed in range(count)]
        loop = training._Loop(experiment(), runs, DATA, "cpu")
        rows = torch.arange(count * batch)
        inputs = DATA.read(rows), {}, DATA.labels[rows]
        found = training.compiled(loop._losses, backend="eager")(*inputs)
        torch.testing.assert_close(found, loop._losses(*inputs))


@pytest.mark.parametrize(
    ("name", "channels", "side", "classes"),
    [
        ("fashion-mnist", 1, 28, 10),
        ("fashion-mnist-cnn-adamw", 1, 28, 10),
        ("cifar10-vit", 3, 32, 10),
        ("cifar10-vit-adamw", 3, 32, 10),
        ("tiny-imagenet-vit", 3, 64, 100),
        ("tiny-imagenet-vit-adamw", 3, 64, 100),
    ],
)
def test_recipes_fit_their_data(name, channels, side, classes):
    """One batch through the model that the recipe makes, and that each candidate makes."""
    row = ROWS[name]
    for recipe in (row.recipe, *row.candidates.values()):
        model = row.model(recipe, NO_SOURCES, 0)
        assert model(row.prepare(torch.zeros(2, channels, side, side, dtype=torch.uint8))).shape == (2, classes)
        assert (recipe.epochs, recipe.batch) == (row.recipe.epochs, row.recipe.batch)


def test_a_model_comes_from_its_seed_alone():
    before = torch.random.get_rng_state()
    first, again, other = (vit(RECIPE, NO_SOURCES, seed).head.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_how_it_is_calibrated_is_not_how_it_was_trained(tmp_path):
    """Other calibration finds the same checkpoint; another rate does not."""
    ours = training.run_in(tmp_path, "squares", RECIPE, 0)
    recalibrated, faster = replace(RECIPE, calibration={"epochs": 50}), replace(RECIPE, ivon={**RECIPE.ivon, "lr": 3.0})
    assert training.run_in(tmp_path, "squares", recalibrated, 0).checkpoint == ours.checkpoint
    assert training.run_in(tmp_path, "squares", faster, 0).checkpoint != ours.checkpoint
