"""A predictor goes to the Hub, which is a folder here, and comes back."""

import shutil

import pytest
import torch
from torch import nn

import varprop as vp
from varprop.errors import InputError

huggingface_hub = pytest.importorskip("huggingface_hub")
hub = pytest.importorskip("varprop.integrations.hub")


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The folder that stands for the Hub."""
    remote = tmp_path / "remote"

    def upload_folder(self, *, repo_id, folder_path, **_):
        shutil.copytree(folder_path, remote / repo_id)
        return repo_id

    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(
        huggingface_hub.HfApi,
        "create_repo",
        lambda self, repo_id, **_: huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}"),
    )

    def snapshot_download(name, allow_patterns, **_):
        kept = [path for path in (remote / name).iterdir() if any(path.match(each) for each in allow_patterns)]
        copy = tmp_path / "fetched"
        copy.mkdir()
        for path in kept:
            shutil.copy(path, copy)
        return str(copy)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(
        "huggingface_hub.hub_mixin.hf_hub_download",
        lambda repo_id, filename, **_: str(remote / repo_id / filename),
    )
    return remote


def test_there_and_back(repository, tmp_path):
    torch.manual_seed(0)
    model, x = network(), torch.randn(400, 4)
    plain = vp.MeanNetwork(model)
    y = plain(x).label
    predictor = vp.Selective(plain).fit([(x, y)], risk=0.1)
    evaluation = vp.evaluate(predictor, [(x, y)], progress=False)
    hub.HubPredictor(predictor, evaluation).push_to_hub("me/mine")
    pushed = repository / "me" / "mine"
    assert sorted(path.name for path in pushed.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    text = (pushed / "README.md").read_text()
    assert all(heading in text for heading in ("## Guarantee", "## Evaluation", "## Limits"))

    (pushed / "modeling_evil.py").write_text("raise SystemExit")
    for name in (str(pushed), "me/mine"):
        found = hub.HubPredictor.from_pretrained(name, model=network()).predictor
        assert torch.equal(found(x).probs, predictor(x).probs)
        assert found.guarantee == predictor.guarantee
    assert not (tmp_path / "fetched" / "modeling_evil.py").exists()


def test_only_predictors():
    with pytest.raises(InputError, match="a predictor is pushed"):
        hub.HubPredictor(network())
