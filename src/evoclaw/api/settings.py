"""What can be chosen about the HTTP side of the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from evoclaw.orchestrator.people.jwt_access import JwtSettings

Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class TokenFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token that is kept in a file, for whoever starts the service without a person."""

    file: Path
    """Holds the token and nothing else; nobody but its owner may read it."""
    name: str
    """Who shows it, for the audit."""
    tenant: str = "local"
    """Whose data it opens."""
    user: str = ""
    """On whose behalf."""
    scopes: tuple[str, ...]
    """What it may ask for."""


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[server]` table."""

    host: str = "127.0.0.1"
    """Where to listen; `0.0.0.0` is everywhere, and then use TLS."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8433
    """0 takes any."""
    tls_cert: Path | None = None
    """The certificate, with those that signed it; in the clear if not given."""
    tls_key: Path | None = None
    """The certificate's key."""
    names: tuple[str, ...] = ()
    """Under which host names we are reached, beside `host` itself: `name` or `name:port`."""
    origins: tuple[str, ...] = ()
    """Web pages of others that may use it, such as `https://example.org`."""
    max_body_bytes: Annotated[int, Meta(ge=1_024, le=1 << 30)] = 1 << 20
    """Of one request."""
    body_seconds: Annotated[float, Meta(gt=0, le=3_600)] = 30.0
    """Within which a request's body must be there."""
    requests_per_minute: Count = 600
    """Of one caller."""
    burst: Count = 100
    """How many of them at once."""
    failures_per_minute: Count = 60
    """Of one address: requests without a good token."""
    connections: Count = 2_000
    """That may be open at once."""
    watchers: Count = 1_000
    """Event streams that may be open at once."""
    watchers_per_caller: Count = 50
    """Of them, those of one caller."""
    heartbeat_s: Annotated[float, Meta(gt=0, le=300)] = 15.0
    """Seconds without news after which a watcher is told that we are still there."""
    stop_within_s: Annotated[float, Meta(ge=0, le=300)] = 5.0
    """Seconds in which open answers may still go out when we stop."""
    tokens: tuple[TokenFile, ...] = ()
    jwt: JwtSettings | None = None
    """Signed tokens of somebody else's that are accepted."""
