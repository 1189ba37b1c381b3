"""Train, propagate, calibrate, evaluate every method, keep a row for each; what is finished is not done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from varprop.cost import relative_costs
from varprop.data import Images, Split
from varprop.demo.model import ViT
from varprop.demo.recipes import Recipe
from varprop.demo.training import train
from varprop.measure import measure
from varprop.methods import build
from varprop.posterior import Posterior
from varprop.predict.fidelity import compare
from varprop.predict.predictors import MonteCarlo, Propagated
from varprop.propagate.network import MomentNet
from varprop.report import Results

METHODS = ("mean", "temperature", "MC-2", "MC-4", "MC-8", "MC-64", "Streamlining", "CVP")
THUMBNAILS = 600


@dataclass
class Pipeline:
    """One seed of the demo, in a results folder."""

    data: Images
    recipe: Recipe
    seed: int
    folder: Path
    device: str = "cpu"
    progress: bool = True
    say: Callable[[str], None] = print

    def run(self) -> Results:
        results = Results(self.folder)
        done = {row.key for row in results.rows if row.config == self._config()}  # another recipe is another result
        missing = [method for method in METHODS if (self.data.name, method, self.seed) not in done]
        if not missing:
            self.say(f"all {len(METHODS)} methods are there already: nothing to do")
            return results
        seen, held_out, test = self._splits()
        # First, because a folder that cannot be written to should be known before the training, not after it.
        results.add_examples(_thumbnails(test), self.data.classes, row=self.data.name)
        model, posterior = self._trained(seen)
        self.say("timing compiled passes")
        costs = relative_costs(METHODS, model, posterior, test.inputs()[:256].to(self.device))
        for method in missing:
            self.say(method)
            settings = {"progress": self.progress, "seed": self.seed, **self.recipe.calibration}
            predictor = build(method, model, posterior, _batches(held_out), **settings)
            row, scores = measure(
                predictor,
                _batches(held_out),
                _batches(test),
                row=self.data.name,
                method=method,
                seed=self.seed,
                config=self._config(),
                progress=self.progress,
            )
            if method == "CVP" and isinstance(predictor, Propagated):
                row = replace(row, fidelity=_fidelity(predictor.net, model, posterior, test))
            results.add(replace(row, cost=costs.get(method)), scores)
        return results

    def _config(self) -> dict[str, Any]:
        return {"recipe": asdict(self.recipe)}

    def _splits(self) -> tuple[Split, Split, Split]:
        seen, held_out = self.data.hold_out(self.recipe.held_out)
        return seen.take(slice(self.recipe.train)), held_out, self.data.test.take(slice(self.recipe.test))

    def _trained(self, seen: Split) -> tuple[nn.Module, Posterior]:
        torch.manual_seed(self.seed)
        model = ViT(classes=len(self.data.classes), **self.recipe.model).to(self.device)
        checkpoint = self.folder / f"{self.data.name}-{self.seed}.safetensors"
        posterior = train(model, seen, self.recipe, self.seed, checkpoint, progress=self.progress)
        return model.eval(), posterior


def _batches(split: Split, size: int = 256) -> list[tuple[Tensor, Tensor]]:
    return list(zip(split.inputs().split(size), split.labels.split(size), strict=True))


def _thumbnails(split: Split) -> Any:
    images = split.images[:THUMBNAILS].permute(0, 2, 3, 1)
    return (images[..., 0] if images.shape[-1] == 1 else images).contiguous().numpy()


def _fidelity(net: MomentNet, model: nn.Module, posterior: Posterior, test: Split) -> list[dict[str, Any]]:
    return [asdict(row) for row in compare(net, MonteCarlo(model, posterior, 128), test.inputs()[:32].to(net.device))]
