"""Sinkhorn normalisation of many 4x4 matrices, forward and backward, as one kernel each.

The plain body is the definition; on a GPU a Triton kernel keeps all twenty iterations in
registers. Its backward repeats the forward, keeps only the sums it divided by, and walks the
normalisations in reverse, undoing each division as it goes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU needs no Triton
    triton = None

BLOCK = 64


def sinkhorn_plain(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """[n, 4, 4] logits to matrices whose rows and columns sum to about one."""
    mix = torch.softmax(logits, dim=-1) + eps
    mix = mix / (mix.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mix = mix / (mix.sum(-1, keepdim=True) + eps)
        mix = mix / (mix.sum(-2, keepdim=True) + eps)
    return mix


def backward_plain(logits: Tensor, grad: Tensor, iterations: int, eps: float) -> Tensor:
    """The gradient with respect to the logits, by the kernel's method."""
    soft = torch.softmax(logits, dim=-1)
    dims = (-2, *(-1, -2) * (iterations - 1))
    mix, sums = soft + eps, []
    for dim in dims:
        sums.append(mix.sum(dim, keepdim=True) + eps)
        mix = mix / sums[-1]
    for dim, total in zip(reversed(dims), reversed(sums), strict=True):
        grad = (grad - (grad * mix).sum(dim, keepdim=True)) / total
        mix = mix * total
    return soft * (grad - (grad * soft).sum(-1, keepdim=True))


if triton is not None:

    @triton.jit
    def _softmax_rows(x):  # type: ignore[no-untyped-def]
        x = tl.exp(x - tl.max(x, axis=2)[:, :, None])
        return x / tl.sum(x, axis=2)[:, :, None]

    @triton.jit
    def _forward_kernel(logits, out, n, eps, ITER: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        cell = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
        offset = row[:, None, None] * 16 + cell[None, :, :]
        mask = (row < n)[:, None, None]
        x = _softmax_rows(tl.load(logits + offset, mask=mask, other=0.0)) + eps
        x = x / (tl.sum(x, axis=1)[:, None, :] + eps)
        for _ in range(ITER - 1):
            x = x / (tl.sum(x, axis=2)[:, :, None] + eps)
            x = x / (tl.sum(x, axis=1)[:, None, :] + eps)
        tl.store(out + offset, x, mask=mask)

    @triton.jit
    def _backward_kernel(logits, grad, out, sums, n, eps, ITER: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        four = tl.arange(0, 4)
        cell = four[:, None] * 4 + four[None, :]
        offset = row[:, None, None] * 16 + cell[None, :, :]
        mask = (row < n)[:, None, None]
        keep = row[:, None] * (8 * ITER) + four[None, :]
        keep_mask = (row < n)[:, None]
        soft = _softmax_rows(tl.load(logits + offset, mask=mask, other=0.0))
        x = soft + eps
        s = tl.sum(x, axis=1) + eps
        tl.store(sums + keep, s, mask=keep_mask)
        x = x / s[:, None, :]
        for i in range(ITER - 1):
            s = tl.sum(x, axis=2) + eps
            tl.store(sums + keep + 8 * i + 4, s, mask=keep_mask)
            x = x / s[:, :, None]
            s = tl.sum(x, axis=1) + eps
            tl.store(sums + keep + 8 * i + 8, s, mask=keep_mask)
            x = x / s[:, None, :]
        tl.debug_barrier()
        g = tl.load(grad + offset, mask=mask, other=0.0)
        for j in range(ITER - 1):
            i = ITER - 2 - j
            s = tl.load(sums + keep + 8 * i + 8, mask=keep_mask, other=1.0)
            g = (g - tl.sum(g * x, axis=1)[:, None, :]) / s[:, None, :]
            x = x * s[:, None, :]
            s = tl.load(sums + keep + 8 * i + 4, mask=keep_mask, other=1.0)
            g = (g - tl.sum(g * x, axis=2)[:, :, None]) / s[:, :, None]
            x = x * s[:, :, None]
        s = tl.load(sums + keep, mask=keep_mask, other=1.0)
        g = (g - tl.sum(g * x, axis=1)[:, None, :]) / s[:, None, :]
        g = soft * (g - tl.sum(g * soft, axis=2)[:, :, None])
        tl.store(out + offset, g, mask=mask)


@torch.library.custom_op("deskside_training::sinkhorn", mutates_args=())
def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """The normalised matrices; float32 in and out, [n, 4, 4]."""
    if not logits.is_cuda or triton is None:
        return sinkhorn_plain(logits, iterations, eps)
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    n = logits.shape[0]
    _forward_kernel[(triton.cdiv(n, BLOCK),)](logits, out, n, eps, ITER=iterations, BLOCK=BLOCK)
    return out


@sinkhorn.register_fake
def _sinkhorn_fake(logits: Tensor, iterations: int, eps: float) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@torch.library.custom_op("deskside_training::sinkhorn_backward", mutates_args=())
def sinkhorn_backward(logits: Tensor, grad: Tensor, iterations: int, eps: float) -> Tensor:
    """The gradient with respect to the logits."""
    if not logits.is_cuda or triton is None:
        return backward_plain(logits, grad, iterations, eps)
    logits, grad = logits.contiguous(), grad.contiguous()
    n = logits.shape[0]
    sums = torch.empty((n, 8 * iterations), dtype=torch.float32, device=logits.device)
    out = torch.empty_like(logits)
    _backward_kernel[(triton.cdiv(n, BLOCK),)](
        logits, grad, out, sums, n, eps, ITER=iterations, BLOCK=BLOCK
    )
    return out


@sinkhorn_backward.register_fake
def _sinkhorn_backward_fake(logits: Tensor, grad: Tensor, iterations: int, eps: float) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: tuple[Tensor, int, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.rest = inputs[1:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (logits,) = ctx.saved_tensors
    iterations, eps = ctx.rest
    return sinkhorn_backward(logits, grad, iterations, eps), None, None


sinkhorn.register_autograd(_backward, setup_context=_setup)
