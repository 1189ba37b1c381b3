"""Predictors: called like the model, they return a prediction."""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop.batch import SIZE, Batch, count, read, read_inputs
from varprop.errors import InputError, NetworkFileError
from varprop.graph.diagnostics import refuse_training
from varprop.graph.output import Output, run
from varprop.graph.signature import takes_one
from varprop.moments import Moments
from varprop.network import saving
from varprop.network.moment_net import MomentNet
from varprop.network.storage import reported
from varprop.posterior import Posterior
from varprop.prediction.card import write_card
from varprop.prediction.links import ClassLink, Gaussian, Link, Sigmoid, Softmax
from varprop.prediction.prediction import Prediction, Regression, concatenate
from varprop.prediction.predictor_config import describe_link, processor_name
from varprop.prediction.targets import labelled, refuse_mismatch, refuse_shape
from varprop.rules import CVP

UNLABELLED = "no example has a label: all are -100"


class Predictor(ABC):
    """Anything that predicts: ``predictor(*args, **kwargs)`` takes what the model takes and returns a prediction.

    ``classes`` are names of the classes, ``processor`` makes inputs of raw data: a tokenizer, an image processor.
    """

    link: Link
    classes: tuple[str, ...] | None = None
    processor: Any = None
    takes_one: bool = False
    """Are several inputs, in a list or a tuple, its only argument?"""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The prediction for one batch of inputs."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device that inputs belong on."""

    def predict(self, data: Any, *, batch_size: int = SIZE, progress: bool = True) -> Any:
        """The prediction for all of ``data``, as one object on the CPU.

        ``data`` is a data loader or a list of batches; an array, a tensor, or a dict of either; a data set of torch or
        Hugging Face; with a ``processor``, a list of texts. Targets are left out: ``labels`` of a dict, the last entry
        of a tuple. What does not come in batches is cut into those of ``batch_size``.
        """
        if isinstance(data, list) and data and isinstance(data[0], str):
            data = self._tokenized(data, batch_size)
        parts, silent = [], None if progress else True
        with tqdm(desc="predict", unit=" examples", total=count(data), disable=silent, leave=False) as bar:
            for inputs in read_inputs(data, batch_size, one=self.takes_one):
                placed = inputs.to(self.device)
                parts.append(self(*placed.args, **placed.kwargs).to("cpu"))
                bar.update(len(inputs))
        return concatenate(parts)

    def _tokenized(self, texts: list[str], size: int) -> Iterator[Any]:
        if self.processor is None:
            raise InputError("texts need a tokenizer: vp.fit(model, held_out, processor=tokenizer)")
        for start in range(0, len(texts), size):
            yield self.processor(texts[start : start + size], padding=True, truncation=True, return_tensors="pt")

    def network(self) -> MomentNet:
        """All tensors of the predictor, as a network that can be saved."""
        raise NetworkFileError(f"a {type(self).__name__} is not one of varprop's own predictors, and cannot be saved")

    def settings(self) -> dict[str, Any]:
        """What else it takes to make the predictor again, as JSON."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Its kind and settings, and those of a predictor that it is made from."""
        return {"kind": type(self).__name__, **self.settings()}

    def save_pretrained(self, path: str | os.PathLike[str], *, processor: Any = None, evaluation: Any = None) -> None:
        """Write the predictor to a folder, for ``vp.load``: ``config.json``, ``model.safetensors`` and a model card.

        ``processor`` is a tokenizer or another processor of transformers, by default the predictor's own, whose files
        lie beside. ``evaluation`` (of ``vp.evaluate``) adds its figures to the card.
        """
        processor, folder = self.processor if processor is None else processor, Path(path)
        name = processor_name(processor)
        config = saving.save(
            self.network(),
            folder,
            processor.save_pretrained if name else None,
            predictor=self.describe(),
            link=describe_link(self.link),
            classes=self.classes,
            processor=name,
        )
        with reported(f"cannot save {folder}"):
            write_card(folder, config, evaluation)

    def named(self, answer: Prediction | Regression) -> Prediction | Regression:
        """With the names of its classes, if there are as many."""
        if not isinstance(answer, Prediction) or self.classes is None:
            return answer
        fits = len(self.classes) == max(2, answer.probs.shape[-1])
        return dataclasses.replace(answer, classes=self.classes) if fits else answer


class Wrapper(Predictor):
    """A predictor that is made from another, and answers for the same inputs."""

    def __init__(self, predictor: Any) -> None:
        self.predictor, self.link = predictor, predictor.link
        self.classes, self.processor = predictor.classes, predictor.processor
        self.takes_one = predictor.takes_one

    @property
    def device(self) -> torch.device:
        return self.predictor.device

    def network(self) -> MomentNet:
        return self.predictor.network()

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"predictor": self.predictor.describe()}


class GaussianPredictor(Predictor):
    """A predictor whose answer follows from one mean and variance of the logits."""

    @abstractmethod
    def logits(self, *args: Any, **kwargs: Any) -> Moments:
        """The moments of the logits."""

    def decide(self, logits: Moments) -> Prediction | Regression:
        """The prediction that follows from the logits."""
        return self.link(logits)

    def loss(self, logits: Moments, target: Tensor) -> Tensor:
        """The negative log-likelihood of each target under that prediction."""
        return self.link.loss(logits, target)

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.named(self.decide(self.logits(*args, **kwargs)))


