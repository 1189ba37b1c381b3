"""Selective prediction: answer within a risk budget and abstain elsewhere.

The network is trained on few handwritten digits and makes errors. ``Selective.fit`` finds a confidence threshold that
keeps a risk budget, with a finite-sample guarantee; the test set shows the risk and coverage achieved.
Requires the extra ``demo`` (for scikit-learn). Takes a few seconds.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import varprop as vp

SIZES = {"train": 150, "calibrate": 300, "choose": 700, "test": 647}


def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Four disjoint parts. The threshold is chosen on data used for nothing else."""
    data = load_digits()
    images, labels = torch.tensor(data.images).float().flatten(1) / 8 - 1, torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).split(list(SIZES.values()))
    return {name: (images[chosen], labels[chosen]) for name, chosen in zip(SIZES, order, strict=True)}


def train(model: nn.Module, images: Tensor, labels: Tensor) -> vp.Posterior:
    optimizer = vp.optim.IVON(model.parameters(), lr=0.1, ess=1e3, weight_decay=1e-3, hess_init=0.5)
    for _ in range(200):
        for chosen in torch.randperm(len(labels)).split(50):
            optimizer.zero_grad()
            with optimizer.sampled_params(train=True):
                nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    return vp.Posterior.from_ivon(model, optimizer)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    posterior = train(model, *data["train"])
    net = vp.calibrate(vp.propagate(model.eval(), posterior), [data["calibrate"]], progress=False)
    predictor = vp.Propagated(net)
    images, labels = data["test"]
    wrong = 1 - predictor(images).correctness(labels).mean()
    print(f"answering everything, {100 * wrong:.1f} % of {len(labels)} test digits are wrong")

    for risk in (0.05, 0.02):
        selective = vp.Selective(predictor).fit([data["choose"]], risk=risk)
        promise = selective.guarantee
        decision = selective(images)
        answered = decision.answered
        realised = 1 - decision.prediction.correctness(labels)[answered].mean()
        print(
            f"budget {100 * risk:g} %: answers if the confidence is {promise.threshold:.3f} or more; "
            f"expects to answer {100 * promise.coverage:.0f} %; "
            f"on test data {100 * answered.float().mean():.0f} % answered, {100 * realised:.1f} % of them wrong"
        )
        assert (decision.label[~answered] == vp.ABSTAIN).all()

    # 700 examples cannot certify a risk of 1 in 1,000, even with zero errors: fit raises.
    try:
        vp.Selective(predictor).fit([data["choose"]], risk=0.001)
    except vp.errors.GuaranteeError as error:
        print(f"budget 0.1 %: refused. {error}")


if __name__ == "__main__":
    main()
