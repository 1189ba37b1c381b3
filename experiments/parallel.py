"""Networks of a row: trained together, then studied in several processes.

``python -m experiments.parallel ROW OUT --seeds 20-24 --methods "mean,temperature;cvp-adam;cvp-isotropic"``: a process
takes the methods of one seed up to a semicolon, and each row is written when it is there. What has not ended after
``--seconds`` is stopped, and all is if one process fails; what was trained and what is in OUT is not done again.

Ordinary networks have rows in OUT/rows.jsonl. With ``--tables`` methods are those of the tables (``cvp``, ``mc-64``),
and rows go into OUT/results.db; ``--search`` trains all candidates of the row first and takes the best on held-out
data, ``--costs`` times compiled passes in the end, with nothing else running.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from experiments.checkpoint_study import Study
from experiments.cvp_variants import Variant, methods_named
from experiments.experiment import Experiment, Sources
from experiments.pipeline import Pipeline
from experiments.pretraining import pretrained
from experiments.rows import row_named
from experiments.search import best_candidate, search
from varprop.cli.references import numbers

PAUSE = 0.2  # seconds between looks at the processes


def _experiment(args: argparse.Namespace) -> Experiment:
    found = row_named(args.row)
    if args.epochs:
        shorter = {name: replace(recipe, epochs=args.epochs) for name, recipe in found.candidates.items()}
        found = replace(found, recipe=replace(found.recipe, epochs=args.epochs), candidates=shorter)
    if args.tables:
        found = replace(found, methods=tuple(methods_named(args.methods.replace(";", ","))))
    return found


def _sources(args: argparse.Namespace, experiment: Experiment) -> Sources:
    """Pretraining comes first, where a row has it."""
    return pretrained(experiment, Sources(args.data, args.weights), args.out, args.device, progress=False)


def _pipeline(args: argparse.Namespace) -> Pipeline:
    experiment = _experiment(args)
    if args.search:
        experiment = best_candidate(experiment, args.out)
    sources = _sources(args, experiment)
    pipeline = Pipeline(experiment, numbers(args.seeds), args.out, args.device, sources, limit=args.limit)
    pipeline.progress = pipeline.fidelity = False
    return pipeline


def _train(args: argparse.Namespace) -> None:
    experiment = _experiment(args)
    if args.search and not (args.out / f"{args.row}-search.json").exists():
        sources = _sources(args, experiment)
        search(experiment, numbers(args.seeds), args.out, args.device, sources, progress=False)
    pipeline = _pipeline(args)
    pipeline.side_by_side = len(pipeline.seeds)
    pipeline.train(pipeline.seeds)


def _study(args: argparse.Namespace, seed: int, methods: Sequence[str], until: float) -> None:
    torch.set_num_threads(args.threads)
    pipeline = _pipeline(args)
    if not args.tables:
        Study(pipeline, seed, args.out / "rows.jsonl", until, methods).run()
    elif missing := [method for method in pipeline.missing(seed) if method.slug in methods]:
        pipeline.evaluate(pipeline.network(seed), seed, missing, {})


def _add_costs(args: argparse.Namespace) -> None:
    pipeline = _pipeline(args)
    timed = tuple(method for method in pipeline.experiment.methods if not isinstance(method, Variant))
    pipeline.experiment = replace(pipeline.experiment, methods=timed)
    pipeline.add_costs(numbers(args.seeds)[0])


def run(args: argparse.Namespace) -> int:
    """How many processes failed or were stopped."""
    until = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    if stopped := run_processes([spawn.Process(target=_train, args=(args,), name="training")], 1, until):
        return stopped
    groups = [part.split(",") for part in args.methods.split(";")]
    studies = [
        spawn.Process(target=_study, args=(args, seed, group, until), name=f"{seed}: {', '.join(group)}")
        for group in groups
        for seed in numbers(args.seeds)
    ]
    if (stopped := run_processes(studies, args.workers, until)) or not args.costs:
        return stopped
    return run_processes([spawn.Process(target=_add_costs, args=(args,), name="costs")], 1, until)


def run_processes(processes: Sequence[BaseProcess], most: int, until: float) -> int:
    """Run them, some at a time, until all have ended, one has failed or the time is over."""
    waiting, running, started = [*processes], list[BaseProcess](), time.monotonic()
    while (waiting or running) and time.monotonic() < until and not any(each.exitcode for each in running):
        for each in [each for each in running if each.exitcode == 0]:
            running.remove(each)
            sys.stdout.write(f"{time.monotonic() - started:6.1f} s  {each.name}\n")
            sys.stdout.flush()
        while waiting and len(running) < most:
            running.append(waiting.pop(0))
            running[-1].start()
        time.sleep(PAUSE)
    left = [each for each in running if each.exitcode != 0]
    for each in left:
        each.terminate()
        each.join()
    for each in (left := left + waiting):
        sys.stdout.write(f"not finished: {each.name}\n")
    return len(left)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.parallel", description=__doc__)
    parser.add_argument("row")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--methods", default="mean,temperature,cvp-isotropic;cvp-adam")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--workers", type=int, default=14, help="processes at a time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a process")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--tables", action="store_true", help="methods of the tables")
    parser.add_argument("--search", action="store_true", help="the best candidate on held-out data")
    parser.add_argument("--costs", action="store_true", help="times of compiled passes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(min(run(_arguments()), 1))
