"""IVON in Lightning: one hook samples the weights before every batch.

The hook is needed for gradient accumulation and float16 scaling, where Lightning runs forward passes outside
``optimizer.step``. Requires the extras ``trainers`` and ``demo``.
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from train_digits import SETTINGS, ViT, digits

import varprop as vp
from varprop.optim import IVON


class Classifier(lightning.LightningModule):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.vit, self.steps = ViT(), steps

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = IVON(self.parameters(), **SETTINGS)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, SETTINGS["lr"], self.steps, cycle_momentum=False)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        wrapped = self.trainer.strategy.model
        if isinstance(wrapped, DistributedDataParallel):  # several processes: each draws its own noise
            self.optimizers().attach(wrapped)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.optimizers().train()  # the one line IVON needs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.vit(images), labels)

    def on_validation_start(self) -> None:
        self.optimizers().eval()  # validate at the means, also within an accumulated step

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.vit(images).argmax(1) == labels).float().mean())


def trainer(**options: Any) -> lightning.Trainer:
    defaults = {
        "max_epochs": 20,
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 1.0,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return lightning.Trainer(**defaults | options)


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    images, labels, test_images, test_labels = digits()
    train = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    return train, DataLoader(TensorDataset(test_images, test_labels), batch_size=360)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    model = Classifier(steps=20 * 45)
    built = trainer()
    built.fit(model, *loaders())
    print(f"test accuracy {100 * float(built.callback_metrics['accuracy']):.1f} %")
    print(vp.Posterior.from_ivon(model, built.optimizers[0]))


if __name__ == "__main__":
    main()
