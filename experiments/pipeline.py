"""Train, propagate, calibrate, evaluate every method, keep a row for each; what is finished is not done again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.data.examples import PreparedBatches
from experiments.exceptions import ExperimentError
from experiments.experiment import NO_SOURCES, SOFTMAX, Experiment, Sources, Splits
from experiments.products import multiply_fast, products
from experiments.recipes import Recipe
from experiments.side_by_side import as_call
from experiments.training import Run, run_in, train
from varprop.batch import read
from varprop.calibration.fixed_epochs import FixedEpochs
from varprop.evaluation.cost import Cost, relative_costs
from varprop.evaluation.evaluate import best_thresholds, measure, record, scores_of_each
from varprop.evaluation.evaluated import Evaluation
from varprop.evaluation.fidelity import compare
from varprop.evaluation.methods import Method
from varprop.evaluation.results import Results, Row
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.prediction.links import ClassLink
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.predictors import Predictor, Propagated
from varprop.rules import CVP, RuleSet

THUMBNAILS = 600
HELD = 10  # of a limited run: a tenth of its limit is held out, and as many are tested


@dataclass
class Pipeline:
    """Some seeds of an experiment, in a results folder."""

    experiment: Experiment
    seeds: Sequence[int]
    folder: Path
    device: str = "cpu"
    sources: Sources = NO_SOURCES
    epochs: int | None = None
    """Instead of the recipe's."""
    limit: int | None = None
    """This many training examples at most, and a tenth of it held out and tested: to see that all works."""
    side_by_side: int | None = None
    fidelity: bool = True
    """CVP is compared with samples module by module, and its norms too."""
    progress: bool = True
    log: Callable[[str], None] = print
    _read: tuple[int, Splits] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        multiply_fast(self.device)

    def run(self) -> Results:
        results = Results(self.folder)
        missing = {seed: self.missing(seed) for seed in self.seeds}
        if not any(missing.values()):
            self.log(f"all {len(self.experiment.methods)} methods are there already: nothing to do")
            return results
        self.folder.mkdir(parents=True, exist_ok=True)  # fails before the training, not after it
        self._show_examples(results)
        wanted = [seed for seed, methods in missing.items() if methods]
        try:
            self.train(wanted)
            for seed in wanted:
                network = self.network(seed)
                self.evaluate(network, seed, missing[seed], self._costs(network))
        except torch.OutOfMemoryError as error:
            raise ExperimentError(
                f"{self.device} has too little memory ({str(error).partition('.')[0]}); what is finished is kept. "
                "Free the device, or train fewer seeds side by side (--side-by-side 1)"
            ) from error
        return results

    # --- what to do ----------------------------------------------------------------------------------

    @property
    def recipe(self) -> Recipe:
        recipe = self.experiment.recipe
        return recipe if self.epochs is None else replace(recipe, epochs=self.epochs)

    @property
    def config(self) -> dict[str, Any]:
        """All that a row depends on; a row with another one is another result."""
        what = {"title": self.experiment.title, "about": self.experiment.about}
        whose = {"paper": self.experiment.paper, "stand_in": self.experiment.stand_in}
        found = {**what, **whose, "recipe": asdict(self.recipe), "limit": self.limit}
        if self.experiment.link != SOFTMAX:
            found["link"] = str(self.experiment.link)
        if self.sources.weights is not None:
            found["weights"] = self.sources.fingerprint
        return json.loads(json.dumps(found))

    def missing(self, seed: int) -> list[Method]:
        """The methods that have no row with these settings yet."""
        config = self.config
        done = {row.key for row in Results(self.folder).rows if row.config == config}
        return [method for method in self.experiment.methods if (self.experiment.name, method.slug, seed) not in done]

    def splits(self, seed: int) -> Splits:
        """The data of a seed; that of the last one is kept."""
        if self._read is None or self._read[0] != seed:
            found = self.experiment.splits(self.sources, seed)
            if self.limit is not None:
                few = max(2, self.limit // HELD)
                train, held_out, test = (
                    part.take(slice(size)) for part, size in zip(found[:3], (self.limit, few, few), strict=True)
                )
                found = Splits(train, held_out, test, found.names, found.texts[:few])
            self._read = seed, found
        return self._read[1]

    # --- training ------------------------------------------------------------------------------------

    def train(self, seeds: Sequence[int]) -> None:
        """The seeds that are not trained yet, some side by side."""
        if self.experiment.posterior is not None:
            return
        together = 1 if self.device == "cpu" else self.side_by_side or self.experiment.side_by_side
        todo = [seed for seed in seeds if not self.run_of(seed).finished]
        for start in range(0, len(todo), together):
            some = todo[start : start + together]
            self.log(f"training seed{'s' * (len(some) > 1)} {', '.join(map(str, some))}")
            self._train(some)

    def _train(self, seeds: Sequence[int]) -> list[Posterior]:
        runs, examples = [self.run_of(seed) for seed in seeds], self.splits(seeds[0]).train
        return train(self.experiment, runs, examples, self.device, sources=self.sources, progress=self.progress)

    def run_of(self, seed: int) -> Run:
        return run_in(self.folder, self.experiment.name, self.recipe, seed, self.sources.fingerprint, self.limit)

    def trained(self, seed: int) -> tuple[nn.Module, Posterior]:
        model = self.experiment.model(self.recipe, self.sources, seed).to(self.device).eval()
        if self.experiment.posterior is not None:
            return model, self.experiment.posterior(model, self.recipe, self.sources, seed).to(self.device)
        return model, self._train([seed])[0]

    # --- evaluating ----------------------------------------------------------------------------------

    def evaluate(
        self, network: TrainedNetwork, seed: int, methods: Sequence[Method], costs: Mapping[str, Cost]
    ) -> None:
        """Add the rows of some methods."""
        results = Results(self.folder)
        entries: dict[str, Any] = {"row": self.experiment.name, "seed": seed, "config": self.config}

        def keep(row: Row, scores: dict[str, Any]) -> None:
            versions = {**row.versions, **products(self.device)}
            results.add(replace(row, cost=costs.get(row.method), versions=versions), scores)

        sampled = [method for method in methods if method.samples is not None]
        for method in methods:
            if method not in sampled:
                self.log(f"seed {seed}: {method.title}")
                keep(*self._measured(results, method, network, entries))
            elif method == sampled[0]:  # and all others with it
                self.log(f"seed {seed}: {', '.join(each.title for each in sampled)}")
                parts = network.held_out, network.test
                before, after = (self._sampled(sampled, network, seed, part) for part in parts)
                for each in sampled:
                    first = Evaluation(before[each])
                    thresholds = best_thresholds(first.confidence, first.correctness)
                    keep(*record(first, Evaluation(after[each], thresholds), method=each.slug, **entries))

    def _measured(
        self, results: Results, method: Method, network: TrainedNetwork, entries: dict[str, Any]
    ) -> tuple[Row, dict[str, Any]]:
        """The row of a method that does not sample, and its scores."""
        predictor = network.predictor(method, self.progress)
        row, scores = measure(
            predictor, network.held_out, network.test, method=method.slug, progress=self.progress, **entries
        )
        if self.fidelity and method.slug == "cvp" and isinstance(predictor, Propagated):
            args, kwargs = as_call(network.test.first(32))
            sampler = MonteCarlo(network.model, network.posterior, 128)
            bare = compare(network.lifted(CVP), sampler, *args, **kwargs)
            row = replace(row, fidelity=[asdict(each) | {"calibrated": False} for each in bare])
            if any(isinstance(module, nn.LayerNorm) for module in network.model.modules()):
                self._compare_norms(results, predictor.net, args, kwargs)
        return row, scores

    def _compare_norms(self, results: Results, net: MomentNet, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Here, because of libraries that draw, which training does without.
        from experiments.layernorm import traced
        from experiments.paper.norms import load_norms, save_norms

        if not load_norms(results, self.experiment.name):
            save_norms(results, self.experiment.name, [traced(net, *args, **kwargs)])

    @torch.no_grad()
    def _sampled(
        self, methods: Sequence[Method], network: TrainedNetwork, seed: int, batches: PreparedBatches
    ) -> dict[Method, dict[str, Tensor]]:
        """The scores of each example by each method, batch by batch: the draws of one are the first of the next."""
        counts = {method: method.samples or 0 for method in methods}
        at_once = 1 if self.device == "cpu" else self.experiment.side_by_side
        most = MonteCarlo(
            network.model, network.posterior, max(counts.values()), link=network.link, seed=seed, at_once=at_once
        )
        scores: dict[Method, list[dict[str, Tensor]]] = {method: [] for method in methods}
        for batch in read(batches):
            logits = list(most.draws(*batch.args, **batch.kwargs))
            for method, count in counts.items():
                found = scores_of_each(network.link.average(logits[:count]), batch.target)
                scores[method].append({name: value.cpu() for name, value in found.items()})
        return {m: {name: torch.cat([each[name] for each in some]) for name in some[0]} for m, some in scores.items()}

    def network(self, seed: int) -> TrainedNetwork:
        model, posterior = self.trained(seed)
        splits = self.splits(seed)
        size = 64 if self.device == "cpu" else self.experiment.evaluation_batch
        held_out, test = (
            PreparedBatches(part, self.experiment.prepare, size, self.device) for part in (splits.held_out, splits.test)
        )
        calibration = FixedEpochs(**self.recipe.calibration)
        return TrainedNetwork(model, posterior, held_out, test, self.experiment.link, calibration)

    def add_costs(self, seed: int) -> None:
        """What each method costs, into its rows that lack it."""
        results = Results(self.folder)
        lacking = [row for row in results.rows if row.row == self.experiment.name and row.cost is None]
        costs = self._costs(self.network(seed)) if lacking else {}
        for row in lacking:
            results.add(replace(row, cost=costs.get(row.method)), results.scores(row))

    def _costs(self, network: TrainedNetwork) -> dict[str, Cost]:
        """What each method costs: measured once for an experiment and a device, and kept beside the rows."""
        file = self.folder / f"{self.experiment.name}-costs-{self.device.partition(':')[0]}.json"
        found: dict[str, Cost] = json.loads(file.read_text()) if file.is_file() else {}
        if all(method.slug in found for method in self.experiment.methods):
            return found
        self.log("timing compiled passes")
        args, kwargs = as_call(network.test.first(network.test.size))
        found = relative_costs(self.experiment.methods, network.model, network.posterior, *args, **kwargs)
        if found:  # where nothing can be compiled today, there may be a compiler tomorrow
            scratch = file.with_suffix(".part")
            scratch.write_text(json.dumps(found))
            scratch.replace(file)
        return found

    def _show_examples(self, results: Results) -> None:
        """Thumbnails or texts for the report."""
        splits = self.splits(self.seeds[0])
        if splits.texts:
            results.add_examples(splits.texts[:THUMBNAILS], splits.names, row=self.experiment.name)
        elif isinstance(splits.test.inputs, Tensor) and splits.test.inputs.shape[-1] <= 64:
            images = splits.test.inputs[:THUMBNAILS].permute(0, 2, 3, 1)
            shown = (images[..., 0] if images.shape[-1] == 1 else images).contiguous().numpy()
            results.add_examples(shown, splits.names, row=self.experiment.name)


@dataclass
class TrainedNetwork:
    """A trained network and the data to judge it by."""

    model: nn.Module
    posterior: Posterior
    held_out: PreparedBatches
    test: PreparedBatches
    link: ClassLink
    calibration: FixedEpochs
    """Of the methods that are calibrated as in the paper."""
    nets: dict[RuleSet, MomentNet] = field(default_factory=dict)

    def predictor(self, method: Method, progress: bool) -> Predictor:
        """Calibrated on what was held out."""
        settings: dict[str, Any] = {"link": self.link, "lift": self.lifted, "paper": self.calibration}
        return method.build(self.model, self.posterior, self.held_out, progress=progress, **settings)

    def lifted(self, rules: RuleSet) -> MomentNet:
        """Methods with the same rules share what is captured."""
        if rules not in self.nets:
            self.nets[rules] = propagate(self.model, self.posterior, rules)
        return self.nets[rules]
