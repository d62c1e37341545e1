"""From a ticket's emissions to what its choices say: text, counts and log probabilities.

Owns what completions and chat have in common. Knows no shape of a reply.
"""

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from deskside.core import Emission, FinishReason, TokenLogprob
from deskside.injection import Site
from deskside.server import faults
from deskside.server.faults import Fault
from deskside.server.metrics import Ended
from deskside.server.openai.replies import CompletionDetails, Finish, Usage
from deskside.server.record import RequestRecord
from deskside.server.service import Service
from deskside.server.tickets import Ticket
from deskside.text.answer import AnswerStream, Part
from deskside.text.tools import ToolCall

__all__ = ["Answer", "Choice", "Piece", "finish_of"]


log = logging.getLogger("deskside.requests")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step adds to a choice; `finish` says that nothing follows."""

    parts: list[Part]
    """What became certain: text by channel, and calls."""
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        """All of the text."""
        return "".join(part[1] for part in self.parts if not isinstance(part, ToolCall))


@dataclass(slots=True)
class Choice:
    """One sequence, as its reader sees it."""

    prompt_tokens: int
    text: AnswerStream
    tokens: int = 0
    finish: FinishReason | None = None
    calls: int = 0
    """Calls so far."""
    forced: int = 0
    """Tokens that were not drawn."""
    cached: int = 0
    """Tokens of the prompt that were computed before; known with the first step."""
    trail: bytes | None = None
    """Of a conversation, the digest of what the answer follows."""
    ids: list[int] = field(default_factory=list)
    called: list[ToolCall] = field(default_factory=list)

    def take(self, emission: Emission) -> Piece:
        """Add a step's tokens and return what became certain.

        Raises:
            Fault: the engine lost this sequence.
        """
        if emission.fault is not None:
            raise faults.of_engine(emission.fault)
        self.tokens += len(emission.tokens)
        self.ids += emission.tokens
        self.forced += emission.forced
        self.cached += emission.reused
        self.finish = emission.finish
        parts = self.text.feed(emission.tokens)
        if self.finish is not None:
            parts += self.text.finish()
        called = [part for part in parts if isinstance(part, ToolCall)]
        self.calls += len(called)
        self.called += called
        return Piece(
            parts,
            emission.tokens,
            emission.logprobs,
            emission.finish,
            emission.prompt_logprobs,
        )


@dataclass(slots=True)
class Answer:
    """All choices of one request, from submission to end."""

    service: Service
    ticket: Ticket
    choices: Sequence[Choice]
    record: RequestRecord
    prompts: int = 1
    """Prompts that the choices continue, one group of choices after the other."""
    _ended: set[int] = field(default_factory=set)

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """Yield what each step adds, by the choice's place; nothing is left behind at the end.

        Raises:
            Fault: the engine, or one of the sequences, came to grief.
        """
        try:
            async for place, emission in self.ticket:
                self.service.engine.probe.at(Site.TEXT)
                piece = self.choices[place].take(emission)
                self._note(place, emission)
                if piece.tokens or piece.prompt_logprobs or piece.finish is not None:
                    yield place, piece
        except Fault:
            raise
        except Exception as error:  # the top of an answer whose headers may be gone
            log.error("a request is lost", exc_info=error)
            raise faults.of_bug(error) from error
        finally:
            self._close()

    def usage(self) -> Usage:
        """Return the counts; a prompt counts once, however many choices continue it."""
        firsts = self.choices[:: len(self.choices) // self.prompts]
        prompt = sum(choice.prompt_tokens for choice in firsts)
        cached = sum(choice.cached for choice in firsts)
        output = sum(choice.tokens for choice in self.choices)
        details = CompletionDetails(
            reasoning_tokens=sum(choice.text.reasoning_tokens for choice in self.choices),
            forced_tokens=sum(choice.forced for choice in self.choices),
            accepted_prediction_tokens=self.record.accepted,
            rejected_prediction_tokens=self.record.verified - self.record.accepted,
        )
        return Usage.of(prompt, output, details, cached)

    def _note(self, place: int, emission: Emission) -> None:
        record = self.record
        record.completion_tokens += len(emission.tokens)
        record.verified += emission.verified
        record.accepted += emission.accepted
        record.cached += emission.reused
        if emission.finish is not None:
            record.finish = emission.finish.value
            self._end(place, emission.finish.value)

    def _end(self, place: int, reason: str) -> None:
        self._ended.add(place)
        first = self.ticket.first_token
        choice = self.choices[place]
        if choice.trail is not None and self.service.kept is not None:
            self.service.kept.keep(choice.trail, choice.ids, choice.called)
        self.service.metrics.ended(
            Ended(
                reason,
                choice.prompt_tokens,
                choice.tokens,
                time.perf_counter() - self.ticket.submitted,
                None if first is None else first - self.ticket.submitted,
                choice.cached,
            )
        )

    def _close(self) -> None:
        """Let go of what still runs, and complete the record."""
        self.ticket.close()
        record = self.record
        if self.ticket.first_token is not None:
            record.first_token = self.ticket.first_token - record.started
        record.seeds = tuple(seed for _, seed in sorted(self.ticket.seeds.items()))
        left = [place for place in range(len(self.choices)) if place not in self._ended]
        for place in left:
            self._end(place, "abort")
        if left:
            record.finish = "abort"


def finish_of(reason: FinishReason) -> Finish:
    """Return the word that clients know for an end."""
    return "length" if reason is FinishReason.LENGTH else "stop"
