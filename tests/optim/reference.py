"""IVON as published, one entry at a time in float64, with nothing of the library in it."""

from dataclasses import dataclass, field

import torch


@dataclass
class Reference:
    """One parameter: mean, momentum, curvature, and the settings of its group."""

    mean: torch.Tensor
    lr: float
    ess: float
    hess_init: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99999
    weight_decay: float = 1e-4
    clip_radius: float = float("inf")
    t: int = 0
    draws: list = field(default_factory=list)

    def __post_init__(self):
        self.mean = self.mean.detach().double().clone()
        self.g = torch.zeros_like(self.mean)
        self.h = torch.full_like(self.mean, self.hess_init)

    def noise(self, z):
        return z.double() / (self.ess * (self.h + self.weight_decay)).sqrt()

    def take(self, gradient, noise):
        """One draw: ĝ and ĥ = ĝ·ε·λ(h + δ)."""
        gradient = gradient.double()
        self.draws.append((gradient, gradient * noise * self.ess * (self.h + self.weight_decay)))

    def step(self):
        g_hat = sum(g for g, _ in self.draws) / len(self.draws)
        h_hat = sum(h for _, h in self.draws) / len(self.draws)
        self.draws = []
        self.t += 1
        b1, b2, decay = self.beta1, self.beta2, self.weight_decay
        self.g = b1 * self.g + (1 - b1) * g_hat
        self.h = (
            b2 * self.h + (1 - b2) * h_hat + 0.5 * (1 - b2) ** 2 * (self.h - h_hat) ** 2 / (self.h + decay)
        )  # every h on the right is the old one
        move = (self.g / (1 - b1**self.t) + decay * self.mean) / (self.h + decay)
        self.mean = self.mean - self.lr * (self.hess_init + decay) * move.clamp(-self.clip_radius, self.clip_radius)
