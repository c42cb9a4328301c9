"""The text of a definition as people edit it: with a digest, and never with a secret."""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.redaction import Redactor


class DefinitionText(Struct, frozen=True):
    """The text of a definition."""

    text: str
    """TOML."""
    sha256: str
    """The digest of the text: saving needs it, so that no other change is lost."""


class InvalidDefinition(ConfigError):
    """The text cannot be saved; `line` and `setting` say where, the message says why."""


class DefinitionConflict(EvoClawError):
    """The definition is not as the caller saw it."""


class DefinitionNotFound(EvoClawError):
    """There is no text for this name."""


class DefinitionHidden(EvoClawError):
    """The text contains what looks like a secret."""


def shown_text(name: str, text: str) -> DefinitionText:
    """The text and its digest; `DefinitionHidden` if it contains what looks like a secret."""
    if has_secret(text):
        raise DefinitionHidden(
            f"The definition of {name!r} contains what looks like a secret, so it is not shown. "
            "Edit it in its file, and put the secret into the environment."
        )
    return DefinitionText(text, text_digest(text))


def check_new_text(text: str) -> None:
    """`InvalidDefinition` if a text contains what looks like a secret."""
    if has_secret(text):
        raise InvalidDefinition(
            "The text contains what looks like a secret. Put it into the environment instead."
        )


def check_digest(name: str, current: str | None, sha256: str) -> None:
    """`DefinitionConflict` unless the digest is that of the current text; empty: there is none."""
    if current is None and sha256:
        raise DefinitionConflict(f"{name!r} was removed since you loaded it. Load the list again.")
    if current is not None and not sha256:
        raise DefinitionConflict(f"{name!r} exists already. Choose another name.")
    if current is not None and text_digest(current) != sha256:
        raise DefinitionConflict(
            f"The file of {name!r} has changed since you loaded it. Load it again, then repeat "
            "your change."
        )


def has_secret(text: str) -> bool:
    """Whether a text contains what looks like a secret."""
    return Redactor().text(text) != text


def text_digest(text: str) -> str:
    """The SHA-256 of a text."""
    return sha256(text.encode()).hexdigest()
