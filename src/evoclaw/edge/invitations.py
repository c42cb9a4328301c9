"""Invitations: a link that a device joins with, and the same as a QR code."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from evoclaw.core.errors import ConfigError

SCHEME = "evoclaw"
MAX_LINK_CHARS = 2_000
"""Length of a link."""
QR_BORDER_MODULES = 4
"""Light modules around a QR code: cameras need them."""
_FIELDS = ("url", "token", "name")
_BLOCKS = {"00": "█", "01": "▀", "10": "▄", "11": " "}
"""Two modules above each other as one letter; what is light is drawn."""


def join_link(url: str, token: str, name: str) -> str:
    """Everything that a new edge needs, as one link; it works once."""
    said = urlencode(dict(zip(_FIELDS, (url, token, name), strict=True)), quote_via=quote, safe="")
    return f"{SCHEME}://join?{said}"


def join_command(link: str) -> str:
    """What is typed on the new edge."""
    return f"evoclaw edge join {shlex.quote(link)}"


def is_link(text: str) -> bool:
    """Whether a text is an invitation link, and not the address of a broker."""
    return text.strip().lower().startswith(f"{SCHEME}:")


def read_link(text: str) -> tuple[str, str]:
    """The broker's address and the token in a link; `ConfigError` if it is not whole."""
    link = text.strip()
    try:
        if len(link) > MAX_LINK_CHARS or not link.isprintable():
            raise ValueError("too long, or not text")
        parts = urlsplit(link)
        said = parse_qs(parts.query, strict_parsing=True, max_num_fields=len(_FIELDS))
        (url,), (token,), (name,) = (said.pop(field) for field in _FIELDS)
    except (ValueError, KeyError):
        raise _damaged() from None
    if (parts.scheme.lower(), parts.netloc, parts.path) != (SCHEME, "join", ""):
        raise _damaged()
    if token.partition(".")[0] != name or not all(map(str.isprintable, (url, token))):
        raise _damaged()
    return url, token


def _damaged() -> ConfigError:
    return ConfigError(
        "this is no whole invitation; copy all of the link, in quotes, or have a new one made"
    )


def qr_rows(text: str) -> tuple[str, ...]:
    """A text as a QR code: a row of `0` (light) and `1` (dark) each, with the light border."""
    try:
        import segno
    except ImportError:
        raise ConfigError("for QR codes, say: pip install 'evoclaw[server]'") from None
    code = segno.make(text, micro=False, error="m", boost_error=False)
    return tuple("".join(map(str, row)) for row in code.matrix_iter(border=QR_BORDER_MODULES))


def qr_lines(rows: Sequence[str]) -> list[str]:
    """The same for a terminal with a dark ground: two rows a line."""
    even = [*rows, "1" * len(rows[-1])] if len(rows) % 2 else list(rows)
    pairs = zip(even[::2], even[1::2], strict=True)
    return ["".join(_BLOCKS[a + b] for a, b in zip(*pair, strict=True)) for pair in pairs]
