"""A secret key in a file of its own, and how keys and signatures are written as text."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from secrets import token_hex

from evoclaw.core.errors import ConfigError

SEED = 32
"""Bytes of an Ed25519 key."""


def load_or_create_seed(path: Path, otherwise: str) -> bytes:
    """Read the key, or make one; of several processes that make one, all get the same.

    Args:
        path: Its file; nobody but its owner may read it.
        otherwise: What follows if the file is removed, for the one who has to decide.
    """
    try:
        if not path.exists():
            _make(path)
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"others may read the key {path}; say chmod 600, or remove it")
        seed = from_text(path.read_text("ascii").strip())
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"the key {path} cannot be used: {problem}; put a copy back, or remove the file"
            f"{otherwise}"
        ) from None
    if len(seed) != SEED:
        raise ConfigError(f"{path} holds no key; put a copy back, or remove the file")
    return seed


def to_text(data: bytes) -> str:
    """Bytes as base64url without its padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def from_text(text: str) -> bytes:
    """Read base64url, and only as `to_text` writes it: one text for each sequence of bytes."""
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if to_text(data) != text:
        raise ValueError("not base64url")
    return data


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(to_text(os.urandom(SEED)).encode() + b"\n")
            opened.flush()
            os.fsync(file)
        # Unlike a replacement this fails if somebody was quicker, and then his key is the key.
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        draft.unlink()
