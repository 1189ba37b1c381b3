"""Predictors as files: the same numbers, whatever runs them."""

import json
import os
import sys
import time
import zipfile

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import MAKERS, make, posterior_of
from varprop.deployment import exporting
from varprop.errors import ExportError, InputError, MissingPackageError


@pytest.fixture(scope="module")
def selective():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).eval()
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=0.3))
    x, y = torch.randn(400, 4), torch.randint(0, 3, (400,))
    y = torch.where(torch.rand(400) < 0.9, vp.Propagated(net)(x).label, y)
    tempered = vp.TemperatureScaled(vp.Propagated(net)).fit([(x, y)])
    return vp.Selective(tempered).fit([(x, y)], risk=0.3), torch.randn(6, 4)


def assert_same(found, answer):
    expected = exporting.outputs(answer)
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name].to(value.dtype), value, rtol=1e-4, atol=1e-4)


@pytest.mark.second
def test_an_archive_runs_at_other_batch_sizes(selective, tmp_path):
    predictor, x = selective
    path = vp.export(predictor, tmp_path / "net.pt2", x)
    loaded = torch.export.load(path)
    assert not [node.target for node in loaded.graph.nodes if "varprop" in str(node.target)]
    program = loaded.module()
    for batch in (x, x[:1], torch.randn(9, 4)):
        assert_same(program(batch), predictor(batch))
    assert list(program(x)) == ["probs", "confidence", "logit_mean", "logit_var", "abstain"]
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith(exporting.RECORD))
        assert json.loads(archive.read(name))["inputs"] == ["input"]


@pytest.mark.second
def test_many_classes(tmp_path):
    """Of which not all are sampled, unless variances are large, as those of the second batch are."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3000)
    predictor, x = vp.Propagated(vp.propagate(model, vp.Posterior.isotropic(model))), torch.randn(5, 4)
    program = torch.export.load(vp.export(predictor, tmp_path / "net.pt2", x)).module()
    for batch in (x, 100 * torch.randn(2, 4)):
        assert_same(program(batch), predictor(batch))


@pytest.mark.second
def test_a_regression(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    predictor = vp.Propagated(vp.propagate(model, vp.Posterior.isotropic(model)), link=vp.links.Gaussian(0.5))
    x = torch.randn(5, 4)
    assert_same(torch.export.load(vp.export(predictor, tmp_path / "net.pt2", x)).module()(x), predictor(x))


@pytest.mark.second
def test_onnx_runtime(selective, tmp_path):
    predictor, x = selective
    run = opened(vp.export(predictor, tmp_path / "net.onnx", x), "onnx")
    for batch in (x, x[:1], torch.randn(9, 4)):
        assert_same(run({"input": batch}), predictor(batch))


def opened(path, form):
    """Runs the file on a batch by name."""
    if form == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        names = [output.name for output in session.get_outputs()]

        def run(batch):
            found = session.run(names, {name: x.numpy() for name, x in batch.items()})
            return dict(zip(names, map(torch.from_numpy, found), strict=True))

        return run
    module = torch._inductor.aoti_load_package(str(path)) if form == "aot" else torch.export.load(path).module()
    return lambda batch: module(*batch.values())


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("form", ["pt2", "onnx", "aot"])
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_architecture(name, form, tmp_path):
    """At other batch sizes, and other lengths of texts, than it was written with."""
    model, batch = make(name)
    predictor = vp.Propagated(vp.propagate(model, posterior_of(model)))
    path = tmp_path / ("net.onnx" if form == "onnx" else "net.pt2")
    run = opened(vp.export(predictor, path, aot=form == "aot", **batch), form)
    batches = [batch, {key: x[:1] for key, x in batch.items()}, {key: torch.cat([x, x]) for key, x in batch.items()}]
    if "input_ids" in batch:
        batches.append({key: torch.cat([x, x[:, :4]], 1) for key, x in batch.items()})
    for inputs in batches:
        assert_same(run(inputs), predictor(**inputs))


def test_a_file_that_differs_is_not_kept(selective, tmp_path, monkeypatch):
    predictor, x = selective
    path = tmp_path / "net.pt2"
    path.write_text("the last good one")

    def write(program, inputs, names, made):
        made.write_bytes(b"")
        return lambda inputs: [value + 0.01 for value in exporting.outputs(predictor(*inputs)).values()]

    monkeypatch.setitem(exporting._WRITERS, ".pt2", write)
    with pytest.raises(ExportError, match="differs from the predictor: probs by 0.01; it was not kept"):
        vp.export(predictor.predictor, path, x)
    assert path.read_text() == "the last good one"
    assert [file.name for file in tmp_path.iterdir()] == ["net.pt2"]


def test_what_a_killed_export_left_is_removed(selective, tmp_path):
    predictor, x = selective
    for name, age in ((".net.pt2.export-old", 2 * exporting.STALE), (".net.pt2.export-running", 60)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.pt2").write_text("half of it")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    vp.export(predictor.predictor, tmp_path / "net.pt2", x)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".net.pt2.export-running", "net.pt2"]


def test_a_package_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"this needs pyarrow.*: pip install 'varprop\[score\]'"):
        exporting.import_optional("pyarrow", "score")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda predictor, x: (predictor, "net.bin", x), InputError, "named .onnx or .pt2"),
        (lambda predictor, x: (predictor, "net.pt2", x.tolist()), InputError, "takes tensors as inputs; input given"),
        (lambda predictor, x: (nn.Linear(1, 1), "net.pt2", x), InputError, "not a Linear"),
        (
            lambda predictor, x: (
                vp.MonteCarlo(nn.Linear(4, 3), vp.Posterior.isotropic(nn.Linear(4, 3)), 2),
                "net.pt2",
                x,
            ),
            ExportError,
            "export a Propagated instead",
        ),
    ],
)
def test_wrong_use(selective, change, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        vp.export(*change(*selective))
    assert not list(tmp_path.iterdir())
