"""Training with IVON or AdamW, several networks side by side; after a kill it goes on where it was last written down.

Each network has its own start, order of examples and noise, all from its own seed: its neighbours change nothing but
the rounding.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from experiments import training_state
from experiments.augment import UNCHANGED, apply
from experiments.cuda_graph import Gradients
from experiments.data.examples import Examples, map_inputs
from experiments.experiment import NO_SOURCES, Experiment, Sources
from experiments.recipes import Recipe
from experiments.side_by_side import SideBySide
from varprop.errors import InputError
from varprop.posterior import Posterior
from varprop.prediction.links import Bernoulli, Link

SAVE_EVERY, USUAL = 30.0, 1.5  # seconds; where saving takes longer than usual, it is done less often
WINDOW = 50  # batches that are sorted by length together


def loss_of(link: Link, logits: Tensor, labels: Tensor) -> Tensor:
    """The link's loss of each example, without checks, which would make a GPU wait."""
    if isinstance(link, Bernoulli):
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(-1)
    return F.cross_entropy(logits, labels, reduction="none")


def compiled(losses: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    """For every shape anew: a second training in a process would get symbolic ones, and vmap fails (torch 2.11)."""
    return torch.compile(losses, dynamic=False, **options)


@dataclass(frozen=True)
class Run:
    """One network to be trained."""

    recipe: Recipe
    seed: int
    checkpoint: Path
    weights: str | None = None
    """Fingerprint of the weights it starts from, if they are not drawn from the seed."""

    @property
    def key(self) -> str:
        """A checkpoint of anything else is not this network's."""
        trained = replace(self.recipe, calibration={})  # which comes after
        return hashlib.sha256(repr((trained, self.seed, self.weights)).encode()).hexdigest()

    @property
    def group_key(self) -> str:
        """What networks must share to be trained as one parameter."""
        return repr((self.recipe.options, self.recipe.schedule, self.recipe.gradient_clip))

    @property
    def finished(self) -> bool:
        found = training_state.load(self.checkpoint, self.key)
        return found is not None and found.done == self.recipe.epochs


def run_in(
    folder: Path, name: str, recipe: Recipe, seed: int, weights: str | None = None, limit: int | None = None
) -> Run:
    """Its checkpoint is named by all that decides it: what a search has trained there need not be trained again."""
    found = Run(recipe, seed, folder, weights)
    limited = "" if limit is None else f"-{limit}"
    return replace(found, checkpoint=folder / f"{name}{limited}-{seed}-{found.key[:8]}.safetensors")


def train(
    experiment: Experiment,
    runs: Sequence[Run],
    examples: Examples,
    device: str,
    *,
    sources: Sources = NO_SOURCES,
    progress: bool = True,
) -> list[Posterior]:
    """The posterior of each. Runs must agree in epochs, batch and shapes of the model; all else may differ."""
    if len({type(run.recipe) for run in runs}) > 1:
        raise InputError("networks side by side must be trained by the same optimizer")
    shapes = {(run.recipe.epochs, run.recipe.batch) for run in runs}
    if len(shapes) > 1:
        raise InputError(f"networks side by side must have the same epochs and batch, not {sorted(shapes)}")
    order = sorted(range(len(runs)), key=lambda i: runs[i].group_key)
    loop = _Loop(experiment, [runs[i] for i in order], examples, device, sources)
    epochs = runs[0].recipe.epochs
    saved, pause = time.monotonic(), SAVE_EVERY
    hidden = not progress or loop.done == epochs
    with tqdm(total=epochs, initial=loop.done, desc="train", unit=" epochs", disable=hidden or None) as bar:
        while loop.done < epochs:
            losses = loop.epoch()
            if loop.done == epochs or time.monotonic() - saved > pause:
                started = time.monotonic()
                loop.save()
                saved = time.monotonic()
                pause = SAVE_EVERY * max(1.0, (saved - started) / USUAL)
            bar.update()
            bar.set_postfix(loss=" ".join(f"{loss:.3f}" for loss in losses))
    found = dict(zip(order, loop.posteriors(), strict=True))
    return [found[i] for i in range(len(runs))]


class _Loop:
    """Where the training stands. Networks with the same settings and schedule are one parameter of the optimizer."""

    def __init__(
        self,
        experiment: Experiment,
        runs: Sequence[Run],
        examples: Examples,
        device: str,
        sources: Sources = NO_SOURCES,
    ) -> None:
        self.experiment, self.runs, self.examples = experiment, runs, examples
        self.device = torch.device(device)
        models = [experiment.model(run.recipe, sources, run.seed) for run in runs]
        self.networks = SideBySide(models, device)
        self.groups = [list(group) for _, group in itertools.groupby(range(len(runs)), lambda i: runs[i].group_key)]
        self.rows = [
            nn.Parameter(torch.stack([self.networks.row(models[i]).to(device) for i in group])) for group in self.groups
        ]
        settings = [
            {"params": [rows], **runs[group[0]].recipe.options}
            for rows, group in zip(self.rows, self.groups, strict=True)
        ]
        seeds = [[runs[i].seed for i in group] for group in self.groups]
        self.optimizer: Any = runs[0].recipe.optimizer(settings, seeds)
        self.batch = min(runs[0].recipe.batch, len(examples))
        self.steps = len(examples) // self.batch  # in an epoch; the rest has its turn in another
        self.changed = any(run.recipe.augment != UNCHANGED for run in runs)
        losses = compiled(self._losses) if self.device.type == "cuda" else self._losses
        self.gradients = Gradients(losses, self.rows)
        found = [training_state.load(run.checkpoint, run.key) for run in runs]
        known = [each for each in found if each is not None]
        self.done = 0
        if len(known) == len(runs) and len({each.done for each in known}) == 1:
            self.done = known[0].done  # one that is further on than the others begins again with them
            training_state.restore(self.optimizer, [[known[i] for i in group] for group in self.groups])
        if self.done < runs[0].recipe.epochs:  # else they are not needed
            self.examples = examples.to(device)

    def epoch(self) -> list[float]:
        """One pass over the examples; the mean loss of each network."""
        count, used = len(self.examples), self.steps * self.batch
        generators = [torch.Generator().manual_seed(1_000_003 * run.seed + self.done) for run in self.runs]
        drawn = []
        for run, generator in zip(self.runs, generators, strict=True):
            order = torch.randperm(count, generator=generator)[:used]
            if run.recipe.by_length:
                order = self._by_length(order, generator)
            drawn.append({"rows": order} | (run.recipe.augment.draw(used, generator) if self.changed else {}))
        # By step and then by network, so that a step takes what it needs without copying it.
        tables = {name: self._by_step(torch.stack([each[name] for each in drawn])) for name in drawn[0]}
        total = torch.zeros(len(self.runs), device=self.device)
        for step in range(self.steps):
            total += self._step(self.done * self.steps + step, {name: table[step] for name, table in tables.items()})
        self.done += 1
        return (total / self.steps).tolist()

    def _by_length(self, order: Tensor, generator: torch.Generator) -> Tensor:
        """So that sentences of a batch are of similar length; batches in random order."""
        length = self.examples.inputs["attention_mask"].sum(1).cpu()
        windows = order.split(WINDOW * self.batch)
        batches = torch.cat([rows[length[rows].argsort(stable=True)] for rows in windows]).view(-1, self.batch)
        return batches[torch.randperm(len(batches), generator=generator)].flatten()

    def _by_step(self, table: Tensor) -> Tensor:
        """[networks, examples, …] to [steps, networks · batch, …]"""
        return table.to(self.device).unflatten(1, (self.steps, self.batch)).transpose(0, 1).flatten(1, 2).contiguous()

    def _step(self, number: int, draws: dict[str, Tensor]) -> Tensor:
        whole = self.runs[0].recipe.epochs * self.steps
        for settings, group in zip(self.optimizer.param_groups, self.groups, strict=True):
            recipe = self.runs[group[0]].recipe
            settings["lr"] = recipe.options["lr"] * recipe.schedule((number + 1) / whole)
        rows = draws.pop("rows")
        raw, labels = self.examples.read(rows), self.examples.labels[rows]
        self.optimizer.zero_grad()
        with self.runs[0].recipe.gradients_in(self.optimizer):
            losses = self.gradients(map_inputs(raw, lambda x: x.to(self.device)), draws, labels.to(self.device))
        self._clip()
        self.optimizer.step()
        return losses

    def _losses(self, raw: Any, draws: dict[str, Tensor], labels: Tensor) -> Tensor:
        """Of each network, on its own batch."""
        with torch.no_grad():
            inputs = self.experiment.prepare(apply(raw, draws) if draws else raw)
        many = len(self.runs), self.batch
        inputs = map_inputs(inputs, lambda x: x.unflatten(0, many))
        # Fused attention fails in the backward pass of stacked networks (torch 2.11), and gains little at this size.
        narrow = self.device.type == "cuda" or self.runs[0].recipe.by_length
        with sdpa_kernel(SDPBackend.MATH), torch.autocast(self.device.type, torch.bfloat16, enabled=narrow):
            logits = self.networks(torch.cat([*self.rows]) if len(self.rows) > 1 else self.rows[0], inputs)
        return loss_of(self.experiment.link, logits.float().flatten(0, 1), labels).view(many).mean(1)

    def _clip(self) -> None:
        """Each network's gradient by its own norm."""
        for rows, group in zip(self.rows, self.groups, strict=True):
            assert rows.grad is not None
            limit = self.runs[group[0]].recipe.gradient_clip
            rows.grad *= (limit / (rows.grad.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)

    def save(self) -> None:
        for settings, group in zip(self.optimizer.param_groups, self.groups, strict=True):
            for row, index in enumerate(group):
                run = self.runs[index]
                training_state.save(run.checkpoint, run.key, self.done, self.optimizer, settings, row)

    def posteriors(self) -> list[Posterior]:
        """In the order of the runs, which is that of the groups."""
        found = []
        for settings, rows in zip(self.optimizer.param_groups, self.rows, strict=True):
            state = self.optimizer.state[rows]
            if "hess" not in state:
                found += [self._of_adam(settings, rows.detach(), state, row) for row in range(len(rows))]
                continue
            variances = 1 / (settings["ess"] * (state["hess"] + settings["weight_decay"]))
            for mean, var in zip(rows.detach(), variances, strict=True):
                found.append(Posterior.from_tensors(self.networks.named(mean), self.networks.named(var)))
        return found

    def _of_adam(self, settings: dict[str, Any], rows: Tensor, state: dict[str, Any], row: int) -> Posterior:
        """Of one network, as from a checkpoint of its own."""
        squares = self.networks.named(state["exp_avg_sq"][row])
        states = {name: {"exp_avg_sq": each, "step": state["step"]} for name, each in squares.items()}
        saved = {"state": states, "param_groups": [{"params": list(states), "betas": settings["betas"]}]}
        self.networks.model.load_state_dict(self.networks.named(rows[row]), strict=False)
        return Posterior.from_adam(self.networks.model, saved, batch_size=self.batch)
