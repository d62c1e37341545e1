"""A service as its clients on this machine see it: requests, and answers as they come.

Owns the connection and the refusals in one line. Leaving an answer closes its connection, by which
the service knows that nobody reads on. Standard library alone, because it must start at once.
"""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from deskside.config.commands import ClientOptions
from deskside.errors import InputError

__all__ = ["Peer", "key_of"]

SECONDS = 10.0
"""To connect, and to answer what needs no model."""
PATIENCE = 600.0
"""Of silence within an answer: the service says every few seconds that it is still there."""


def key_of(options: ClientOptions) -> str | None:
    """Return the key that requests carry, if there is one.

    Raises:
        InputError: its file cannot be read.
    """
    if options.api_key_file is None:
        return options.api_key
    try:
        lines = options.api_key_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--api-key-file {options.api_key_file}: cannot be read") from error
    return lines[0].strip() if lines else None


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a service answers, and the key that it wants."""

    url: str
    key: str | None = None

    @property
    def listens(self) -> bool:
        """Whether anything answers there."""
        try:
            with self._answer("GET", "/health/live", None, 2.0):
                return True
        except InputError:
            return False

    def get(self, path: str) -> Any:
        """Return a JSON answer.

        Raises:
            InputError: nothing answers, or it refuses; the line says what it told.
        """
        with self._answer("GET", path, None, SECONDS) as answer:
            return _parsed(answer.read(), self.url)

    def events(
        self, path: str, body: Mapping[str, Any]
    ) -> Generator[Mapping[str, Any], None, None]:
        """Yield the events of a stream up to its end; closing the iterator leaves it.

        Raises:
            InputError: the service refuses, or the stream breaks off.
        """
        with self._answer("POST", path, {**body, "stream": True}, PATIENCE) as answer:
            try:
                for line in answer:
                    if not line.startswith(b"data: "):
                        continue
                    data = line.removeprefix(b"data: ").strip()
                    if data == b"[DONE]":
                        return
                    event = _parsed(data, self.url)
                    if "error" in event:
                        raise InputError(f"{self.url}: {event['error'].get('message', event)}")
                    yield event
            except (OSError, HTTPException) as error:
                raise InputError(f"{self.url}: the answer broke off ({error})") from error
            raise InputError(f"{self.url}: the answer broke off before its end")

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float
    ) -> Iterator[HTTPResponse]:
        """Send a request; its answer is read inside."""
        parts = urlsplit(self.url)
        kinds = {"http": HTTPConnection, "https": HTTPSConnection}
        if parts.scheme not in kinds or not parts.hostname:
            raise InputError(f"--server must be a URL such as http://127.0.0.1:8000: {self.url!r}")
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        wire = kinds[parts.scheme](parts.hostname, parts.port, timeout=seconds)
        try:
            data = None if body is None else json.dumps(body).encode()
            try:
                wire.request(method, parts.path.rstrip("/") + path, data, headers)
                answer = wire.getresponse()
            except (OSError, HTTPException) as error:
                why = f"nothing answers ({error}); start `deskside serve`, or give --server URL"
                raise InputError(f"{self.url}: {why}") from error
            if answer.status >= 300:
                raise InputError(f"{self.url}: {_told(answer)}")
            yield answer
        finally:
            wire.close()


def _told(answer: HTTPResponse) -> str:
    try:
        return str(json.loads(answer.read())["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"answers {answer.status} {answer.reason}"


def _parsed(data: bytes, url: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise InputError(f"{url}: answers something that is no JSON") from error
