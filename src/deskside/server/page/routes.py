"""The chat page at `/`: files of this package, and what a browser may do with them.

The page holds no secret and asks nothing of any other host, so it needs no key; what it then asks
of the service does.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

__all__ = ["PAGE_PATHS", "add_page"]

FOLDER = Path(__file__).parent / "files"
FILES = {
    "/": ("index.html", "text/html"),
    "/page/app.js": ("app.js", "text/javascript"),
    "/page/render.js": ("render.js", "text/javascript"),
    "/page/style.css": ("style.css", "text/css"),
}
PAGE_PATHS = frozenset(FILES)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(router: APIRouter) -> None:
    """Add a route for each file; they are read once."""
    for path, (name, kind) in FILES.items():
        answer = _answer((FOLDER / name).read_bytes(), kind)
        router.add_api_route(path, answer, include_in_schema=False)


def _answer(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return answer
