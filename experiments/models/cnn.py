"""A small convolutional network."""

from __future__ import annotations

from torch import Tensor, nn


class CNN(nn.Module):
    """Two convolutions, each with a ReLU and a maximum over 2 × 2, and two linear layers."""

    def __init__(self, *, channels: int, side: int, classes: int, width: int = 32, hidden: int = 128) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.hidden = nn.Linear(2 * width * (side // 4) ** 2, hidden)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.hidden(self.features(images).flatten(1)))
