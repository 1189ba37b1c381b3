"""Uncertainty for a Hugging Face classifier with dict batches from a DataLoader, without changing the model.

A tiny ViT is trained on a few handwritten digits while SWAG collects a posterior. If you already have a trained model
and a posterior, you only need the lines from ``propagate`` on. Text models with masks work the same way.
Requires the extras ``hf`` and ``demo`` (for scikit-learn). Takes about 20 seconds.
"""

from __future__ import annotations

import tempfile

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification

import varprop as vp

EPOCHS, COLLECT = 30, 10


class Digits(Dataset[dict[str, Tensor]]):
    """Dict items, as in Hugging Face datasets."""

    def __init__(self, first: int, last: int) -> None:
        data = load_digits()
        order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))[first:last]
        self.images = (torch.tensor(data.images).float() / 8 - 1)[order].unsqueeze(1)
        self.labels = torch.tensor(data.target)[order]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


def train(model: ViTForImageClassification, data: Digits) -> vp.Posterior:
    """Train with AdamW and collect the weights at the end of each of the last epochs."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    collector = vp.SWAG()
    for epoch in range(EPOCHS):
        for batch in DataLoader(data, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        if epoch >= EPOCHS - COLLECT:
            collector.update_parameters(model)
    return vp.Posterior.from_swag(model, collector)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=2, num_channels=1, num_labels=10))
    posterior = train(model.train(), Digits(0, 400))
    model.eval()

    net = vp.propagate(model, posterior)
    held_out = DataLoader(Digits(400, 1000), batch_size=100)
    net = vp.calibrate(net, held_out, progress=False)
    predictor = vp.Propagated(net)

    test = DataLoader(Digits(1000, 1797), batch_size=200)
    for name, method in (("plain network", vp.MeanNetwork(model, posterior)), ("propagated", predictor)):
        found = vp.evaluate(method, test, progress=False).metrics
        print(f"{name:>13}:", ", ".join(f"{key} {found[key]:.4f}" for key in ("accuracy", "nll", "ece", "aurc")))

    batch = next(iter(test))
    answer = predictor(pixel_values=batch["pixel_values"])  # called like the model
    surest, least = answer.confidence.argmax(), answer.confidence.argmin()
    for kind, one in (("surest", surest), ("least sure", least)):
        print(f"{kind} of a batch: label {answer.label[one]}, confidence {answer.confidence[one]:.3f}")

    with tempfile.TemporaryDirectory() as folder:
        predictor.save_pretrained(folder)
        loaded = vp.load(folder)  # safetensors and JSON; the model is rebuilt from its config
        again = loaded(pixel_values=batch["pixel_values"])
    print(f"the same after saving and loading: {torch.equal(answer.probs, again.probs)}")


if __name__ == "__main__":
    main()
