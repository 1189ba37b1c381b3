"""CIFAR-100 with ViT-B/16 of 85.9 million weights, fine-tuned from a checkpoint of Hugging Face."""

from __future__ import annotations

from experiments.augment import Augment
from experiments.data.cifar import cifar100
from experiments.experiment import Experiment
from experiments.models.prepare import VIT
from experiments.models.transformer import vit_base
from experiments.recipes import Recipe, Schedule
from experiments.rows.starting_points import from_weights, splits

NAME = "cifar100-vit"
WANTED = (
    "give the folder of a pretrained ViT-B/16 (config.json and model.safetensors, such as "
    "google/vit-base-patch16-224-in21k of Hugging Face)"
)

# The paper's. It says nothing of batch, schedule, augmentation and which checkpoint: those are ours.
IVON = {"lr": 1.0, "ess": 5e6, "hess_init": 2e-3, "beta2": 0.9998, "weight_decay": 1e-4, "clip_radius": 1e-3}


CIFAR100_VIT = Experiment(
    name=NAME,
    title="CIFAR-100 (ViT-Base)",
    about="A pretrained ViT-B/16 fine-tuned on 45,000 images of CIFAR-100; 5,000 are held out.",
    paper="CIFAR-100 (ViT-Base)",
    splits=splits(cifar100, held_out=5000),
    from_weights=True,
    model=from_weights(NAME, WANTED, vit_base),
    recipe=Recipe(
        model={"classes": 100},
        epochs=50,
        batch=128,
        ivon=IVON,
        schedule=Schedule(warmup=0.05),
        augment=Augment(pad=4, flip=True),
        calibration={"micro_batch": 64},  # for the memory of its gradients alone; steps are of 256
    ),
    prepare=VIT,
    evaluation_batch=100,
)
