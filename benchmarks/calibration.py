"""What a calibration costs and whether it converges, by the number of scales and of held-out examples.

    python benchmarks/calibration.py
    python benchmarks/calibration.py --networks vit mlp-149 --examples 200 50000

Residual MLPs of width 64 with so many scales, and a ViT of 160,000 weights with 11, trained with AdamW on 2,000
synthetic examples of ten overlapping classes; one variance for all weights, all else as ``vp.calibrate`` does it by
default. The unit is an epoch of plain training over the same held-out examples (forward, backward, AdamW; batches of
256), the median of three timed just before. Seconds count what a new process does once, such as compiling rules, where
it comes first. For the MLPs, whose plain pass takes milliseconds, epochs say little. Writes
benchmarks/results/calibration-<device>.json.
"""

from __future__ import annotations

import copy
import statistics
import time
import warnings
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from strong_plain import StrongViT
from timing import options, seconds, started, write
from torch import Tensor, nn

import varprop as vp

WIDTH, FEATURES, CLASSES, BATCH = 64, 16, 10, 256
VIT = {"hidden_size": WIDTH, "num_attention_heads": 4, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 3}
VIT |= {"patch_size": 8, "image_size": 32, "num_labels": CLASSES}
TRAINED, EPOCHS, RATE = 2_000, 20, 1e-3
Data = tuple[Tensor, Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def network(name: str) -> nn.Module:
    """``vit``, or ``mlp-15`` for one with 15 scales: two in each block, one at the output."""
    if name == "vit":
        return StrongViT(SimpleNamespace(**VIT))
    blocks = (Block() for _ in range(int(name.removeprefix("mlp-")) // 2))
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES))


def examples(name: str, count: int, seed: int) -> Data:
    """Labels are drawn from what a random network says of some features, images are these features and noise."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    inner, outer, basis = normal(FEATURES, WIDTH) / 4, normal(WIDTH, CLASSES) * 0.75, normal(FEATURES, 3 * 32 * 32) / 4
    generator.manual_seed(seed)
    x = normal(count, FEATURES)
    y = torch.multinomial(((x @ inner).tanh() @ outer).softmax(-1), 1, generator=generator).squeeze(-1)
    return (x @ basis + normal(count, 3 * 32 * 32)).view(-1, 3, 32, 32) if name == "vit" else x, y


def train(model: nn.Module, data: Data, epochs: int, rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(epochs):
        for x, y in batches(data):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def batches(data: Data) -> list[Data]:
    return list(zip(*(part.split(BATCH) for part in data), strict=True))


def epoch(model: nn.Module, data: Data, device: torch.device) -> float:
    """Seconds."""
    trained = copy.deepcopy(model)
    train(trained, (data[0][:BATCH], data[1][:BATCH]), 1, 0.0)
    return statistics.median(seconds(lambda: train(trained, data, 1, 0.0), device) for _ in range(3))


def measure(name: str, count: int, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(0)
    model = network(name).to(device)
    trained, held_out = (
        (x.to(device), y.to(device)) for x, y in (examples(name, TRAINED, 1), examples(name, count, 2))
    )
    train(model, trained, EPOCHS, RATE)
    unit = epoch(model, held_out, device)
    net = vp.propagate(model.eval(), vp.Posterior.isotropic(model))
    net.capture(held_out[0][:BATCH])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        found = vp.calibrate(net, batches(held_out), progress=False).calibration
        spent = time.perf_counter() - start
    assert found is not None
    row = {
        "network": name,
        "scales": len(net.scales),
        "examples": count,
        "chosen": found.chosen,
        "converged": found.converged,
    }
    row |= {"nll": dict(found.nll), "passes": found.passes, "warnings": [str(each.message) for each in caught]}
    return row | {"seconds": spent, "epochs": spent / unit}


def main() -> None:
    parser = options(__doc__, rounds=1, threads=2)
    parser.add_argument("--networks", nargs="+", default=["vit", "mlp-3", "mlp-15", "mlp-149"])
    parser.add_argument("--examples", type=int, nargs="+", default=[200, 2_000, 50_000])
    args = started(parser)
    device, rows = torch.device(args.device), []
    for name in args.networks:
        for count in args.examples:
            row = measure(name, count, device)
            rows.append(row)
            settled = "converged" if row["converged"] else "not converged"
            cost = f"{row['passes']:3.0f} passes, {row['seconds']:4.0f} s, {row['epochs']:4.0f} plain epochs"
            print(
                f"{name:8} {row['scales']:4} scales, {count:6} examples: {cost}, {row['chosen']}, {settled}", flush=True
            )
    write("calibration", args, {"width": WIDTH, "batch": BATCH}, rows=rows)


if __name__ == "__main__":
    main()
