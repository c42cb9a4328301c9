"""`McpOAuth`: how EvoClaw signs in to an MCP server over HTTP; most servers need none of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError


class McpOAuth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mcp.oauth]`: the OAuth client of a server; empty registers a client automatically."""

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    """`authorization_code`: a person signs in with `evoclaw mcp login`; `client_credentials`:
    EvoClaw signs in by itself, with the secret or the key."""
    client_id: str = ""
    """The id of a client that you registered; empty: one is registered at the sign-in."""
    client_secret_env: str = ""
    """The environment variable with the secret of the client; or set `client_secret_file`."""
    client_secret_file: Path | None = None
    """The file with the secret of the client; or set `client_secret_env`."""
    private_key_file: Path | None = None
    """The PEM file of the key that signs for the client, instead of a secret."""
    client_metadata_url: str = ""
    """The https address of a client id metadata document: the id of the client where supported."""
    issuer: str = ""
    """The authorization server of the client: secrets are sent to no other."""
    scopes: tuple[str, ...] = ()
    """Scopes to ask for, besides those that the server names."""
    redirect_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """The local port that a browser is sent back to; 0: any free port."""

    def check(self, server: str) -> None:
        """Raise `ConfigError` for settings that do not fit together."""
        problem = ""
        has_secret = bool(self.client_secret_env or self.client_secret_file)
        machine = self.grant == "client_credentials"
        if (has_secret or self.private_key_file or machine) and not self.client_id:
            problem = "`client_id` is missing"
        elif (has_secret or self.private_key_file) and not self.issuer:
            problem = "`issuer` is missing: it says who may receive the secret"
        elif machine and has_secret == bool(self.private_key_file):
            problem = "client_credentials need a client secret or a `private_key_file`"
        elif self.private_key_file and not machine:
            problem = '`private_key_file` needs grant = "client_credentials"'
        elif self.client_metadata_url and not self.client_metadata_url.startswith("https://"):
            problem = "`client_metadata_url` must start with https://"
        if problem:
            raise ConfigError(f"the oauth settings of the MCP server {server!r}: {problem}")

    def client_secret(self) -> str:
        """The secret of the client; empty if it has none."""
        if self.client_secret_env:
            if found := os.environ.get(self.client_secret_env, ""):
                return found
            raise ConfigError(f"the environment variable {self.client_secret_env} is not set")
        return _text(self.client_secret_file) if self.client_secret_file else ""

    def private_key(self) -> str:
        """The text of the key; empty if there is none."""
        return _text(self.private_key_file) if self.private_key_file else ""


def _text(path: Path) -> str:
    try:
        found = path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read {path}: {problem}") from None
    if not found:
        raise ConfigError(f"{path} is empty; put the secret in it")
    return found
