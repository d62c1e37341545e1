"""`deskside chat`: a conversation in a terminal.

Owns the prompt, the commands and how an answer is shown. Ctrl-C stops an answer and no more; what
came of it stays part of the conversation.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from deskside.client.talk import Talk
from deskside.errors import InputError

__all__ = ["HELP", "Chat"]

HELP = """\
/system TEXT   what the model is told first; without TEXT nothing
/temp X        temperature, 0 is greedy; without X the service's own
/think on|off  whether it reasons before it answers
/reset         forget the conversation
/help          this list
/quit          leave; Ctrl-D does too. Ctrl-C stops an answer"""

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
SWITCH = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Chat:
    """A talk, where its lines come from and where they go."""

    talk: Talk
    read: Callable[[str], str]
    """Returns a line for a prompt, as `input` does."""
    out: TextIO

    def run(self) -> None:
        """Talk until the reader leaves."""
        while True:
            try:
                line = self.read("> ").strip()
            except EOFError:
                self._say("")
                return
            except KeyboardInterrupt:
                self._say("\n/quit or Ctrl-D leaves")
                continue
            if line in ("/quit", "/exit"):
                return
            try:
                if line.startswith("/"):
                    self._obey(*line[1:].split(maxsplit=1))
                elif line:
                    self._answer(line)
            except InputError as error:
                self._say(f"error: {error}")

    def _obey(self, name: str = "", rest: str = "") -> None:
        """Do what a command says."""
        talk = self.talk
        if name == "system":
            talk.system = rest
            self._say("system: " + (rest or "nothing"))
        elif name == "temp":
            talk.temperature = _number(rest) if rest else None
            self._say(f"temperature: {rest or 'the default of the service'}")
        elif name == "think" and rest in SWITCH:
            talk.thinks = SWITCH[rest]
            self._say(f"thinking: {rest}")
        elif name == "reset":
            talk.reset()
            self._say("a new conversation")
        else:
            self._say(HELP)

    def _answer(self, text: str) -> None:
        """Show an answer as it comes, its thought dimmed where there is a terminal."""
        shown = ""
        with contextlib.closing(self.talk.ask(text)) as pieces:
            try:
                for kind, piece in pieces:
                    if kind != shown:
                        self._turn(shown, kind)
                        shown = kind
                    self.out.write(piece)
                    self.out.flush()
            except KeyboardInterrupt:
                self._turn(shown, "")
                self._say("(stopped)")
                return
        self._turn(shown, "")
        self._say(self._dim(f"[{self.talk.counts.line()}]"))

    def _turn(self, before: str, kind: str) -> None:
        """Go over from one kind of text to another; an empty one is none."""
        colours = self.out.isatty()
        if before == "reasoning" and colours:
            self.out.write(PLAIN)
        if before:
            self.out.write("\n")
        if kind == "reasoning" and colours:
            self.out.write(DIM)
        self.out.flush()

    def _dim(self, text: str) -> str:
        return f"{DIM}{text}{PLAIN}" if self.out.isatty() else text

    def _say(self, text: str) -> None:
        self.out.write(text + "\n")
        self.out.flush()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"/temp needs a number, got {text!r:.40}") from error
