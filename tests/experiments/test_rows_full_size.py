"""ViT-B/16 and ResNet-50 at their real size, end to end on a few images: minutes on a CPU."""

import pytest

from experiments.models.transformer import BASE
from experiments.pipeline import Pipeline
from experiments.rows import ROWS
from tests.experiments import synthetic_rows
from varprop.report import tables
from varprop.report.summary import Summary

pytest.importorskip("ivon")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings(
        "ignore:calibration ended after",
        "ignore:calibration raised the NLL",
        "ignore:.* held-out examples for .* are few",
    ),
]
FULL_SIZE = {
    "cifar100-vit": (lambda folder: synthetic_rows.cifar100(folder, dict(BASE)), 85_875_556),
    "imagenet-resnet50": (lambda folder: synthetic_rows.imagenet(folder, {}), 25_557_032),
}


@pytest.mark.parametrize("name", FULL_SIZE)
def test_from_weights_to_the_table(tmp_path, name, without_measuring):
    make, weights = FULL_SIZE[name]
    experiment, sources = make(tmp_path)
    run = Pipeline(experiment, (0,), tmp_path / "results", sources=sources, progress=False, log=lambda _: None)
    run.limit = 4 if experiment.posterior is None else 20
    results = run.run()
    model, posterior = run.trained(0)  # read back
    assert sum(parameter.numel() for parameter in model.parameters()) == weights
    assert posterior.keys() == dict(model.named_parameters()).keys()
    text = tables.kinds(Summary(results.rows), (name,))[0].text()
    assert text.startswith(ROWS[name].title)
    assert all(method.title in text for method in synthetic_rows.METHODS)
    scales = results.rows[1].scales
    assert any(scale != 1 for scale in scales.values())
    for file in (*tmp_path.rglob("*.safetensors"), *tmp_path.rglob("*.pt")):  # gigabytes, which pytest would keep
        file.unlink()
