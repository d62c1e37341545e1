"""The compiled CPU bodies of the operations: same signatures as the definitions in `ops`.

One module for each of `ops`, gathered here. A row's bits never depend on other rows, on threads or
on the instruction set (`kernels.tiers`); they differ from those of the plain bodies by rounding
alone.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from deskside.kernels import _native
from deskside.kernels.attend import attend, pool
from deskside.kernels.experts import expert_sums, finish_experts, moe
from deskside.kernels.hyper import hyper_head, hyper_post, hyper_pre
from deskside.kernels.index import hadamard, index_scores, select
from deskside.kernels.linear import grouped_linear, linear, linears, rms_norm
from deskside.kernels.rotary import rope
from deskside.kernels.route import route, route_hashed, swiglu
from deskside.kernels.sample import best

__all__ = [
    "attend",
    "best",
    "bodies",
    "expert_sums",
    "finish_experts",
    "grouped_linear",
    "hadamard",
    "hyper_head",
    "hyper_post",
    "hyper_pre",
    "index_scores",
    "linear",
    "linears",
    "moe",
    "pool",
    "read",
    "rms_norm",
    "rope",
    "route",
    "route_hashed",
    "select",
    "set_threads",
    "swiglu",
    "threads",
]

set_threads: Callable[[int], None] = _native.set_threads
"""Set how many threads share a kernel, the caller among them; 1 until called."""

threads: Callable[[], int] = _native.threads
"""Threads that share a kernel."""


def read(tensor: Tensor) -> int:
    """Read a contiguous tensor once with all threads; for measuring, the sum means nothing."""
    assert tensor.is_contiguous()
    return _native.read(tensor.data_ptr(), tensor.nbytes)


def bodies() -> Mapping[str, Callable[..., Any]]:
    """Return the body of each operation that is compiled, by the operation's name."""
    return {
        "linear": linear,
        "linears": linears,
        "grouped_linear": grouped_linear,
        "hadamard": hadamard,
        "rms_norm": rms_norm,
        "rope": rope,
        "hyper_pre": hyper_pre,
        "hyper_post": hyper_post,
        "hyper_head": hyper_head,
        "attend": attend,
        "pool": pool,
        "index_scores": index_scores,
        "select": select,
        "route": route,
        "route_hashed": route_hashed,
        "swiglu": swiglu,
        "moe": moe,
        "expert_sums": expert_sums,
        "finish_experts": finish_experts,
        "best": best,
    }