class MeanNetwork(GaussianPredictor):
    """The plain network: one pass with the means of the weights, no uncertainty about them.

    Without a posterior the model's own weights are the means.
    """

    def __init__(
        self, model: nn.Module, posterior: Posterior | None = None, *, link: Link | None = None, output: Output = None
    ) -> None:
        refuse_training(model)
        self.model, self.link, self.output = model, link or Softmax(), output
        self.classes, self.takes_one = class_names(model), takes_one(model.forward)
        self._weights = {} if posterior is None else {name: m.mean for name, m in posterior.resolve(model).items()}

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    def logits(self, *args: Any, **kwargs: Any) -> Moments:
        refuse_training(self.model)
        mean = run(self.model, self._weights, args, kwargs, self.output)
        return Moments(mean, torch.zeros_like(mean))

    def network(self) -> MomentNet:
        net = MomentNet(self.model, Posterior({}), CVP, self.output)
        for name, weight in self._weights.items():
            net.mean[name] = weight.detach().clone()
        return net

    def decide(self, logits: Moments) -> Prediction | Regression:
        return self.link.average([logits.mean])

    def loss(self, logits: Moments, target: Tensor) -> Tensor:
        if isinstance(self.link, ClassLink):
            return -self.link.log_likelihood(logits.mean, target)
        return super().loss(logits, target)

    def __repr__(self) -> str:
        return f"MeanNetwork({type(self.model).__name__}, link={self.link})"


class Propagated(GaussianPredictor):
    """One pass of a propagated network: CVP or Streamlining, according to the rules of ``net``.

    A regression whose noise is not known, ``Gaussian()``, has that which the calibration of ``net`` has found.
    """

    def __init__(
        self,
        net: MomentNet,
        *,
        link: Link | None = None,
        classes: Sequence[str] | None = None,
        processor: Any = None,
    ) -> None:
        if not isinstance(getattr(net, "_orig_mod", net), MomentNet):  # or one that torch.compile has wrapped
            raise InputError(
                f"Propagated takes a propagated network, not a {type(net).__name__}: "
                "vp.propagate(model, posterior) makes one"
            )
        self.net, self.link, self.processor = net, link or Softmax(), processor
        self.takes_one = net.takes_one
        self.classes = class_names(net.lifting.model) if classes is None else tuple(classes)
        if self.link == Gaussian() and net.calibration is not None:
            self.link = Gaussian(net.calibration.noise_std)

    @property
    def device(self) -> torch.device:
        return self.net.device

    def logits(self, *args: Any, **kwargs: Any) -> Moments:
        return self.net(*args, **kwargs)

    def network(self) -> MomentNet:
        net: MomentNet = getattr(self.net, "_orig_mod", self.net)
        return net

    def __repr__(self) -> str:
        return f"Propagated({self.net}, link={self.link})"


def class_names(model: nn.Module) -> tuple[str, ...] | None:
    """What the configuration of a Hugging Face model calls its classes."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    return tuple(str(names[index]) for index in sorted(names)) if isinstance(names, dict) and names else None


def link_for(logits: Tensor, target: Tensor) -> Link:
    """Softmax for class indices, sigmoid for zeros and ones in the shape of the logits, else a regression."""
    refuse_mismatch(logits, target)
    outputs = logits
    if logits.ndim == 1:  # a single output that has dropped its dimension
        logits = logits.unsqueeze(-1)
    if not target.is_floating_point() and target.shape == logits.shape[:-1] and logits.shape[-1] > 1:
        return Softmax()
    single = logits.shape[-1:] == (1,) and target.shape == logits.shape[:-1]
    binary = bool(((target == 0) | (target == 1) | ~labelled(target)).all())
    if binary and (single or target.shape == logits.shape):
        if not single and target.shape[-1] > 1 and bool((target.sum(-1) == 1).all()):
            raise InputError(
                "each row of the targets holds a single 1: give class indices, targets.argmax(-1), if every example "
                "has one label, and link=vp.links.Sigmoid() if it may have several"
            )
        return Sigmoid()
    if target.is_floating_point():
        refuse_shape(outputs, target)
        return Gaussian()
    raise InputError(
        f"{target.dtype} targets of shape {list(target.shape)} for outputs of shape {list(logits.shape)} are neither "
        "class indices nor zeros and ones: give floats for a regression, or say what they are with link="
    )


def predict_batches(predictor: Predictor, batches: Any) -> Iterator[tuple[Any, Tensor]]:
    """The prediction for each batch, with its target, on the predictor's device."""
    for batch in read(batches, one=predictor.takes_one):
        yield predict_batch(predictor, batch)


def predict_batch(predictor: Predictor, batch: Batch) -> tuple[Any, Tensor]:
    """The prediction for one batch, with its target, in the same way."""
    batch = batch.to(predictor.device)
    return predictor(*batch.args, **batch.kwargs), batch.target


def device_of(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
