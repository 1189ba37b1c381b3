"""Which of its own answers are wrong? A small causal model, trained on the questions of DAQUAR without the images.

python benchmarks/sequences.py FOLDER 3    # with train.csv and eval.csv; three seeds, AURC ×1000: smaller is better

Answers are generated word by word. They are ranked by the mean log-probability of their words, under the plain network
and under the propagated one, and by the variance of their logits.
"""

from __future__ import annotations

import csv
import json
import sys
import time
import warnings
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

import varprop as vp

PAD, END, ASK = 0, 1, 2
EPOCHS, BATCH, WORDS = 5, 64, 4
Pairs = list[tuple[list[str], list[str]]]


def read(file: Path) -> Pairs:
    with file.open() as lines:
        return [(row["question"].split(), row["answer"].split()) for row in csv.DictReader(lines)]


class Vocabulary:
    def __init__(self, pairs: Pairs) -> None:
        words = sorted({word for pair in pairs for part in pair for word in part})
        self.ids = {word: number for number, word in enumerate(words, start=3)}
        self.size = len(words) + 4  # the last is for words that are new

    def __call__(self, words: list[str]) -> list[int]:
        return [self.ids.get(word, self.size - 1) for word in words]


def batch(pairs: Pairs, known: Vocabulary) -> tuple[dict[str, Tensor], Tensor]:
    """Question, ASK, answer, END, padded on the right; targets are the words of the answer, where they come next."""
    rows = [([*known(question), ASK], [*known(answer), END]) for question, answer in pairs]
    length = max(len(q) + len(a) for q, a in rows)
    ids = torch.full((len(rows), length), PAD)
    target = torch.full((len(rows), length), -100)
    for number, (q, a) in enumerate(rows):
        ids[number, : len(q) + len(a)] = torch.tensor(q + a)
        target[number, len(q) - 1 : len(q) + len(a) - 1] = torch.tensor(a)
    return {"input_ids": ids}, target


def trained(pairs: Pairs, known: Vocabulary) -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=2, n_head=4, n_embd=96, n_positions=128, vocab_size=known.size, bos_token_id=END, eos_token_id=END
    )
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(pairs)).split(BATCH):
            inputs, target = batch([pairs[i] for i in rows], known)
            optimizer.zero_grad()
            hidden = model.transformer(**inputs).last_hidden_state[target != -100]
            nn.functional.cross_entropy(model.lm_head(hidden), target[target != -100]).backward()
            optimizer.step()
    return model.eval()


def answered(stepper: vp.Stepper, pairs: Pairs, known: Vocabulary) -> dict[str, Tensor]:
    """Of every question: whether the answer is right, the score of the text, and its variance."""
    found: dict[str, list[Tensor]] = {"right": [], "score": [], "certain": []}
    for start in range(0, len(pairs), 250):
        some = pairs[start : start + 250]
        prompts = [[*known(question), ASK] for question, _ in some]
        length = max(map(len, prompts))
        ids = torch.tensor([[PAD] * (length - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts])
        texts = vp.generate(stepper, ids, mask, tokens=WORDS, end=END)
        right = [
            row[:count].tolist() == [*known(answer), END]
            for row, count, (_, answer) in zip(texts.tokens, texts.lengths.tolist(), some, strict=True)
        ]
        found["right"].append(torch.tensor(right).float())
        found["score"].append(texts.score)
        found["certain"].append(-texts.total_var / texts.lengths)
    return {name: torch.cat(values) for name, values in found.items()}


def measured(folder: Path, seed: int) -> dict[str, object]:
    torch.manual_seed(seed)
    pairs, test = read(folder / "train.csv"), read(folder / "eval.csv")
    held_out, train = pairs[:750], pairs[750:]
    known = Vocabulary(train)
    started = time.perf_counter()
    model = trained(train, known)
    training = time.perf_counter() - started
    batches = [batch(held_out[i : i + BATCH], known) for i in range(0, len(held_out), BATCH)]
    link = vp.links.MeanFieldSoftmax()
    tiny = vp.Posterior.from_tensors(
        dict(model.named_parameters()), {name: torch.full_like(w, 1e-20) for name, w in model.named_parameters()}
    )
    plain = vp.Propagated(vp.propagate(model, tiny), link=link)
    fitted = vp.fit(model, batches, link=link, scales=(), progress=False)
    aurc: dict[str, float] = {}
    right: dict[str, float] = {}
    for name, predictor in (("plain", plain), ("cvp", fitted)):
        predictor(input_ids=batches[0][0]["input_ids"])
        found = answered(vp.Stepper(predictor), test, known)
        right[name] = round(float(found["right"].mean()), 4)
        aurc[f"{name} mean log-probability"] = float(vp.metrics.aurc(found["score"], found["right"]))
        if name == "cvp":
            aurc["cvp variance"] = float(vp.metrics.aurc(found["certain"], found["right"]))
    return {
        "questions": len(test),
        "right": right,
        "calibration": fitted.net.calibration.chosen if fitted.net.calibration else None,
        "aurc": {name: round(1000 * value, 2) for name, value in aurc.items()},
        "seed": seed,
        "training_seconds": round(training),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        print(json.dumps(measured(Path(sys.argv[1]), number)), flush=True)
