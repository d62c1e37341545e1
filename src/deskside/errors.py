"""Every error a user can cause, with its stable exit code.

Owns the words: each message is one line that says what went wrong, where, what is needed and what
is there, and which option changes it. Knows nothing about how errors are printed.
"""

from typing import ClassVar

__all__ = [
    "CapacityError",
    "CheckpointError",
    "ContextLengthError",
    "DesksideError",
    "GrammarError",
    "InputError",
    "LostRankError",
    "LostWorkerError",
    "NanLogitsError",
    "PortHeldError",
    "ProfileError",
    "RankDisagreementError",
]


class DesksideError(Exception):
    """A fault with a one-line message and a process exit code (1: internal fault)."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class InputError(DesksideError):
    """Something the user typed or sent can't be taken: an option, a prompt, a file."""

    exit_code: ClassVar[int] = 2


class ContextLengthError(InputError):
    """A prompt with its output is longer than what is allocated, or than the model can read."""


class GrammarError(InputError):
    """A grammar cannot be followed any further, in the midst of a text or before it."""


class CheckpointError(InputError):
    """The checkpoint folder does not hold what its own headers or config promise."""


class ProfileError(InputError):
    """What was measured on this machine is missing, damaged, or of another machine."""


class CapacityError(DesksideError):
    """It does not fit: the message carries need, have and the option to change."""

    exit_code: ClassVar[int] = 3


class LostRankError(DesksideError):
    """A rank died, hung or decided otherwise than its leader."""

    exit_code: ClassVar[int] = 4


class RankDisagreementError(LostRankError):
    """A rank's state is not its leader's; the message names the step."""


class LostWorkerError(DesksideError):
    """A thread of the worker pool died or does not move; the process should end."""

    exit_code: ClassVar[int] = 4


class NanLogitsError(DesksideError):
    """The logits of a request are no numbers; no other request is touched."""


class PortHeldError(DesksideError):
    """The address to listen on is taken; the message names by whom where that can be seen."""

    exit_code: ClassVar[int] = 5
