"""Admission: which waiting request may start, counted in pages so that nobody runs out later.

A request sets aside the pages of its prompt and its whole output; pages are taken lazily, but the
count is kept, so a running request never waits for room and is never preempted.
"""

from deskside.core import Request
from deskside.errors import InputError
from deskside.layout.kv import PAGE, pages_for

__all__ = ["Admissions"]


class Admissions:
    """Counts pages and places for running requests."""

    def __init__(self, pages: int, places: int, vocab: int) -> None:
        self._pages = pages
        self._vocab = vocab
        self._free_pages = pages
        self._free_places = places

    def check(self, request: Request) -> None:
        """Refuse a request that could never run.

        Raises:
            InputError: the prompt is empty, holds an unknown token, or is too long with its output.
        """
        if not request.prompt:
            raise InputError("the prompt is empty: need at least 1 token")
        unknown = [token for token in request.prompt if not 0 <= token < self._vocab]
        if unknown:
            raise InputError(f"token id {unknown[0]} is not in the vocabulary of {self._vocab}")
        if pages_for(request.limit) > self._pages:
            raise InputError(
                f"prompt and output are too long: need {len(request.prompt)} + "
                f"{request.params.max_tokens} = {request.limit} tokens, have "
                f"{self._pages * PAGE}; lower --max-tokens or raise --kv-tokens"
            )

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
