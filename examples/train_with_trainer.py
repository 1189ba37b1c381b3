"""IVON in Hugging Face's Trainer: pass it as the optimizer. On one device, in float32 or bfloat16, that is all.

Trainer calls ``optimizer.train()`` before every forward pass and ``optimizer.eval()`` before evaluation. This matches
IVON's plain loop: one sample per step, the means in between. Accumulation, clipping, schedules, checkpoints and
resuming are handled by Trainer. Requires the extras ``trainers`` and ``demo``.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from train_digits import SETTINGS, ViT, digits
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainingArguments

import varprop as vp
from varprop.optim import IVON


class Classifier(nn.Module):
    """Returns a loss if labels are given, as Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = ViT()

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.vit(images)
        return (
            {"logits": logits}
            if labels is None
            else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
        )


class Digits(Dataset[dict[str, Tensor]]):
    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"images": self.images[index], "labels": self.labels[index]}


class IVONCallback(TrainerCallback):
    """For several processes (torchrun) and for float16; harmless elsewhere."""

    def __init__(self, optimizer: IVON) -> None:
        self.optimizer = optimizer
        self.trainer: Trainer | None = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self.trainer is not None and isinstance(self.trainer.model_wrapped, DistributedDataParallel):
            self.optimizer.attach(self.trainer.model_wrapped)  # each process draws its own noise

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.optimizer.eval()  # save at the means, also after a step the float16 scaler skipped


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def trainer(folder: str, **options: Any) -> Trainer:
    images, labels, test_images, test_labels = digits()
    arguments = {
        "output_dir": folder,
        "num_train_epochs": 20,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 1.0,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
    }
    arguments |= options
    torch.manual_seed(0)
    model = Classifier()
    optimizer = IVON(model.parameters(), **SETTINGS)
    callback = IVONCallback(optimizer)
    built = Trainer(
        model,
        TrainingArguments(lr_scheduler_type="cosine", warmup_steps=0.1, **arguments),
        train_dataset=Digits(images, labels),
        eval_dataset=Digits(test_images, test_labels),
        compute_metrics=accuracy,
        optimizers=(optimizer, None),
        callbacks=[callback],
    )
    callback.trainer = built
    return built


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        built = trainer(folder)
        built.train()
        print(f"test accuracy {100 * built.evaluate()['eval_accuracy']:.1f} %")
        posterior = vp.Posterior.from_ivon(built.model, built.optimizer)
        print(posterior)


if __name__ == "__main__":
    main()
