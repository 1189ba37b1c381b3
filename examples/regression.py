"""Regression: predictive intervals for diabetes progression, and their coverage.

A small network is trained with IVON on scikit-learn's diabetes data. Its propagated variance and the observation noise,
estimated on the training data, give a Gaussian for each patient. 131 test patients say little about a 95 % interval, so
the experiment is repeated over random splits and reported with standard errors.
Requires the extra ``demo`` (for scikit-learn). Takes about 15 seconds.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import varprop as vp

TRAIN, HELD_OUT = 180, 131  # of 442 patients; the rest is for testing
SPLITS = 8


def diabetes(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Training, calibration and test sets, standardised by the training set."""
    data = load_diabetes()
    inputs, target = torch.tensor(data.data).float(), torch.tensor(data.target).float().unsqueeze(1)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))
    inputs, target = inputs[order], target[order]
    inputs = (inputs - inputs[:TRAIN].mean(0)) / inputs[:TRAIN].std(0)
    target = (target - target[:TRAIN].mean()) / target[:TRAIN].std()
    sizes = [TRAIN, HELD_OUT, len(target) - TRAIN - HELD_OUT]
    return list(zip(inputs.split(sizes), target.split(sizes), strict=True))


def train(model: nn.Module, inputs: Tensor, target: Tensor) -> vp.Posterior:
    optimizer = vp.optim.IVON(model.parameters(), lr=0.05, ess=len(target), weight_decay=1e-2, hess_init=1.0)
    for _ in range(300):
        for chosen in torch.randperm(len(target)).split(60):
            optimizer.zero_grad()
            with optimizer.sampled_params(train=True):
                nn.functional.mse_loss(model(inputs[chosen]), target[chosen]).backward()
            optimizer.step()
    return vp.Posterior.from_ivon(model, optimizer)


def measure(predictor: vp.Propagated, inputs: Tensor, target: Tensor) -> list[float]:
    """Percent of the targets in their 95 % interval, negative log-likelihood, mean width of the intervals."""
    found = vp.evaluate(predictor, [(inputs, target)], progress=False).metrics
    return [100 * found["picp@95"], found["nll"], found["mpiw@95"]]


def run(seed: int) -> tuple[list[float], list[float]]:
    """Test metrics before and after calibration."""
    torch.manual_seed(seed)
    seen, held_out, test = diabetes(seed)
    model = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 1))
    posterior = train(model, *seen)
    model.eval()
    with torch.no_grad():
        link = vp.links.Gaussian(noise_std=float((model(seen[0]) - seen[1]).square().mean().sqrt()))

    net = vp.propagate(model, posterior)
    calibrated = vp.calibrate(net, [held_out], link=vp.links.Gaussian(), progress=False)  # also fits the noise
    before = vp.Propagated(net, link=link)
    after = vp.Propagated(calibrated, link=vp.links.Gaussian())
    return measure(before, *test), measure(after, *test)


def main() -> None:
    torch.set_num_threads(1)
    found = torch.tensor([run(seed) for seed in range(SPLITS)])  # [splits, before and after, numbers]
    means, errors = found.mean(0), found.std(0) / SPLITS**0.5
    print(f"{SPLITS} splits, mean ± standard error; 95 % of the targets should lie in their interval")
    for name, (inside, nll, width), (e, f, g) in zip(("before", "after"), means.tolist(), errors.tolist(), strict=True):
        print(
            f"{name:>6} calibration: {inside:.1f} ± {e:.1f} % do; NLL {nll:.3f} ± {f:.3f}; width {width:.2f} ± {g:.2f}"
        )
    gain, error = (found[:, 1] - found[:, 0]).mean(0), (found[:, 1] - found[:, 0]).std(0) / SPLITS**0.5
    print(f"the difference calibration makes, paired: NLL {gain[1]:+.3f} ± {error[1]:.3f}")


if __name__ == "__main__":
    main()
