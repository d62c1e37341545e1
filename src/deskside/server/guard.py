"""Who may call: the API key, the names the service goes by, and web pages of other origins.

Runs before any body is read. Only the live probe is open to everybody, so that a supervisor needs
no key to see that the process is there, and the files of the page, which asks for the key itself.
"""

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from deskside.server.faults import Fault
from deskside.server.page.routes import PAGE_PATHS

__all__ = ["Guard", "Rules", "is_loopback", "keys_of"]

LIVE = "/health/live"
OPEN = frozenset({LIVE}) | PAGE_PATHS
"""Paths that need no key."""
ADMIN = "/admin/"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def keys_of(headers: Mapping[bytes, bytes]) -> list[bytes]:
    """Return what a request carries in the two usual headers; a wrong one beside a right is wrong.

    An Authorization header of another scheme counts as a key that cannot be right.
    """
    found = []
    if b"authorization" in headers:
        scheme, _, token = headers[b"authorization"].partition(b" ")
        found.append(token.strip() if scheme.lower() == b"bearer" else b"")
    if b"x-api-key" in headers:
        found.append(headers[b"x-api-key"].strip())
    return found


@dataclass(frozen=True, slots=True)
class Rules:
    """What a request must bring. `hosts` None takes every name, for a service with a key."""

    key: str | None
    hosts: frozenset[str] | None
    origins: frozenset[str]

    @staticmethod
    def of(host: str, key: str | None, hosts: Iterable[str], origins: Iterable[str]) -> "Rules":
        """Derive the rules of a service that listens on `host`."""
        named = frozenset(name.lower() for name in hosts)
        if is_loopback(host):
            return Rules(key, LOOPBACK_NAMES | named, frozenset(origins))
        return Rules(key, named | {host} if named else None, frozenset(origins))

    def check(self, scope: Scope) -> None:
        """Refuse a request that may not be here.

        Raises:
            Fault: 401 for the key, 403 for everything else.
        """
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and _name(host) not in self.hosts:
            raise _forbidden(f"this service does not go by the name {host!r:.80} (--allowed-hosts)")
        self._check_origin(headers, host)
        if scope["path"] in OPEN:
            return
        if scope["path"].startswith(ADMIN) and not _is_local(scope):
            raise _forbidden("only this machine may administrate")
        if self.key is not None and scope["method"] != "OPTIONS":
            self._check_key(keys_of(headers))

    def _check_origin(self, headers: Mapping[bytes, bytes], host: str) -> None:
        """Refuse a web page of another origin: browsers say where it comes from."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin not in self.origins and urlsplit(origin).netloc.lower() != host:
            raise _forbidden(f"origin {origin!r:.80} is not listed (--cors-origins)")

    def _check_key(self, given: list[bytes]) -> None:
        assert self.key is not None
        wanted = self.key.encode()
        if not given or not all(hmac.compare_digest(key, wanted) for key in given):
            told = "the API key is wrong" if given else "an API key is needed"
            raise Fault(
                401, told, "authentication_error", "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guard:
    """ASGI layer that lets through what the rules allow."""

    app: ASGIApp
    rules: Rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with the fault."""
        if scope["type"] == "http":
            try:
                self.rules.check(scope)
            except Fault as fault:
                await fault.response(scope["path"])(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _forbidden(told: str) -> Fault:
    return Fault(403, told, "permission_error", "forbidden")


def _name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _is_local(scope: Scope) -> bool:
    return scope["client"] is not None and is_loopback(scope["client"][0])
