"""Bare connections: a request that is sent and not waited for, and the ways to leave one."""

import json
import socket
from typing import Any


def request(port: int, fields: dict[str, Any]) -> socket.socket:
    """Send a completion's request on a connection of its own."""
    wire = socket.create_connection(("127.0.0.1", port), timeout=30)
    send(wire, fields)
    return wire


def send(wire: socket.socket, fields: dict[str, Any]) -> None:
    body = json.dumps(fields).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    wire.sendall(head.encode() + body)


def drop(wire: socket.socket, how: str) -> None:
    if how == "reset":
        linger = b"\x01\0\0\0\0\0\0\0"
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wire.close()
    elif how == "close":
        wire.close()
    else:
        wire.shutdown(socket.SHUT_WR)
        while wire.recv(65_536):  # the other side gives up and closes
            pass
        wire.close()


def answer(wire: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read an answer with a length to its end: status, headers by small names, body."""
    said = b""
    while b"\r\n\r\n" not in said:
        piece = wire.recv(65_536)
        assert piece, f"no whole answer: {said[:200]!r}"
        said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]):
        piece = wire.recv(65_536)
        assert piece, "a torn body"
        body += piece
    return int(first.split()[1]), headers, body
