"""Admission: which request is taken at all, and which waiting one may start.

Counted in pages, so that nobody runs out later.

A request sets aside the pages of its prompt and its whole output; pages are taken lazily, but the
count is kept, so a running request never waits for room and is never preempted.
"""

from collections.abc import Sequence

from deskside.core import Request
from deskside.errors import ContextLengthError, InputError
from deskside.layout.kv import PAGE, pages_for

__all__ = ["Admissions"]


class Admissions:
    """Counts pages and places for running requests."""

    def __init__(
        self,
        pages: int,
        places: int,
        vocab: int,
        *,
        positions: int | None = None,
        greedy_only: bool = False,
    ) -> None:
        """Count from all free.

        Args:
            pages: of the cache.
            places: requests that may run at once.
            vocab: tokens of the model.
            positions: the longest text that the model can read.
            greedy_only: whether the width rule bears no sampled request.
        """
        self._pages = pages
        self._positions = positions
        self._vocab = vocab
        self._greedy_only = greedy_only
        self._free_pages = pages
        self._free_places = places

    @property
    def greedy_only(self) -> bool:
        """Whether sampled requests are refused."""
        return self._greedy_only

    def check(self, request: Request) -> None:
        """Refuse a request that could never run.

        Raises:
            InputError: the prompt is empty, a token is unknown, or the width rule would bias what
                is drawn.
            ContextLengthError: it is too long with its output.
        """
        params = request.params
        if not request.prompt:
            raise InputError("the prompt is empty: need at least 1 token")
        need = f"need {len(request.prompt)} + {params.max_tokens} = {request.limit} tokens"
        if pages_for(request.limit) > self._pages:
            raise ContextLengthError(
                f"prompt and output are too long: {need}, have "
                f"{self._pages * PAGE}; lower --max-tokens or raise --kv-tokens"
            )
        if self._positions is not None and request.limit > self._positions:
            raise ContextLengthError(
                f"prompt and output are too long: {need}, the model reads {self._positions}; "
                "lower --max-tokens or shorten the prompt"
            )
        biased = [token for token, _ in params.logit_bias]
        forced = () if params.thought is None else params.thought.close
        for tokens in (request.prompt, params.stop_token_ids, biased, forced):
            self._check_tokens(tokens)
        if self._greedy_only and params.temperature > 0:
            raise InputError(
                f"--width-rule argmax would bias sampled output: need temperature 0, have "
                f"{params.temperature}; use stop or expect, or force it with biased-argmax"
            )

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        if not tokens or (min(tokens) >= 0 and max(tokens) < self._vocab):
            return
        wrong = next(token for token in tokens if not 0 <= token < self._vocab)
        raise InputError(f"token id {wrong} is not in the vocabulary of {self._vocab}")

    def take(self, request: Request) -> int | None:
        """Set aside pages and a place; None when the request has to wait."""
        pages = pages_for(request.limit)
        if pages > self._free_pages or self._free_places == 0:
            return None
        self._free_pages -= pages
        self._free_places -= 1
        return pages

    def give_back(self, pages: int) -> None:
        """Return what `take` set aside."""
        self._free_pages += pages
        self._free_places += 1
