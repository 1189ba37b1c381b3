"""From raw texts or images to answers, in the form of Hugging Face's pipelines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from varprop.errors import InputError
from varprop.prediction.prediction import Prediction
from varprop.prediction.predictor_config import is_tokenizer
from varprop.prediction.predictors import Predictor
from varprop.prediction.selective import Decision


class ClassificationPipeline:
    """Called with a text, an image or a list of either: ``[{"label": …, "score": …, "abstain": …}, …]``.

    ``score`` is the probability of the label. ``abstain`` is there for a ``Selective``: whether it would rather not
    answer; the label is then its best guess. ``processor`` is a tokenizer or an image processor, by default the one
    the predictor was fitted with; ``options`` are given to it (``max_length=…``).
    """

    def __init__(self, predictor: Predictor, processor: Any = None, *, batch_size: int = 32, **options: Any) -> None:
        if not isinstance(predictor, Predictor):
            raise InputError(f"a pipeline takes a predictor, vp.fit(model, held_out), not a {type(predictor).__name__}")
        self.predictor, self.processor = predictor, processor or predictor.processor
        if self.processor is None:
            raise InputError("there is nothing to read raw data with: give the tokenizer or image processor")
        texts = {"padding": True, "truncation": True} if is_tokenizer(self.processor) else {}
        self.batch_size, self.options = batch_size, texts | options

    def __call__(self, inputs: Any) -> list[dict[str, Any]]:
        several = isinstance(inputs, Iterable) and not isinstance(inputs, str) and not hasattr(inputs, "shape")
        items = iter(inputs if several else [inputs])
        found: list[dict[str, Any]] = []
        while batch := list(itertools.islice(items, self.batch_size)):
            found += self._answers(batch)
        return found

    def _answers(self, batch: list[Any]) -> list[dict[str, Any]]:
        read = self.processor(batch, return_tensors="pt", **self.options)
        answer = self.predictor(**{name: value.to(self.predictor.device) for name, value in read.items()})
        prediction = answer.prediction if isinstance(answer, Decision) else answer
        if not isinstance(prediction, Prediction) or prediction.label.ndim != 1:
            raise InputError("this pipeline is for one label of a whole text or image: call the predictor itself")
        labels = prediction.label.tolist()
        names = [f"LABEL_{label}" for label in labels] if prediction.classes is None else prediction.names
        rows = zip(names, prediction.confidence.tolist(), strict=True)
        found: list[dict[str, Any]] = [{"label": name, "score": score} for name, score in rows]
        if isinstance(answer, Decision):
            found = [{**row, "abstain": not kept} for row, kept in zip(found, answer.answered.tolist(), strict=True)]
        return found

    def __repr__(self) -> str:
        return f"ClassificationPipeline({self.predictor}, {type(self.processor).__name__})"
