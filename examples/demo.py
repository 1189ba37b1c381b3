"""Train a small network on handwritten digits, give it a posterior, and see its uncertainty in one forward pass.

Takes under a minute on a laptop. The posterior is the simplest there is, a diagonal Laplace approximation;
any other diagonal Gaussian works the same way.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import varprop as vp

SAMPLES = 256


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1200], order[1200:]
    return images[train], labels[train], images[test], labels[test]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.LayerNorm(512),
        nn.Linear(512, 10),
    )


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int = 15) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


def laplace(model: nn.Module, images: Tensor, labels: Tensor, prior_precision: float = 1000.0) -> vp.Posterior:
    """A diagonal Gaussian whose precision is the prior's plus the sum of squared per-example gradients."""
    mean = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, weights, image[None])
        return nn.functional.cross_entropy(logits, label[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(mean, images, labels)
    var = {name: 1 / (prior_precision + (g * g).sum(0)) for name, g in gradients.items()}
    return vp.Posterior.from_tensors(mean, var)


def sampled(model: nn.Module, posterior: vp.Posterior, images: Tensor) -> vp.Moments:
    """The moments of the logits by Monte Carlo: one forward pass per sample."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.stack(
        [torch.func.functional_call(model, posterior.sample(generator), images) for _ in range(SAMPLES)]
    )
    return vp.Moments(logits.mean(0), logits.var(0))


def seconds(function: Callable[..., object], *args: Tensor) -> float:
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def cost(model: nn.Module, net: vp.MomentNet, images: Tensor) -> float:
    """Time of one propagated pass, in plain passes."""
    plain, one_pass = torch.compile(model), torch.compile(net, fullgraph=True)
    with torch.no_grad():
        for compiled in (plain, one_pass):
            compiled(images)  # compiles
        rounds = [(seconds(plain, images), seconds(one_pass, images)) for _ in range(30)]
    return statistics.median(b for _, b in rounds) / statistics.median(a for a, _ in rounds)


def main() -> None:
    torch.set_num_threads(1)  # so small a network only waits for more
    torch.manual_seed(0)
    images, labels, test_images, test_labels = digits()
    model = network()
    took = seconds(lambda: train(model, images, labels))
    model.eval()
    print(f"trained on {len(labels)} digits in {took:.0f} s")

    # These two lines are all that is needed.
    posterior = laplace(model, images, labels)
    net = vp.propagate(model, posterior)

    print(vp.coverage(model, posterior, test_images), "\n")
    with torch.no_grad():
        predicted = net(test_images)
        reference = sampled(model, posterior, test_images)
        plain = model(test_images)
    spread = torch.corrcoef(torch.stack([predicted.std.flatten(), reference.std.flatten()]))[0, 1]
    off, plain_off = ((mean - reference.mean).square().mean().sqrt() for mean in (predicted.mean, plain))
    print(f"one pass beside {SAMPLES} sampled networks, {len(test_labels)} unseen digits:")
    print(
        f"  logit means are off by {off:.3f}, the plain network's by {plain_off:.3f} (they vary by {plain.std():.1f})"
    )
    print(f"  logit standard deviations correlate {spread:.2f}")
    print(f"  cost: {cost(model, net, test_images):.1f} plain passes, both compiled\n")

    correct = predicted.mean.argmax(1) == test_labels
    top = predicted.mean.topk(2, 1)
    noise = predicted.var.gather(1, top.indices).sum(1).sqrt()
    margin = (top.values[:, 0] - top.values[:, 1]) / noise  # in standard deviations
    print("is it unsure when it is wrong? digits by the margin of the answer, in standard deviations:")
    for quarter, chosen in zip(("smallest", "second", "third", "largest"), margin.argsort().chunk(4), strict=True):
        print(f"  {quarter:>8} quarter: {100 * correct[chosen].float().mean():5.1f} % right")


if __name__ == "__main__":
    main()
