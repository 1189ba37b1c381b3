"""ResNet: torchvision's names, Keras's weights, and propagation through it."""

import json

import pytest
import torch

import varprop as vp
from experiments.exceptions import DataError
from experiments.models.keras import keras_resnet50
from experiments.models.prepare import CAFFE, VIT
from experiments.models.resnet import ResNet
from tests.experiments import keras_files
from tests.models import posterior_of
from varprop.errors import InputError

pytestmark = pytest.mark.second


def small(seed=0, **options):
    torch.manual_seed(seed)
    model = ResNet((1, 1), 5, width=4, **options).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return model


@pytest.fixture
def folder(tmp_path):
    keras_files.write(tmp_path, keras_files.weights())
    return tmp_path


def failure(call, *args):
    with pytest.raises(DataError) as caught:
        call(*args)
    return str(caught.value)


def test_resnet50_has_torchvisions_names_and_sizes():
    with torch.device("meta"):
        state = ResNet().state_dict()
    assert len(state) == 320
    counted = [tensor for name, tensor in state.items() if name.rpartition(".")[2] in ("weight", "bias")]
    assert sum(tensor.numel() for tensor in counted) == 25_557_032
    shapes = {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_mean": (64,),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.0.downsample.1.bias": (256,),
        "layer3.5.conv2.weight": (256, 256, 3, 3),
        "layer4.2.bn3.weight": (2048,),
        "fc.weight": (1000, 2048),
    }
    assert {name: tuple(state[name].shape) for name in shapes} == shapes
    assert "layer1.1.downsample.0.weight" not in state


def test_the_stride_is_where_it_is_asked_for():
    first, second = small(strided=1).layer2[0], small(strided=2).layer2[0]
    assert (first.conv1.stride, first.conv2.stride) == ((2, 2), (1, 1))
    assert (second.conv1.stride, second.conv2.stride) == ((1, 1), (2, 2))


@pytest.mark.parametrize("rules", [vp.CVP, vp.STREAMLINING], ids=["CVP", "STREAMLINING"])
def test_it_propagates(rules):
    model, images = small(), torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    result = vp.propagate(model, posterior_of(model, 1e-3), rules)(images)
    assert (result.var > 0).all()
    distance = (result.mean - model(images)).abs().max()
    assert (distance > 1e-4) == (rules is vp.CVP)


def test_keras_weights_give_what_keras_computes(folder):
    model = keras_resnet50(folder)
    assert not model.training
    assert (model.bn1.eps, model.depths) == (keras_files.EPS, (1, 1, 1, 1))
    assert not any("conv" in name and name.endswith("bias") for name in model.state_dict())
    rgb = torch.randn(3, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = keras_files.forward(keras_files.weights(), rgb.flip(1))
    # Only m − b is rounded to float32: in exact arithmetic the folded network is the same.
    torch.testing.assert_close(model.double()(rgb), expected, rtol=1e-5, atol=1e-6)


def test_the_npm_package_is_found_below_its_folder(tmp_path):
    inner = tmp_path / "package" / "ResNet50"
    inner.mkdir(parents=True)
    keras_files.write(inner, keras_files.weights())
    assert keras_resnet50(tmp_path).fc.out_features == keras_files.CLASSES


def test_missing_and_damaged_keras_files(folder, tmp_path_factory):
    assert "holds no model.json" in failure(keras_resnet50, tmp_path_factory.mktemp("empty"))
    shard = folder / "group1-shard2of3.bin"
    data = shard.read_bytes()
    shard.write_bytes(data[:-4])
    assert "cut off" in failure(keras_resnet50, folder)
    shard.unlink()
    assert "lacks group1-shard2of3.bin" in failure(keras_resnet50, folder)
    (folder / "model.json").write_text("{}")
    assert "not the description" in failure(keras_resnet50, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w | {"dense_1/kernel": w["fc1000/bias"]}, "layer 'dense_1'"),
        (lambda w: {n: v for n, v in w.items() if n != "fc1000/bias"}, "lacks fc.bias"),
        (lambda w: {n: v for n, v in w.items() if n != "bn3a_branch2b/gamma"}, "lacks layer2.0.bn2.weight"),
        (lambda w: {n: v for n, v in w.items() if not n.startswith("bn4a_branch1/")}, "no batch norm"),
    ],
)
def test_other_networks_of_keras(tmp_path, change, message):
    keras_files.write(tmp_path, change(keras_files.weights()))
    assert message in failure(keras_resnet50, tmp_path)


def test_quantised_weights_are_refused(tmp_path):
    content = keras_files.write(tmp_path, keras_files.weights())
    content["weightsManifest"][0]["weights"][0]["quantization"] = {"dtype": "uint8", "min": 0, "scale": 1}
    (tmp_path / "model.json").write_text(json.dumps(content))
    assert "only float32 is read" in failure(keras_resnet50, tmp_path)


def test_images_are_prepared():
    images = torch.full((1, 3, 8, 8), 200, dtype=torch.uint8)
    assert torch.allclose(CAFFE(images)[0, :, 0, 0], torch.tensor([200 - 123.68, 200 - 116.779, 200 - 103.939]))
    small_images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 32, 32)
    assert VIT(small_images).shape == (2, 3, 224, 224)
    assert torch.allclose(VIT(small_images)[:, 0, 100, 100], torch.tensor([-1.0, 1.0]))
    assert torch.equal(CAFFE(images.float()), CAFFE(images))  # images that were changed for training are floats
    with pytest.raises(InputError, match=r"\[N, 3, H, W\]"):
        CAFFE(images[:, :1])
