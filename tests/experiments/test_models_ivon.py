"""Checkpoints of ivon-opt: weights, norms' statistics and posterior; and what is refused."""

import pytest
import torch

from experiments.exceptions import DataError
from experiments.models.resnet import ResNet
from experiments.models.weights import ivon_checkpoint

pytestmark = pytest.mark.second

ivon = pytest.importorskip("ivon")
ESS, DECAY = 100.0, 0.01


def network(**options):
    return ResNet(**{"depths": (1, 1), "classes": 5, "width": 4, **options})


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = network().train()
    optimizer = ivon.IVON(model.parameters(), lr=0.1, ess=ESS, weight_decay=DECAY, hess_init=0.1, beta2=0.9)
    for _ in range(2):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.arange(4)).backward()
        optimizer.step()
    return model, optimizer


def failure(file, model=None):
    with pytest.raises(DataError) as caught:
        ivon_checkpoint(model or network(), file)
    return str(caught.value)


def saved(path, content):
    torch.save(content, path / "checkpoint.pt")
    return path / "checkpoint.pt"


@pytest.mark.parametrize(
    ("keys", "prefix"),
    [
        (("model", "optimizer"), ""),
        (("state_dict", "optimizer"), "module."),
        (("model_state_dict", "optimizer_state_dict"), "_orig_mod.module."),
    ],
)
def test_weights_statistics_and_variances(trained, tmp_path, keys, prefix):
    original, optimizer = trained
    weights = {prefix + name: tensor for name, tensor in original.state_dict().items()}
    file = saved(tmp_path, {keys[0]: weights, keys[1]: optimizer.state_dict(), "epoch": 2})
    model, posterior = ivon_checkpoint(network(), file)
    assert not model.training
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in original.state_dict().items())
    assert model.bn1.running_mean.abs().max() > 0, "the statistics of batch norm are in the checkpoint"
    flat = 1 / (ESS * (optimizer.param_groups[0]["hess"].double() + DECAY))
    sizes = [parameter.numel() for parameter in original.parameters()]
    for (name, parameter), var in zip(original.named_parameters(), flat.split(sizes), strict=True):
        assert torch.equal(posterior[name].mean, parameter)
        torch.testing.assert_close(posterior[name].var.double().flatten(), var, rtol=1e-6, atol=0)
    assert len(posterior["fc.weight"].var.unique()) > 1, "training should have made the curvatures differ"


def test_another_architecture(trained, tmp_path):
    model, optimizer = trained
    file = saved(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert "fc.bias is 5, in the model 6" in failure(file, network(classes=6))
    assert "lacks layer3.0.conv1.weight 16×32×1×1" in failure(file, network(depths=(1, 1, 1)))
    assert "which the model lacks" in failure(file, network(depths=(1,)))


def test_checkpoints_without_a_part(trained, tmp_path):
    model, optimizer = trained
    assert "there is no file" in failure(tmp_path / "absent.pt")
    assert "without the model's weights" in failure(saved(tmp_path, {"optimizer": optimizer.state_dict()}))
    assert "without the optimizer's state" in failure(saved(tmp_path, {"model": model.state_dict(), "epoch": 3}))
    other = torch.optim.SGD(model.parameters(), lr=0.1).state_dict()
    assert 'no "hess"' in failure(saved(tmp_path, {"model": model.state_dict(), "optimizer": other}))
    assert "holds a list" in failure(saved(tmp_path, [1, 2]))


class Hostile:
    """Would write a file if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    file = saved(tmp_path, {"model": Hostile(tmp_path / "ran"), "optimizer": {}})
    assert "not a checkpoint of tensors and plain values" in failure(file)
    assert not (tmp_path / "ran").exists()
    file.write_bytes(file.read_bytes()[:100])
    assert "not a checkpoint of tensors and plain values" in failure(file)
