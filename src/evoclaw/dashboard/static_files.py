"""The static files of the dashboard, and the routes that serve them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter
from msgspec import Struct

PUBLIC = ""
"""The scope of a route that needs no token: the files contain no data."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The policy of the dashboard: only its own scripts, and no text can become a script."""
PUSH_CONTENT_SECURITY_POLICY = CONTENT_SECURITY_POLICY.partition("; require-trusted-types-for")[0]
"""The policy of the page that adds a browser to the receivers of notifications: that of the
dashboard, but the page may register its service worker, which the dashboard may not."""
FRAME_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "require-trusted-types-for 'script'; trusted-types default; sandbox allow-scripts"
)
"""The policy of the canvas frame: it may draw, but not load, send or see the dashboard."""
FRAME, PUSH = "frame.html", "push.html"
_POLICIES = {FRAME: FRAME_CONTENT_SECURITY_POLICY, PUSH: PUSH_CONTENT_SECURITY_POLICY}
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_PERMISSIONS_POLICY = "camera=(), microphone=(), geolocation=(), payment=(), usb=()"


class StaticFile(Struct, frozen=True):
    """One static file."""

    data: bytes
    media_type: str
    etag: str
    policy: str


def dashboard_routes() -> list[HTTPRouteHandler]:
    """The routes of the dashboard: `/`, and its files below `/ui/`."""
    known = dict(_load_files(files("evoclaw.dashboard") / "static"))

    @get("/", scope=PUBLIC, include_in_schema=False)
    async def index(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The dashboard."""
        return _answer(request, known, "index.html")

    @get("/ui/{name:path}", scope=PUBLIC, include_in_schema=False)
    async def file(
        request: Request[Any, Any, Any], name: Annotated[str, PathParameter()]
    ) -> Response[bytes]:
        """One static file."""
        return _answer(request, known, name.lstrip("/"))

    return [index, file]


def _answer(
    request: Request[Any, Any, Any], known: Mapping[str, StaticFile], name: str
) -> Response[bytes]:
    found = known.get(name)
    if found is None:
        raise NotFoundException("The dashboard has no such file.")
    headers = {
        "etag": found.etag,
        "cache-control": "no-cache",
        "content-security-policy": found.policy,
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": _PERMISSIONS_POLICY,
    }
    if name == FRAME:
        # Covers peer connections and DNS lookups of navigations, which the policy does not.
        headers["connection-allowlist"] = "()"
    if request.headers.get("if-none-match") == found.etag:
        return Response(b"", status_code=304, headers=headers, media_type=found.media_type)
    return Response(found.data, headers=headers, media_type=found.media_type)


def _load_files(folder: Traversable, below: str = "") -> list[tuple[str, StaticFile]]:
    """All files by name; other paths answer 404."""
    found: list[tuple[str, StaticFile]] = []
    for entry in folder.iterdir():
        name = f"{below}{entry.name}"
        if entry.is_dir():
            found += _load_files(entry, f"{name}/")
        elif (kind := _MEDIA_TYPES.get(f".{entry.name.rpartition('.')[2]}")) is not None:
            data = entry.read_bytes()
            tag = f'"{sha256(data).hexdigest()[:32]}"'
            found.append(
                (
                    name,
                    StaticFile(
                        data,
                        kind,
                        tag,
                        _POLICIES.get(name, CONTENT_SECURITY_POLICY),
                    ),
                )
            )
    return found
