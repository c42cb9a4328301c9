"""The messages that were typed in a chat, in a file that only their author may read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from evoclaw.cli.data_folder import make_private

MAX_HISTORY_LINES = 1_000
"""Messages in the history file."""


def read_history(path: Path) -> list[str]:
    """The messages of the history file; skips lines that cannot be read."""
    messages: list[str] = []
    with suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines()[-MAX_HISTORY_LINES:]:
            with suppress(msgspec.DecodeError):
                messages.append(msgspec.json.decode(line, type=str))
    return messages


def append_history(path: Path, text: str) -> None:
    """Append one message to a file that only its owner may read; drops the oldest at times."""
    make_private(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "ab") as file:
        file.write(msgspec.json.encode(text) + b"\n")
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) > 2 * MAX_HISTORY_LINES:
        new = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(new, flags | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(lines[-MAX_HISTORY_LINES:])
        new.replace(path)
