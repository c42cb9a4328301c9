"""The static files of the dashboard, and the routes that serve them."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter
from msgspec import Struct

PUBLIC = ""
"""The scope of a route that needs no token: the files contain no data."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "manifest-src 'self'; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The policy of the dashboard: only its own scripts, and no text can become a script."""
PUSH_CONTENT_SECURITY_POLICY = CONTENT_SECURITY_POLICY.partition("; require-trusted-types-for")[0]
"""The policy of the page that adds a browser to the receivers of notifications: that of the
dashboard, but the page may register its service worker, which the dashboard may not."""
WORKER_CONTENT_SECURITY_POLICY = PUSH_CONTENT_SECURITY_POLICY.replace(
    "frame-ancestors 'none'", "frame-ancestors 'self'"
)
"""The policy of the empty page that registers the dashboard's service worker, in a frame."""
FRAME_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "require-trusted-types-for 'script'; trusted-types default; sandbox allow-scripts"
)
"""The policy of the canvas frame: it may draw, but not load, send or see the dashboard."""
FRAME, PUSH, WORKER, WORKER_PAGE = "frame.html", "push.html", "worker.js", "worker.html"
FILE_LIST = "files.json"
"""The version of the dashboard and its files, for the service worker: not a file itself."""
STYLES = "styles.css"
"""All style sheets in one file, so that the first screen waits for one answer, not for many."""
_FIRST_STYLES, _LAST_STYLES = ("style.css", "components.css"), ("phone.css",)
_POLICIES = {
    FRAME: FRAME_CONTENT_SECURITY_POLICY,
    PUSH: PUSH_CONTENT_SECURITY_POLICY,
    WORKER_PAGE: WORKER_CONTENT_SECURITY_POLICY,
}
_NOT_OFFLINE = (FRAME, PUSH, "push.js", "push-worker.js", WORKER, WORKER_PAGE, "worker-page.js")
"""Files that are always asked of the service."""
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
_MIN_COMPRESSED_BYTES = 1_000
_PERMISSIONS_POLICY = "camera=(), microphone=(), geolocation=(), payment=(), usb=()"


class StaticFile(Struct, frozen=True):
    """One static file."""

    data: bytes
    media_type: str
    etag: str
    policy: str


def dashboard_routes(folder: Traversable | None = None) -> list[HTTPRouteHandler]:
    """The routes of the dashboard: `/`, and its files below `/ui/`."""
    known = dict(_load_files(folder or files("evoclaw.dashboard") / "static"))
    known[STYLES] = _all_styles(known)
    known[FILE_LIST] = _file_list(known)
    compressed: dict[str, bytes] = {}

    @get("/", scope=PUBLIC, include_in_schema=False)
    async def index(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The dashboard."""
        return _answer(request, known, "index.html", compressed)

    @get("/ui/{name:path}", scope=PUBLIC, include_in_schema=False)
    async def file(
        request: Request[Any, Any, Any], name: Annotated[str, PathParameter()]
    ) -> Response[bytes]:
        """One static file."""
        return _answer(request, known, name.lstrip("/"), compressed)

    return [index, file]


def _answer(
    request: Request[Any, Any, Any],
    known: Mapping[str, StaticFile],
    name: str,
    compressed: dict[str, bytes],
) -> Response[bytes]:
    found = known.get(name)
    if found is None:
        raise NotFoundException("The dashboard has no such file.")
    headers = {
        "etag": found.etag,
        "cache-control": "no-cache",
        "vary": "accept-encoding",
        "content-security-policy": found.policy,
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": _PERMISSIONS_POLICY,
    }
    if name == WORKER:
        headers["service-worker-allowed"] = "/"
    if name == FRAME:
        # Covers peer connections and DNS lookups of navigations, which the policy does not.
        headers["connection-allowlist"] = "()"
    if request.headers.get("if-none-match") == found.etag:
        return Response(b"", status_code=304, headers=headers, media_type=found.media_type)
    data = found.data
    if _is_compressed(request, found):
        # Compressed when it is first asked for, because the start of the service would wait for it.
        if name not in compressed:
            compressed[name] = gzip.compress(data, mtime=0)
        data, headers["content-encoding"] = compressed[name], "gzip"
    return Response(data, headers=headers, media_type=found.media_type)


def _is_compressed(request: Request[Any, Any, Any], file: StaticFile) -> bool:
    accepted = request.headers.get("accept-encoding", "")
    return (
        "gzip" in accepted
        and file.media_type != "image/png"
        and len(file.data) >= _MIN_COMPRESSED_BYTES
    )


def _all_styles(known: Mapping[str, StaticFile]) -> StaticFile:
    """The style sheets of all views, after those that they build on, and before the phone's."""
    ends = (*_FIRST_STYLES, *_LAST_STYLES)
    views = [name for name in sorted(known) if name.endswith(".css") and name not in ends]
    names = (*_FIRST_STYLES, *views, *_LAST_STYLES)
    return _static_file(STYLES, b"".join(known[name].data for name in names), "text/css")


def _file_list(known: Mapping[str, StaticFile]) -> StaticFile:
    """The list of the files that work offline, and a version that changes with any file."""
    version = sha256("".join(f"{name} {known[name].etag}" for name in sorted(known)).encode())
    names = [
        name
        for name in sorted(known)
        if name not in _NOT_OFFLINE and (name == STYLES or not name.endswith(".css"))
    ]
    offline = ["/", *(f"/ui/{name}" for name in names)]
    data = msgspec.json.encode({"version": version.hexdigest()[:16], "files": offline})
    return _static_file(FILE_LIST, data, "application/json")


def _static_file(name: str, data: bytes, media_type: str) -> StaticFile:
    # Weak: the file and its compressed form share the tag.
    tag = f'W/"{sha256(data).hexdigest()[:32]}"'
    return StaticFile(data, media_type, tag, _POLICIES.get(name, CONTENT_SECURITY_POLICY))


def _load_files(folder: Traversable, below: str = "") -> list[tuple[str, StaticFile]]:
    """All files by name; other paths answer 404."""
    found: list[tuple[str, StaticFile]] = []
    for entry in folder.iterdir():
        name = f"{below}{entry.name}"
        if entry.is_dir():
            found += _load_files(entry, f"{name}/")
        elif (kind := _MEDIA_TYPES.get(f".{entry.name.rpartition('.')[2]}")) is not None:
            found.append((name, _static_file(name, entry.read_bytes(), kind)))
    return found
