"""The set of operations a model is built from, with their definitions as defaults.

Each field is one operation. The plain torch bodies are the definition; a faster body with the same
signature may take a field's place when the model is put together, and nowhere else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from torch import Tensor

from deskside.ops import attend as attention
from deskside.ops import hyper, index, integer_moe, rotary
from deskside.ops import linear as matrices
from deskside.ops import moe as experts
from deskside.ops import route as routing
from deskside.ops import sample as sampling

__all__ = ["OpSet"]


@dataclass(frozen=True, slots=True)
class OpSet:
    """One body for each operation."""

    linear: Callable[..., Tensor] = matrices.linear
    linears: Callable[..., tuple[Tensor, ...]] = matrices.linears
    grouped_linear: Callable[..., Tensor] = matrices.grouped_linear
    rms_norm: Callable[..., Tensor] = matrices.rms_norm
    rope_table: Callable[..., Tensor] = rotary.rope_table
    rope: Callable[..., Tensor] = rotary.rope
    hyper_pre: Callable[..., tuple[Tensor, Tensor, Tensor]] = hyper.hyper_pre
    hyper_post: Callable[..., Tensor] = hyper.hyper_post
    hyper_head: Callable[..., Tensor] = hyper.hyper_head
    attend: Callable[..., Tensor] = attention.attend
    pool: Callable[..., Tensor] = attention.pool
    index_scores: Callable[..., Tensor] = index.index_scores
    hadamard: Callable[..., Tensor] = index.hadamard
    select: Callable[..., Tensor] = index.select
    route: Callable[..., tuple[Tensor, Tensor]] = routing.route
    route_hashed: Callable[..., Tensor] = routing.route_hashed
    swiglu: Callable[..., Tensor] = routing.swiglu
    moe: Callable[..., Tensor] = experts.moe
    expert_sums: Callable[..., Tensor] = integer_moe.expert_sums
    finish_experts: Callable[..., Tensor] = integer_moe.finish_experts
    best: Callable[[Tensor], Tensor] = sampling.best

    def replaced(self, bodies: Mapping[str, Callable[..., Any]]) -> Self:
        """Return the set with faster bodies in place of definitions.

        Every name must be an operation of the set.
        """
        assert set(bodies) <= {field.name for field in fields(self)}
        return replace(self, **bodies)
