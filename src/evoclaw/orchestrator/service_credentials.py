"""Settings with which channels and notifiers log in at services: their secrets and URLs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from evoclaw.core.errors import ConfigError


def check_secret(where: str, name: str, settings: Struct, *, optional: bool = False) -> None:
    """Raise `ConfigError` unless a secret has exactly one source, or none if it is optional.

    Args:
        where: The table, for error messages.
        name: The start of the names of the two settings, `_env` and `_file`.
        settings: The table with the settings.
        optional: Whether the secret may be missing.
    """
    given = [bool(getattr(settings, f"{name}_{kind}")) for kind in ("env", "file")]
    if all(given) or not (any(given) or optional):
        raise ConfigError(f"{where}: set exactly one of {name}_env and {name}_file")


def read_secret(owner: str, name: str, settings: Struct, env: Mapping[str, str]) -> str:
    """A secret from its environment variable or its file; empty if neither is set.

    Args:
        owner: What it belongs to, for error messages, such as "the channel 'phone'".
        name: The start of the names of the two settings, `_env` and `_file`.
        settings: The table with the settings.
        env: The environment variables.
    """
    variable: str = getattr(settings, f"{name}_env")
    path: Path | None = getattr(settings, f"{name}_file")
    what = f"the {name.replace('_', ' ')} of {owner}"
    if path is not None:
        where = str(path)
        try:
            found = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"cannot read {what} in {where}: {problem}") from None
    elif variable:
        found, where = env.get(variable, "").strip(), f"the environment variable {variable}"
    else:
        return ""
    if not found:
        raise ConfigError(f"{where} is empty; it must hold {what}")
    return found


def check_url(where: str, url: str) -> SplitResult:
    """The parts of a URL; raise `ConfigError` unless it is an HTTP URL without credentials."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid, parts = False, urlsplit("")
    if not valid:
        raise ConfigError(f"{where} must start with https:// or http:// and name a host")
    if parts.username or parts.password:
        raise ConfigError(f"{where} may not contain a password; use the settings for secrets")
    return parts
