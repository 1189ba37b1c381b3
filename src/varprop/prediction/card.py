"""The model card of a saved predictor: what ``config.json`` says, for readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from varprop.posterior.file import replacing

CARD = "README.md"
HEADER = "---\nlibrary_name: varprop\ntags:\n- uncertainty\n- calibration\n---"
CODE = """import varprop as vp

predictor = vp.load("this folder"{given})
prediction = predictor.predict(data)  # .to_pandas() makes a table of it
"""
LIMITS = (
    "Probabilities are calibrated for data like the held-out data they were fitted to; for other data, neither they "
    "nor a guarantee are to be relied on. The uncertainty is that of the weights: an input unlike any of the training "
    "data may still be answered with confidence."
)


def write_card(folder: Path, config: Mapping[str, Any], evaluation: Any = None) -> None:
    """Write the card, unless there is a file of that name which is none of ours."""
    file = folder / CARD
    if not file.exists() or file.read_text(encoding="utf-8").startswith(HEADER):
        with replacing(file) as temporary:
            temporary.write_text(card(config, evaluation), encoding="utf-8")


def card(config: Mapping[str, Any], evaluation: Any = None) -> str:
    """Markdown, with the figures of the calibration, of a guarantee, and of an evaluation on data of its own."""
    architecture = config["architecture"]
    given = "" if "config" in architecture else f", model={architecture['class']}(...).eval()"
    parts = [
        HEADER,
        f"# {architecture['class']}, with calibrated uncertainty",
        f"```python\n{CODE.format(given=given)}```",
        _table(("", ""), _facts(config)),
    ]
    if config.get("calibration"):
        parts += ["## Calibration", *_calibration(config["calibration"])]
    for record in _nested(config["predictor"]):
        if record.get("guarantee"):
            parts += ["## Guarantee", _guarantee(record["guarantee"])]
    if evaluation is not None:
        bounds = evaluation.intervals()
        rows = [
            (name, f"{value:.4g}", f"{bounds[name][0]:.4g} to {bounds[name][1]:.4g}")
            for name, value in evaluation.metrics.items()
        ]
        about = f"On {len(evaluation)} examples; 95 % intervals by the bootstrap over examples."
        parts += ["## Evaluation", about, _table(("metric", "value", "95 % interval"), rows)]
    return "\n\n".join([*parts, "## Limits", LIMITS]) + "\n"


def _facts(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    link = config["link"]
    settings = ", ".join(f"{key} {value:.4g}" for key, value in link.items() if isinstance(value, int | float))
    yield "predictor", " of ".join(record["kind"] for record in _nested(config["predictor"]))
    yield "model", f"{config['architecture']['module']}.{config['architecture']['class']}"
    yield "link", (link.get("name") or link.get("class") or "") + (f" ({settings})" if settings else "")
    yield "rules", config["rules"]["name"]
    for record in _nested(config["predictor"]):
        if "temperature" in record:
            yield "temperature", f"{record['temperature']:.4g}"
    if config["temperature"] != 1:
        yield "temperature of the network", f"{config['temperature']:.4g}"
    if config.get("classes"):
        yield "classes", ", ".join(config["classes"])
    if config.get("processor"):
        yield "processor", config["processor"]
    yield "saved with", ", ".join(f"{name} {version}" for name, version in config["versions"].items())


def _calibration(record: Mapping[str, Any]) -> list[str]:
    noise = f", noise {record['noise_std']:.4g} (standard deviation)" if record["noise_std"] is not None else ""
    rows = [(f"**{n}**" if n == record["chosen"] else n, f"{loss:.4f}") for n, loss in record["nll"].items()]
    about = f"Fitted on {record['examples']} held-out examples: {record['chosen']}, width {record['width']:.3g}{noise}."
    losses = "The loss of each candidate on examples that it was not fitted to, by cross-validation:"
    return [about, losses, _table(("candidate", "NLL"), rows)]


def _guarantee(record: Mapping[str, Any]) -> str:
    threshold = "always" if record["threshold"] is None else f"if confidence ≥ {record['threshold']:.6g}"
    return (
        f"Answers {threshold}. With probability {record['level']:.4g} over the draw of the {record['examples']} "
        f"examples it was fitted to, at most {record['risk']:.2%} of the answers are wrong, for data drawn like them. "
        f"On these examples it answers {record['coverage']:.1%}, and {record['empirical_risk']:.2%} of its answers are "
        f"wrong (upper bound {record['bound']:.2%})."
    )


def _nested(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A predictor, and those it was made from."""
    yield record
    if "predictor" in record:
        yield from _nested(record["predictor"])


def _table(header: tuple[str, ...], rows: Any) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
