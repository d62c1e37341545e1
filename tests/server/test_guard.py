"""Who may call: keys, host names, origins, slow and broken connections, and what is logged."""

import json
import socket
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from deskside.config.server import ServerOptions
from deskside.errors import InputError
from deskside.server.bind import check_exposure, read_key
from tests.server.rig import Server, serving

KEY = "a-key-of-ours"
ROUTES = [
    ("GET", "/health"),
    ("GET", "/health/ready"),
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/nothing"),
    ("GET", "/admin/requests"),
    ("GET", "/admin/placement"),
    ("DELETE", "/admin/requests/x"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/render"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(
        *("--kv-tokens", "1024", "--receive-timeout", "2"),
        *("--cors-origins", "http://page.example", "--allowed-hosts", "desk.example"),
        environ={"DESKSIDE_API_KEY": KEY},
    ) as running:
        yield running


def ask(server: Server, method: str, path: str, **headers: str) -> httpx.Response:
    body = {} if method == "POST" else None
    return server.client.request(method, server.url + path, json=body, headers=headers)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_wants_the_key(server: Server, method: str, path: str) -> None:
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": KEY},
        {"x-api-key": "wrong"},
        {"x-api-key": KEY + "x"},
        {"x-api-key": KEY, "authorization": "Bearer wrong"},
        {"x-api-key": KEY, "authorization": "Basic eDp5"},
    ):
        answer = ask(server, method, path, **headers)
        assert answer.status_code == 401, (headers, answer.text)
        assert answer.json()["error"]["type"] == "authentication_error"
    right = {"authorization": f"Bearer {KEY}"}
    for headers in (right, {"x-api-key": KEY}, {**right, "x-api-key": KEY}):
        assert ask(server, method, path, **headers).status_code not in (401, 403)


def test_the_live_probe_is_open(server: Server) -> None:
    assert ask(server, "GET", "/health/live").status_code == 200


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_other_names_and_origins_are_refused(server: Server, method: str, path: str) -> None:
    key = {"x-api-key": KEY}
    assert ask(server, method, path, host="rebound.example", **key).status_code == 403
    assert ask(server, method, path, origin="http://evil.example", **key).status_code == 403
    assert ask(server, method, path, host="desk.example:80", **key).status_code != 403
    assert ask(server, method, path, origin="http://page.example", **key).status_code != 403


def test_only_listed_origins_get_cors_headers(server: Server) -> None:
    answer = ask(server, "GET", "/v1/models", origin="http://page.example", **{"x-api-key": KEY})
    assert answer.headers["access-control-allow-origin"] == "http://page.example"
    assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-origin" not in ask(
        server, "GET", "/v1/models", **{"x-api-key": KEY}
    ).headers  # fmt: skip


def _closed_after(wire: socket.socket) -> float:
    started = time.monotonic()
    while wire.recv(65_536):
        pass
    return time.monotonic() - started


def test_slow_headers_are_cut(server: Server) -> None:
    wires = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for wire in wires:
        wire.settimeout(20)
        wire.sendall(b"GET /health/live HTTP/1.1\r\nHost: loc")
    assert ask(server, "GET", "/health/live").status_code == 200
    assert all(_closed_after(wire) < 15 for wire in wires)
    for wire in wires:
        wire.close()


def test_a_slow_body_is_cut(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as wire:
        wire.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: "
            + KEY.encode()
            + b"\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
        )
        said = b""
        while piece := wire.recv(65_536):
            said += piece
    assert b"408" in said.splitlines()[0]
    assert b"request_timeout" in said


def test_an_idle_connection_is_closed(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as wire:
        wire.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert _closed_after(wire) < 15


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost : b\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100_000,
    ],
)
def test_what_is_no_http_gets_an_error_and_an_end(server: Server, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as wire:
        try:
            wire.sendall(data)
            said = b""
            while piece := wire.recv(65_536):
                said += piece
        except ConnectionResetError:
            return
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"400" in head.splitlines()[0]
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_request_in_single_bytes_is_a_request(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as wire:
        for byte in b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":
            wire.sendall(bytes([byte]))
        said = b""
        while piece := wire.recv(65_536):
            said += piece
    assert b"200" in said.splitlines()[0]


def test_the_log_has_one_escaped_line_and_no_secret(server: Server) -> None:
    secret = "a prompt that nobody else may read"
    key = {"x-api-key": KEY}
    fields = {"prompt": secret, "max_tokens": 2}
    server.post("/v1/completions?api_key=" + KEY, fields, headers=key)
    ask(server, "GET", "/a%0aINFO%20forged%1b[31m" + "x" * 5000, **key)
    text = server.log.read_text()
    assert secret not in text
    assert KEY not in text
    assert "\x1b" not in text
    assert not any(line.startswith("INFO forged") for line in text.splitlines())
    assert max(map(len, text.splitlines())) < 4096


def test_the_key_is_in_no_command_line(server: Server) -> None:
    for process in (server.process.pid, server.worker()):
        with open(f"/proc/{process}/cmdline", "rb") as command:
            assert KEY.encode() not in command.read()


def test_a_public_address_needs_a_key(tmp_path) -> None:
    for host in ("0.0.0.0", "192.168.1.5", "::"):
        with pytest.raises(InputError, match="--open-to-all"):
            check_exposure(ServerOptions(host=host), None)
        check_exposure(ServerOptions(host=host), "key")
        check_exposure(ServerOptions(host=host, open_to_all=True), None)
    for host in ("127.0.0.1", "localhost", "::1", "127.5.5.5"):
        check_exposure(ServerOptions(host=host), None)
    file = tmp_path / "key"
    file.write_text("from-a-file\nsecond line\n")
    assert read_key(ServerOptions(api_key_file=file)) == "from-a-file"
    for bad in ("", " ", "with space", "umlaut-ä", "line\nbreak"):
        with pytest.raises(InputError, match="API key must be"):
            read_key(ServerOptions(api_key=bad))
    with pytest.raises(InputError, match="cannot be read"):
        read_key(ServerOptions(api_key_file=tmp_path / "missing"))
    with pytest.raises(InputError, match="given twice"):
        ServerOptions(api_key="a", api_key_file=file)
