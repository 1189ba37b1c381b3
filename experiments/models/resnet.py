"""A residual network of bottleneck blocks, by default ResNet-50, with the parameter names of torchvision."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

EXPANSION = 4
"""A block gives out four times as many channels as its 3×3 convolution has."""


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, each with a norm, added to what came in.

    The stride is taken by the convolution of number ``strided``: 1 in the original network and in Keras, 2 in
    torchvision's (and in most networks since).
    """

    def __init__(self, inputs: int, width: int, stride: int, *, strided: int, eps: float) -> None:
        super().__init__()
        outputs = EXPANSION * width
        first, second = (stride if strided == number else 1 for number in (1, 2))
        self.conv1 = nn.Conv2d(inputs, width, 1, stride=first, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps)
        self.conv2 = nn.Conv2d(width, width, 3, stride=second, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs, eps)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs, eps))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(nn.Module):
    """A stem, four stages of blocks, the mean over the image and a linear layer: ResNet-50 with the defaults.

    ``depths`` counts the blocks of each stage, ``width`` the channels of the first; ``strided`` is explained at
    ``Bottleneck``; ``eps`` is that of every norm.
    """

    def __init__(
        self,
        depths: Sequence[int] = (3, 4, 6, 3),
        classes: int = 1000,
        *,
        width: int = 64,
        strided: int = 2,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.depths = tuple(depths)
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = width
        for index, depth in enumerate(depths):
            blocks = []
            for block in range(depth):
                stride = 2 if index and not block else 1
                blocks.append(Bottleneck(inputs, width << index, stride, strided=strided, eps=eps))
                inputs = EXPANSION * (width << index)
            self.add_module(f"layer{index + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def grid(self, images: Tensor) -> Tensor:
        """What the last stage gives out, before the mean over the image."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for index in range(len(self.depths)):
            x = self.get_submodule(f"layer{index + 1}")(x)
        return x

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.avgpool(self.grid(images)).flatten(1))
