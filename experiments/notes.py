"""What is to be said before an experiment is run: what its folder holds already, and how long it may take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.pipeline import Pipeline
from varprop.evaluation.results import Results

SHOWN = 3  # settings that differ, in a note


def notes(pipeline: Pipeline) -> Iterator[str]:
    done = [seed for seed in pipeline.seeds if not pipeline.missing(seed)]
    if len(done) == len(pipeline.seeds):
        return
    if done:
        yield f"{_seeds(done)} {'are' if len(done) > 1 else 'is'} done already"
    yield from _other_settings(pipeline)
    if pipeline.device == "cpu" and pipeline.limit is None and pipeline.experiment.paper is not None:
        yield "on a CPU this takes many hours; --epochs 1 --limit 2000 shows in minutes that all works"


def _other_settings(pipeline: Pipeline) -> Iterator[str]:
    """Rows of this experiment that were made in another way."""
    rows = Results(pipeline.folder).rows
    others = [row for row in rows if row.row == pipeline.experiment.name and row.config != pipeline.config]
    if not others:
        return
    changed = _differences(others[0].config, pipeline.config)
    replaced = sorted({row.seed for row in others if row.seed in pipeline.seeds})
    kept = sorted({row.seed for row in others} - set(replaced))
    if replaced:
        yield (
            f"{pipeline.folder} holds rows of {_seeds(replaced)} with other settings ({changed}): each is replaced "
            "when the new one is there. To keep them, stop now and choose another --out"
        )
    if kept:
        yield (
            f"{pipeline.folder} holds rows of {_seeds(kept)} with other settings ({changed}): the tables will average "
            "them with these. Choose another --out, or run those seeds again too"
        )


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The settings that are not the same, as ``recipe.epochs 100, now 1``."""
    before, after = dict(_flat(old)), dict(_flat(new))
    changed = [name for name in (before | after) if before.get(name) != after.get(name)]
    told = [f"{name} {before.get(name, 'none')}, now {after.get(name, 'none')}" for name in changed[:SHOWN]]
    return "; ".join(told + [f"{len(changed) - SHOWN} more"] * (len(changed) > SHOWN))


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif value is not None:
            yield f"{above}{name}", value
