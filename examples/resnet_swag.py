"""A ResNet with a SWAG posterior, including the batch norm update that averaged weights need.

The model is a small ResNet of transformers, trained on a few handwritten digits. Models of timm and torchvision work
the same way, e.g. ``timm.create_model("resnet18", num_classes=10, in_chans=1)``, called with images instead of
``pixel_values``. Requires the extras ``hf`` and ``demo`` (for scikit-learn). Takes about 20 seconds.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification

import varprop as vp

EPOCHS, COLLECT = 24, 12


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = nn.functional.interpolate(torch.tensor(data.images).float().unsqueeze(1) / 8 - 1, size=(16, 16))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], torch.tensor(data.target)[order]


def network() -> nn.Module:
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    return ResNetForImageClassification(
        ResNetConfig(**sizes, num_channels=1, num_labels=10, downsample_in_first_stage=False)
    )


def logits(model: nn.Module, images: Tensor) -> Tensor:
    return model(pixel_values=images).logits


def train(model: nn.Module, images: Tensor, labels: Tensor) -> vp.Posterior:
    """SGD at a high, constant rate; SWAG collects the weights at the end of each of the last epochs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    collector = vp.SWAG()
    for epoch in range(EPOCHS):
        for chosen in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits(model, images[chosen]), labels[chosen]).backward()
            optimizer.step()
        if epoch >= EPOCHS - COLLECT:
            collector.update_parameters(model)
    return vp.Posterior.from_swag(model, collector)


def update_statistics(model: nn.Module, posterior: vp.Posterior, images: Tensor) -> None:
    """Load the means and recompute the batch norm statistics, which are buffers and not part of the posterior.

    ``torch.optim.swa_utils.update_bn`` does the second part for models that take one tensor.
    """
    model.load_state_dict(posterior.mean, strict=False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the plain average over all batches
    model.train()
    with torch.no_grad():
        for chosen in images.split(100):
            logits(model, chosen)
    model.eval()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = digits()
    model = network().train()
    posterior = train(model, images[:300], labels[:300])
    held_out, test = [({"pixel_values": images[a:b]}, labels[a:b]) for a, b in ((300, 1000), (1000, 1797))]

    print(f"accuracy of the last weights          {accuracy(model.eval(), *test):.4f}")
    model.load_state_dict(posterior.mean, strict=False)
    print(f"mean of the weights, old statistics   {accuracy(model, *test):.4f}")
    update_statistics(model, posterior, images[:300])
    print(f"mean of the weights, new statistics   {accuracy(model, *test):.4f}")

    net = vp.propagate(model, posterior)
    net = vp.calibrate(net, [held_out], progress=False)
    for name, method in (("plain network", vp.MeanNetwork(model)), ("propagated", vp.Propagated(net))):
        found = vp.evaluate(method, [test], progress=False).metrics
        print(f"{name:>13}:", ", ".join(f"{key} {found[key]:.4f}" for key in ("accuracy", "nll", "ece", "aurc")))


def accuracy(model: nn.Module, inputs: dict[str, Tensor], labels: Tensor) -> float:
    with torch.no_grad():
        return float((model(**inputs).logits.argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()
