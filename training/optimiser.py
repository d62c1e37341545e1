"""Muon for matrices, AdamW for the rest, and the copy of weights that the model runs on.

The optimiser owns float32 masters, stacked by shape. After each step it writes the weights that
the model computes with, rounded to what the checkpoint will store once that is switched on; the
gradient of the rounded weight is applied to the master (straight-through).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from training.quantize import fp8_round, mxfp4_round, stored_as


@dataclass(frozen=True)
class Rates:
    """Peak learning rates; Muon's is per element, relative to an update of size 0.2."""

    muon: float = 4e-3
    embed: float = 4e-3
    head: float = 2e-3
    small: float = 2e-3
    fine: float = 5e-4
    decay: float = 0.1
    momentum: float = 0.95


def orthogonalise(update: Tensor) -> Tensor:
    """Newton-Schulz steps toward the nearest orthogonal matrix, for a stack of matrices."""
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.mT if tall else x


def rounded(kind: str, weight: Tensor) -> Tensor:
    """A stack of matrices after a round trip through the checkpoint."""
    if kind == "fp4":
        return mxfp4_round(weight)
    if kind == "fp8":
        return fp8_round(weight)
    return weight.to(torch.bfloat16) if kind in ("bf16", "wide") else weight


@dataclass
class Matrices:
    """All matrices of one shape and one storage format."""

    kind: str
    live: list[nn.Parameter]
    pieces: int
    master: Tensor
    momentum: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.momentum = torch.zeros_like(self.master)

    @classmethod
    def of(cls, kind: str, live: list[nn.Parameter], pieces: int) -> Matrices:
        stack = torch.cat([p.detach().float().reshape(-1, *p.shape[-2:]) for p in live])
        return cls(kind, live, pieces, stack)

    def step(self, rate: float, rates: Rates, quantise: bool) -> None:
        grad = torch.cat(
            [p.grad.reshape(-1, *p.shape[-2:]) for p in self.live if p.grad is not None]
        )
        if grad.shape[0] == self.master.shape[0]:
            self.momentum.lerp_(grad.float(), 1 - rates.momentum)
            update = torch.lerp(grad.float(), self.momentum, rates.momentum)
            update = update.view(-1, update.shape[-2] // self.pieces, update.shape[-1])
            size = 0.2 * max(update.shape[-2:]) ** 0.5
            update = orthogonalise(update).float().view(self.master.shape)
            self.master.mul_(1 - rate * rates.decay).add_(update, alpha=-rate * size)
        self.publish(quantise)

    def publish(self, quantise: bool) -> None:
        value = rounded(self.kind, self.master) if quantise else self.master
        start = 0
        for parameter in self.live:
            count = parameter.numel() // (value.shape[-1] * value.shape[-2])
            parameter.data.copy_(value[start : start + count].view(parameter.shape))
            start += count


@dataclass
class Rest:
    """Parameters that AdamW moves, with one peak rate."""

    kinds: list[str]
    live: list[nn.Parameter]
    rate: float
    decay: float
    master: list[Tensor] = field(init=False)
    first: list[Tensor] = field(init=False)
    second: list[Tensor] = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.master = [p.detach().float().clone() for p in self.live]
        self.first = [torch.zeros_like(m) for m in self.master]
        self.second = [torch.zeros_like(m) for m in self.master]

    def step(self, factor: float, quantise: bool) -> None:
        if any(p.grad is None for p in self.live):
            self.publish(quantise)
            return
        self.count += 1
        b1, b2, rate = 0.9, 0.98, self.rate * factor
        grads = [p.grad.float() for p in self.live if p.grad is not None]
        torch._foreach_lerp_(self.first, grads, 1 - b1)
        torch._foreach_mul_(self.second, b2)
        torch._foreach_addcmul_(self.second, grads, grads, 1 - b2)
        scale = torch._foreach_div(self.second, 1 - b2**self.count)
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, 1e-8)
        torch._foreach_mul_(self.master, 1 - rate * self.decay)
        step = rate / (1 - b1**self.count)
        torch._foreach_addcdiv_(self.master, self.first, scale, -step)
        self.publish(quantise)

    def publish(self, quantise: bool) -> None:
        for kind, parameter, master in zip(self.kinds, self.live, self.master, strict=True):
            parameter.data.copy_(rounded(kind, master) if quantise else master)


def by_muon(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter is a matrix between features."""
    if parameter.ndim < 2 or name.startswith(("embed", "head")):
        return False
    if "markov_head" in name or "confidence_head" in name:
        return False
    small = ("_fn", "ape", "gate.weight", "weights_proj.weight")
    return not name.endswith(small) or name.endswith("wgate.weight")


class Optimiser:
    """Both methods over all parameters of a model."""

    def __init__(self, model: nn.Module, rates: Rates, groups: int) -> None:
        self.rates = rates
        stacks: dict[tuple[str, int, tuple[int, ...], bool], list[nn.Parameter]] = {}
        rest: dict[tuple[float, float, bool], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in model.named_parameters():
            late = ".indexer." in name
            if by_muon(name, parameter):
                pieces = groups if name.endswith("wo_a.weight") else 1
                key = (stored_as(name), pieces, tuple(parameter.shape[-2:]), late)
                stacks.setdefault(key, []).append(parameter)
                continue
            rate, decay = rates.small, 0.0
            if name.startswith("embed"):
                rate = rates.embed
            elif name.startswith("head"):
                rate, decay = rates.head, rates.decay
            elif name.endswith(("_fn", "gate.weight", "weights_proj.weight")):
                rate = rates.fine
            rest.setdefault((rate, decay, late), []).append((name, parameter))
        self.matrices = [Matrices.of(key[0], live, key[1]) for key, live in stacks.items()]
        self.rest = [
            Rest([stored_as(n) for n, _ in named], [p for _, p in named], rate, decay)
            for (rate, decay, _), named in rest.items()
        ]

    def step(self, factor: float, quantise: bool) -> None:
        """One step at `factor` of the peak rates; gradients are dropped afterwards."""
        with torch.no_grad():
            for matrices in self.matrices:
                if all(p.grad is not None for p in matrices.live):
                    matrices.step(self.rates.muon * factor, self.rates, quantise)
            for rest in self.rest:
                rest.step(factor, quantise)
            for group in (*self.matrices, *self.rest):
                for parameter in group.live:
                    parameter.grad = None

    def publish(self, quantise: bool) -> None:
        """Writes the model's weights without a step."""
        with torch.no_grad():
            for group in (*self.matrices, *self.rest):
                group.publish(quantise)

    def state(self) -> dict[int, Tensor]:
        """The masters by the identity of the live parameter."""
        out: dict[int, Tensor] = {}
        for matrices in self.matrices:
            start = 0
            for p in matrices.live:
                count = p.numel() // (p.shape[-1] * p.shape[-2])
                out[id(p)] = matrices.master[start : start + count].view(p.shape)
                start += count
        for rest in self.rest:
            out.update({id(p): m for p, m in zip(rest.live, rest.master, strict=True)})
        return out
