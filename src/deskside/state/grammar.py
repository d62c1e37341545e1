"""What every constrained sequence may say next, and how far it has come.

Owns the guides, and for each the tokens beyond the frontier that it was led through: those of a
span, proposals among them. Any question about other tokens leads it back first, so a draft that is
thrown away leaves nothing to undo. Prompts are not constrained; followers hold no sequence here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deskside.core import SequenceId, Span
from deskside.errors import GrammarError
from deskside.text.guide import Guide

__all__ = ["Grammars"]


@dataclass(slots=True)
class _Text:
    """A sequence's guide. `masks` has what may follow the frontier and each token of `ahead`."""

    guide: Guide
    prompt: int
    ahead: list[int] = field(default_factory=list)
    masks: list[Tensor | None] = field(default_factory=lambda: [None])

    def walk(self, tokens: Sequence[int]) -> bool:
        """Go to where the tokens end; false where one of them can't come, and stop before it."""
        same = 0
        while same < min(len(self.ahead), len(tokens)) and self.ahead[same] == tokens[same]:
            same += 1
        self.back(same)
        for token in tokens[same:]:
            if not self.guide.take(token):
                return False
            self.ahead.append(token)
            self.masks.append(None)
        return True

    def back(self, length: int) -> None:
        """Go back to the first tokens ahead."""
        self.guide.give_back(len(self.ahead) - length)
        del self.ahead[length:], self.masks[length + 1 :]

    def mask(self) -> Tensor:
        """Return what may come where the text stands."""
        found = self.masks[-1]
        if found is None:
            found = self.masks[-1] = torch.from_numpy(self.guide.allowed())
        return found


class Grammars:
    """Owner of how far constrained sequences have come."""

    def __init__(self) -> None:
        self._texts: dict[SequenceId, _Text] = {}

    def admit(self, sequence: SequenceId, prompt: int, guide: Guide) -> None:
        """Let a sequence enter that is constrained behind its prompt of so many tokens."""
        assert sequence not in self._texts
        self._texts[sequence] = _Text(guide, prompt)

    def holds(self, sequence: SequenceId) -> bool:
        """Return whether a sequence is constrained."""
        return sequence in self._texts

    def allowed(self, sequence: SequenceId, tokens: Sequence[int]) -> Tensor | None:
        """Return what may follow tokens [vocab] bool, on the host.

        None is everything: behind the end token, or one that can't come, nothing will stay.

        Args:
            sequence: one that is constrained.
            tokens: those behind prompt and frontier, up to the place in question.

        Raises:
            GrammarError: the grammar can't be followed any further.
        """
        text = self._texts[sequence]
        return text.mask() if text.walk(tokens) else None

    def masks(self, span: Span, ids: Sequence[int]) -> list[Tensor | None]:
        """Return what may follow the last certain row of a span, and each row behind it.

        Args:
            span: of a constrained sequence.
            ids: the tokens of its rows.

        Raises:
            GrammarError: the grammar can't be followed any further.
        """
        text = self._texts[span.sequence]
        first = max(0, text.prompt - span.start)
        ends = range(span.certain, span.rows + 1)
        masks = [self.allowed(span.sequence, ids[first:end]) for end in ends]
        if masks[0] is None:
            raise GrammarError("the grammar refuses a token that it had allowed")
        return masks

    def reserve(self, span: Span) -> None:
        """Nothing has to be set aside."""

    def commit(self, span: Span, kept: int) -> None:
        """Stay behind the kept rows."""
        text = self._texts.get(span.sequence)
        if text is None:
            return
        count = max(0, kept - max(0, text.prompt - span.start))
        assert count <= len(text.ahead), "kept rows were asked about"
        text.back(count)
        text.guide.settle()
        text.ahead.clear()
        del text.masks[:-1]

    def release(self, sequence: SequenceId) -> None:
        """Drop a sequence."""
        self._texts.pop(sequence, None)
