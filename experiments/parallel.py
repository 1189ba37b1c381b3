"""Networks of rows: those of a row are trained together, then studied in one pool of processes with all others.

``python -m experiments.parallel daquar-multiway:0-2,sst2-minilm:10-14 OUT --methods "mean,mc-64;cvp-adaptive;cvp"``:
a process takes the methods of one seed up to a semicolon, the first of all rows before the second; a row is studied as
soon as it is trained. Each result is written when it is there, into OUT/ROW, or into OUT if there is only one row. What
fails is tried once more in the end and stops nothing else. What has not ended after ``--seconds`` is stopped and named;
the same call goes on with it.

Rows trained with AdamW take those of the methods that ``checkpoint_study`` has, into rows.jsonl; the others take those
of the tables (``cvp``, ``mc-64``), into results.db. ``--search`` names rows of which all candidates are trained first,
the best of which on held-out data is taken; ``--costs`` times compiled passes in the end, with nothing else running.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from experiments.checkpoint_study import Study, methods
from experiments.cvp_variants import Variant, methods_named
from experiments.experiment import Experiment, Sources
from experiments.pipeline import Pipeline
from experiments.pool import Job, Pool
from experiments.pretraining import pretrained
from experiments.recipes import AdamWRecipe
from experiments.rows import row_named
from experiments.search import best_candidate, search
from varprop.cli.references import numbers
from varprop.errors import InputError
from varprop.evaluation.methods import METHODS

TRAINING, STUDY, COSTS = "training", "study", "costs"


@dataclass(frozen=True)
class Task:
    """One of the rows."""

    name: str
    seeds: list[int]
    out: Path
    args: argparse.Namespace

    @property
    def ordinary(self) -> bool:
        return isinstance(row_named(self.name).recipe, AdamWRecipe)

    @property
    def groups(self) -> list[list[str]]:
        """The methods of each process, as far as such a row has them."""
        own = methods()

        def has(name: str) -> bool:
            return name in own if self.ordinary else name in METHODS or name not in own

        return [[name for name in part.split(",") if has(name)] for part in self.args.methods.split(";")]

    @property
    def experiment(self) -> Experiment:
        found, epochs = row_named(self.name), self.args.epochs
        if epochs:
            shorter = {name: replace(recipe, epochs=epochs) for name, recipe in found.candidates.items()}
            found = replace(found, recipe=replace(found.recipe, epochs=epochs), candidates=shorter)
        wanted = ",".join(itertools.chain(*self.groups))
        return found if self.ordinary else replace(found, methods=tuple(methods_named(wanted)))

    @property
    def searched(self) -> bool:
        return self.name in self.args.search.split(",")

    def sources(self, experiment: Experiment) -> Sources:
        """Pretraining comes first, where a row has it."""
        given = Sources(self.args.data, self.args.weights if experiment.from_weights else None)
        return pretrained(experiment, given, self.out, self.args.device, progress=False)

    def pipeline(self) -> Pipeline:
        experiment = self.experiment
        if self.searched:
            experiment = best_candidate(experiment, self.out)
        sources = self.sources(experiment)
        pipeline = Pipeline(experiment, self.seeds, self.out, self.args.device, sources, limit=self.args.limit)
        pipeline.progress = pipeline.fidelity = False
        return pipeline

    # --- what processes do -----------------------------------------------------------------------------

    def train(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        experiment = self.experiment
        if self.searched and not (self.out / f"{self.name}-search.json").exists():
            search(experiment, self.seeds, self.out, self.args.device, self.sources(experiment), progress=False)
        pipeline = self.pipeline()
        pipeline.side_by_side = len(self.seeds)
        pipeline.train(self.seeds)

    def study(self, seed: int, names: Sequence[str]) -> None:
        torch.set_num_threads(self.args.threads)
        pipeline = self.pipeline()
        if self.ordinary:
            Study(pipeline, seed, self.out / "rows.jsonl", names).run()
        elif missing := [method for method in pipeline.missing(seed) if method.slug in names]:
            pipeline.evaluate(pipeline.network(seed), seed, missing, {})

    def add_costs(self) -> None:
        pipeline = self.pipeline()
        timed = tuple(m for m in pipeline.experiment.methods if m.rules is not None or not isinstance(m, Variant))
        pipeline.experiment = replace(pipeline.experiment, methods=timed)
        pipeline.add_costs(self.seeds[0])


def tasks(args: argparse.Namespace) -> list[Task]:
    """Of the rows, each with its own seeds or all with the same."""
    named = [row.partition(":")[::2] for row in args.rows.split(",")]
    if len(dict(named)) < len(named):
        raise InputError(f"a row is named twice in {args.rows}")
    if unknown := set(args.search.split(",")) - {"", *dict(named)}:
        raise InputError(f"--search names {', '.join(sorted(unknown))}, which is no row of {args.rows}")
    if strange := set(args.methods.replace(";", ",").split(",")) - methods().keys():
        methods_named(",".join(sorted(strange)))
    alone = len(named) == 1
    found = [Task(row, numbers(own or args.seeds), args.out if alone else args.out / row, args) for row, own in named]
    if idle := [task.name for task in found if not any(task.groups)]:
        raise InputError(f"{args.methods} has no method for {', '.join(idle)}")
    return found


def jobs(args: argparse.Namespace) -> list[Job]:
    """In the order in which they are begun."""
    rows = tasks(args)
    trained = {task.name: Job(f"{task.name}: training", TRAINING, task.train) for task in rows}
    studies = []
    for place, task in itertools.product(range(args.methods.count(";") + 1), rows):
        if names := task.groups[place]:
            for seed in task.seeds:
                title = f"{task.name}, seed {seed}: {', '.join(names)}"
                studies.append(Job(title, STUDY, task.study, (seed, names), [trained[task.name]]))
    found = [*trained.values(), *studies]
    timed = [task for task in rows if args.costs and not task.ordinary]
    return found + [Job(f"{task.name}: costs", COSTS, task.add_costs, after=found) for task in timed]


def run(args: argparse.Namespace) -> int:
    """How many jobs were not done."""
    until = time.monotonic() + args.seconds
    most = {TRAINING: args.trainings, STUDY: args.workers, COSTS: 1}
    return len(Pool(jobs(args), most, until).run())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.parallel", description=__doc__)
    parser.add_argument("rows", help="names, with commas between; NAME:SEEDS has other seeds than the rest")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--methods", default="mean,temperature,cvp-isotropic;cvp-adam;cvp-adaptive;cvp")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path, help="of the rows that start from some")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--trainings", type=int, default=2, help="rows trained at a time")
    parser.add_argument("--workers", type=int, default=14, help="studies at a time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a study")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--search", default="", help="rows to be trained with the best candidate on held-out data")
    parser.add_argument("--costs", action="store_true", help="times of compiled passes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(min(run(_arguments()), 1))
