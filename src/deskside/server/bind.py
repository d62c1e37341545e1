"""The socket that a service listens on, and who has it where it is taken.

Owns the refusal of an address that others can reach, unless there is a key or the user says so.
"""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from deskside.config.server import ServerOptions
from deskside.errors import InputError, PortHeldError
from deskside.machine.files import ROOT, text
from deskside.runtime.leftovers import run_of
from deskside.server.guard import is_loopback

__all__ = ["bind", "check_exposure", "holder", "read_key"]

BACKLOG = 2048


def read_key(options: ServerOptions) -> str | None:
    """Return the API key, if there is one.

    Raises:
        InputError: the file cannot be read, or the key is empty or no plain text.
    """
    key = options.api_key
    if options.api_key_file is not None:
        try:
            lines = options.api_key_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--api-key-file {options.api_key_file}: cannot be read") from error
        key = lines[0].strip() if lines else ""
    if key is None:
        return None
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError("the API key must be printable ASCII without spaces, and not empty")
    return key


def check_exposure(options: ServerOptions, key: str | None) -> None:
    """Refuse to serve strangers by accident.

    Raises:
        InputError: the address is public and there is no key.
    """
    if key is None and not options.open_to_all and not is_loopback(options.host):
        raise InputError(
            f"--host {options.host}: others could use this service without a key; set "
            "DESKSIDE_API_KEY or --api-key-file, or say --open-to-all"
        )


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        PortHeldError: another process listens there; the message names it where it can be seen.
        InputError: the address is not one of this machine, or may not be taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortHeldError(
                f"port {port} on {host} is taken by {holder(port)}; end that process (deskside "
                "doctor --clean ends what a dead run of ours left), or choose another with --port"
            ) from error
        raise InputError(f"--host {host} --port {port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def holder(port: int, root: Path = ROOT) -> str:
    """Say which process listens on a port, as far as this user may see."""
    inodes = set(_listening(port, root))
    for process in sorted((root / "proc").glob("[0-9]*")):
        if inodes & set(_sockets(process)):
            command = text(process / "cmdline").replace("\0", " ").strip()
            run = run_of(int(process.name), root=root)
            ours = "" if run is None else f", ours from run {run}"
            return f"process {process.name} ({command[:200]!r}{ours})"
    return "a process that this user cannot see"


def _listening(port: int, root: Path) -> Iterator[str]:
    """Yield the inodes of sockets that listen on a port."""
    for table in ("tcp", "tcp6"):
        for line in text(root / "proc" / "net" / table).splitlines()[1:]:
            fields = line.split()
            if (
                len(fields) > 9
                and fields[3] == "0A"
                and int(fields[1].rpartition(":")[2], 16) == port
            ):
                yield fields[9]


def _sockets(process: Path) -> Iterator[str]:
    """Yield the inodes of a process's sockets."""
    try:
        for descriptor in os.listdir(process / "fd"):
            target = os.readlink(process / "fd" / descriptor)
            if target.startswith("socket:["):
                yield target.removeprefix("socket:[").removesuffix("]")
    except OSError:
        return
