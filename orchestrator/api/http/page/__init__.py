"""The page at ``/``: a form for the HTTP API that colours each token by its source.

It serves the files of ``static/`` as they are, without a build step or files from elsewhere. They hold no data, so they
need no key.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Response

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE_PATHS = {
    ("/" if file.name == "index.html" else f"/page/{file.name}"): file
    for file in FOLDER.iterdir()
    # An editor may leave other files there.
    if file.suffix in TYPES
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # A gateway of another version has different files.
    "cache-control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Put the page and its files into ``app``."""
    for path, file in PAGE_PATHS.items():
        app.get(path, include_in_schema=False)(_sends(file.read_bytes(), TYPES[file.suffix]))


def _sends(content: bytes, content_type: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, headers=HEADERS | {"content-type": content_type})

    return send
