"""Secret keys in files, and base64url for keys and signatures."""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex

from evoclaw.core.encoding import decode_base64url, encode_base64url
from evoclaw.core.errors import ConfigError

SEED_BYTES = 32
"""Length of an Ed25519 seed."""


def load_or_create_seed(path: Path, consequence: str) -> bytes:
    """Read the key, or create it; processes that do so at the same time get the same key.

    Args:
        path: The key file; only its owner may read it.
        consequence: What to do after removing the file, for the error message.
    """
    try:
        if not path.exists():
            _create(path)
        if path.stat().st_mode & 0o077:
            raise ConfigError(
                f"the key file {path} is readable by other users; run `chmod 600 {path}`, or "
                "remove the file"
            )
        seed = decode_base64url(path.read_text("ascii").strip())
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"the key file {path} cannot be used: {problem}; restore it from a backup, or remove "
            f"it{consequence}"
        ) from None
    if len(seed) != SEED_BYTES:
        raise ConfigError(
            f"the key file {path} holds no key; restore it from a backup, or remove it{consequence}"
        )
    return seed


def _create(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(encode_base64url(os.urandom(SEED_BYTES)).encode() + b"\n")
            opened.flush()
            os.fsync(file)
        # Unlike rename, link fails if another process was faster; then its key is used.
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
