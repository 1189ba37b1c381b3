"""IVON, the variational optimizer: it trains a mean and a variance for each weight, with one gradient a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from varprop.errors import SamplingError, SettingError
from varprop.optim.draws import Draws, Phase
from varprop.optim.settings import check, check_integer
from varprop.optim.sharded import local
from varprop.optim.streams import fresh_seed

# ivon-opt saves no step count. Its momentum is taken as settled: at this count the correction for the start is nil.
_SETTLED = 1_000_000


class IVON(torch.optim.Optimizer):
    """Improved variational online Newton: the posterior of a weight is N(mean, 1/(ess·(hess + weight_decay))).

    Each step takes gradients at weights drawn from the posterior. Three ways to write that, one to be chosen:

    >>> for batch in batches:                                   # 1. blocks: several of them before a step are averaged
    ...     optimizer.zero_grad()
    ...     with optimizer.sampled_params(train=True):
    ...         loss(model, batch).backward()
    ...     optimizer.step()                                    # clip or unscale .grad before it, as ever

    >>> for batch in batches:                                   # 2. a plain loop: Hugging Face's Trainer does just this
    ...     optimizer.train()                                   # before every forward pass; draws once per step
    ...     loss(model, batch).backward()
    ...     optimizer.step()                                    # the weights are the means again
    ...     optimizer.zero_grad()

    >>> optimizer.step(closure)                                 # 3. a closure: called once for each of mc_samples draws

    Outside a block, and from ``step`` to the next ``train``, the weights are the means: evaluate and save there, or
    after ``eval``. Under DistributedDataParallel call ``attach(model)`` once; under ``fully_shard`` nothing is needed.

    Args:
        params: parameters, named parameters or groups; every option below but ``mc_samples`` can differ by group.
        lr: step size, in units of 1/(hess_init + weight_decay).
        ess: effective sample size λ, about the number of training examples; larger means a narrower posterior.
        hess_init: curvature at the start.
        beta1: how slowly the mean gradient moves.
        beta2: how slowly the curvature moves.
        weight_decay: precision of the prior, divided by ess.
        clip_radius: largest change of a weight in a step, before multiplication by lr·(hess_init + weight_decay).
        mc_samples: draws per ``step(closure)``.
        seed: of the noise; by default from torch's global generator. The noise uses generators of its own. A tuple
            gives each row of a single parameter the noise of its own seed: networks stacked to train as one.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        ess: float,
        *,
        hess_init: float = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.99999,
        weight_decay: float = 1e-4,
        clip_radius: float = math.inf,
        mc_samples: int = 1,
        seed: int | tuple[int, ...] | None = None,
    ) -> None:
        check_integer("mc_samples", mc_samples, least=1)
        defaults = {
            "lr": lr,
            "ess": ess,
            "hess_init": hess_init,
            "beta1": beta1,
            "beta2": beta2,
            "weight_decay": weight_decay,
            "clip_radius": clip_radius,
            "seed": fresh_seed() if seed is None else seed,
            "draws": 0,
        }
        self.mc_samples = mc_samples
        self._draws = Draws()
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            check(self.param_groups[-1])
            if wrong := [str(p.dtype) for p in self.param_groups[-1]["params"] if not p.is_floating_point()]:
                raise SettingError(f"params must be real floating-point tensors, not {', '.join(sorted(set(wrong)))}")
        except SettingError:
            self.param_groups.pop()
            raise

    @property
    def perturbed(self) -> bool:
        """Whether the weights are a sample now instead of the means."""
        return self._draws.perturbed

    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """Weights drawn from the posterior inside the block, the means again after it, exceptions or not.

        With ``train`` the block is one draw of the coming step: it starts with empty gradients, and at its end .grad
        is the average over the step's draws so far. Without, nothing of the training is touched.
        """
        if self.perturbed:
            raise SamplingError(f"the weights are a sample already ({self._draws.phase.value}): blocks do not nest")
        if train and self._draws.phase is Phase.STANDING:
            raise SamplingError("a step begun with train() ends with step(); a block cannot add to it")
        if train:
            self._draws.reduction.refuse_unknown_replicas(self._params())
        self._draws.arrange(self.param_groups, self.state)
        with self._draws.block(train):
            yield

    def train(self) -> None:
        """Draw the weights the coming step takes its gradients at; a second call before that step does nothing."""
        if self._draws.phase is Phase.PENDING:
            raise SamplingError("a step begun with sampled_params(train=True) ends with step(), or with zero_grad()")
        if self.mc_samples > 1:
            raise SamplingError(f"train() takes one draw, but mc_samples is {self.mc_samples}: use step(closure)")
        if self._draws.phase is Phase.MEANS:
            self._draws.reduction.refuse_unknown_replicas(self._params())
            self._draws.arrange(self.param_groups, self.state)
        if self._draws.phase is not Phase.BLOCK:
            self._draws.sample_until_step()

    def eval(self) -> None:
        """Put the means in place. ``train`` amid an unfinished step puts the same sample back."""
        if self._draws.phase is Phase.BLOCK:
            raise SamplingError("leave the sampled_params() block to get the means")
        self._draws.restore()

    def attach(self, model: nn.Module | None) -> None:
        """Average gradients and curvatures over the replicas of a DistributedDataParallel model.

        Call it once, before the first draw. It takes DDP's one communication hook. When accumulating gradients, run
        every backward pass of a draw but the last under ``model.no_sync()``, as trainers do. ``None`` says that this
        process trains by itself, whatever other processes there are.
        """
        if self._draws.phase is not Phase.MEANS:
            raise SamplingError("attach() comes before the first draw of a step")
        self._draws.reduction.attach(model, self._params())

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update means and curvatures from the gradients of the draws since the last step."""
        loss = None if closure is None else self._evaluate(closure)
        if self._draws.phase is Phase.BLOCK:
            raise SamplingError("step() belongs after the sampled_params() block, not inside it")
        if self._draws.phase is Phase.MEANS:
            self._step_without_draw()
        else:
            self._draws.consume()
        return loss

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        if self._draws.phase is Phase.PENDING:
            raise SamplingError("step(closure) draws by itself: use it without sampled_params(train=True)")
        if self._draws.phase is Phase.STANDING:
            self.train()
            try:
                with torch.enable_grad():
                    return closure()
            except BaseException:
                self.eval()
                raise
        self._draws.arrange(self.param_groups, self.state)
        self._draws.refuse_foreign_gradients()
        losses = []
        for _ in range(self.mc_samples):
            with torch.enable_grad(), self.sampled_params(train=True):
                losses.append(closure())
        return losses[0] if len(losses) == 1 or losses[0] is None else sum(losses) / len(losses)

    def _step_without_draw(self) -> None:
        """Nothing to do without gradients; torch.distributed.checkpoint makes state so, with gradients of zero."""
        if any(bool(local(p.grad).any()) for p in self._params() if p.grad is not None):
            raise SamplingError(
                "step() without a draw: these gradients were taken at the means. Take them inside sampled_params("
                "train=True), or call optimizer.train() before every forward pass, or pass a closure"
            )
        self._draws.arrange(self.param_groups, self.state)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Empty the gradients. Outside a block this also discards the blocks since the last step."""
        super().zero_grad(set_to_none)
        self._draws.forget_gradients()

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on exactly as if uninterrupted, the noise included."""
        self._refuse_perturbed("saved")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._refuse_perturbed("loaded")
        state_dict = _unflattened(state_dict, self.param_groups)
        for group in state_dict["param_groups"]:
            options = {name: value for name, value in group.items() if name != "params"}  # which are numbers here
            check({**options, "lr": group.get("lr") or 1.0})  # schedules begin or end at 0
        super().load_state_dict(state_dict)
        self._draws.forget()
        self._widen(state_dict)

    def _widen(self, state_dict: dict[str, Any]) -> None:
        """Undo torch's rounding of the state to the dtype of the parameters."""
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        for key, p in zip(keys, self._params(), strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                if isinstance(value, Tensor) and value.dtype != p.dtype:
                    self.state[p][name] = value.detach().to(p.device, copy=True)

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_perturbed("copied")
        return {**super().__getstate__(), "mc_samples": self.mc_samples}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_draws" not in self.__dict__:  # a copy
            self._draws = Draws()

    def _refuse_perturbed(self, verb: str) -> None:
        if self.perturbed:
            raise SamplingError(
                f"the weights are a sample now ({self._draws.phase.value}), so nothing is to be {verb}: call "
                "optimizer.eval() first, or leave the sampled_params() block"
            )

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


def _unflattened(state_dict: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Checkpoints of ``ivon-opt``, which have a vector for each group, with a state for each parameter instead."""
    saved = state_dict["param_groups"]
    if not any("hess" in group for group in saved):
        return state_dict
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in groups]:
        raise SettingError("the checkpoint has other parameter groups than the optimizer")
    state: dict[Any, Any] = {}
    options = []
    for group, ours in zip(saved, groups, strict=True):
        sizes = [p.numel() for p in ours["params"]]
        for name in ("momentum", "hess"):
            if (entries := group[name].numel()) != sum(sizes):
                raise SettingError(f"{name!r} has {entries} entries, the parameters of its group {sum(sizes)}")
            for key, p, part in zip(group["params"], ours["params"], group[name].split(sizes), strict=True):
                state.setdefault(key, {"step": _SETTLED})[name] = part.view(p.shape)
        dropped = ("momentum", "hess", "numel", "mc_samples")
        kept = {name: value for name, value in group.items() if name not in dropped}
        options.append({"seed": ours["seed"], "draws": 0} | kept)
    return {"state": state, "param_groups": options}
