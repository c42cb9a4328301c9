"""The `[server]` settings of the HTTP service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.people.access import ConfiguredToken
from evoclaw.orchestrator.people.jwt_access import JwtSettings

MIN_TOKEN_CHARS = 32
"""Characters of a configured token."""
CHAT_PATHS = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/embeddings"})
"""Paths whose bodies contain conversations, perhaps with images, or many texts."""
Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class TokenFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API token in a file, for unattended deployments."""

    file: Path
    """Contains only the token; only its owner may read it."""
    name: str
    """The name of the token in the audit log."""
    tenant: str = "local"
    """The tenant whose data it opens."""
    user: str = ""
    """The user on whose behalf it acts."""
    scopes: tuple[str, ...]
    """The scopes of the token."""

    def read(self) -> ConfiguredToken:
        """Read the token; `ConfigError` if the file is unreadable, not private or too short."""
        try:
            if self.file.stat().st_mode & 0o077:
                raise ConfigError(f"other users can read {self.file}; run `chmod go= {self.file}`")
            secret = self.file.read_text().strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"cannot read the token in {self.file}: {problem}") from None
        if len(secret) < MIN_TOKEN_CHARS:
            raise ConfigError(
                f"the token in {self.file} is too short: it needs at least {MIN_TOKEN_CHARS} "
                "characters"
            )
        return ConfiguredToken(self.name, secret, self.tenant, self.user, frozenset(self.scopes))


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[server]` table."""

    host: str = "127.0.0.1"
    """The address to listen on; `0.0.0.0` is all interfaces: use TLS then."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8433
    """0 chooses a free port."""
    tls_cert: Path | None = None
    """The certificate chain file; without it, HTTP is unencrypted."""
    tls_key: Path | None = None
    """The private key file of the certificate."""
    names: tuple[str, ...] = ()
    """Further accepted `Host` headers besides `host`: `name` or `name:port`."""
    public_url: str = ""
    """The URL under which people reach the service, such as `https://evoclaw.example.org`: links in
    notifications start with it, and its host is accepted like those of `names`."""
    origins: tuple[str, ...] = ()
    """Allowed web origins (CORS), such as `https://example.org`."""
    max_body_bytes: Annotated[int, Meta(ge=1_024, le=1 << 30)] = 1 << 20
    """The size limit of a request body."""
    max_chat_body_bytes: Annotated[int, Meta(ge=1_024, le=1 << 30)] = 20 << 20
    """The size limit of the body of `/v1/chat/completions`, `/v1/responses` and `/v1/embeddings`:
    conversations with images, or many texts."""
    embedding_model: str = ""
    """The model of `/v1/embeddings`, on a server of your own, such as `ollama/nomic-embed-text`;
    empty: there is none."""
    body_seconds: Annotated[float, Meta(gt=0, le=3_600)] = 30.0
    """The time limit for receiving a request body."""
    requests_per_minute: Count = 600
    """The request rate of one caller."""
    burst: Count = 100
    """Requests that one caller may send at once."""
    failures_per_minute: Count = 60
    """Requests without a valid token from one address."""
    connections: Count = 2_000
    """The limit of open connections."""
    watchers: Count = 1_000
    """The limit of open event streams."""
    watchers_per_caller: Count = 50
    """The limit of open event streams of one caller."""
    heartbeat_s: Annotated[float, Meta(gt=0, le=300)] = 15.0
    """Seconds without an event after which an event stream sends a heartbeat."""
    stop_within_s: Annotated[float, Meta(ge=0, le=300)] = 5.0
    """Seconds that open responses may take to finish on shutdown."""
    tokens: tuple[TokenFile, ...] = ()
    """Tokens in files, beside those of `evoclaw token`."""
    jwt: JwtSettings | None = None
    """Accept JWTs of an external identity provider."""

    def max_body_bytes_of(self, path: str) -> int:
        """The size limit of the body of a request to a path."""
        if path.rstrip("/") in CHAT_PATHS:
            return max(self.max_body_bytes, self.max_chat_body_bytes)
        return self.max_body_bytes

    @property
    def public_host(self) -> str:
        """The `Host` header of requests to `public_url`; empty if it is not set."""
        return urlsplit(self.public_url).netloc.lower()

    @property
    def public_origin(self) -> str:
        """The web origin of `public_url`; empty if it is not set."""
        parts = urlsplit(self.public_url)
        return f"{parts.scheme}://{parts.netloc}".lower() if parts.netloc else ""


def check_public_url(settings: ServerSettings) -> None:
    """Raise `ConfigError` unless `public_url` is empty or an HTTP URL without a path."""
    if not settings.public_url:
        return
    try:
        parts = urlsplit(settings.public_url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid, parts = False, urlsplit("")
    if not valid or parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ConfigError(
            f"server.public_url: {settings.public_url[:200]!r} is not a URL like "
            "https://evoclaw.example.org, without a path"
        )
