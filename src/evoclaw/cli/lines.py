"""Lines that a person types: edited, remembered, and pasted as one even if they are many."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import msgspec

from evoclaw.cli.places import make_private

KEPT = 1_000
"""Lines that are remembered."""
PASTE = 0.02
"""Seconds within which a further line belongs to the same paste: nobody types that fast."""
MORE = "… "


class Typist:
    """Reads messages at a terminal; what was said before can be called back."""

    def __init__(self, history: Path) -> None:
        self._history = history
        self._editor = _editor()
        if self._editor is not None:
            for text in remembered(history):
                self._editor.add_history(text)

    def read(self, prompt: str) -> str | None:
        """One message; a line that ends in a backslash goes on. None when there are no more."""
        try:
            text = input(prompt)
            while text.endswith("\\") or _more_is_there():
                text = text.removesuffix("\\") + "\n" + input(MORE if text.endswith("\\") else "")
        except EOFError:
            return None
        return text

    def remember(self, text: str) -> None:
        """Keep a message to be called back; one that begins with a blank is not kept."""
        if not text.strip() or text[0].isspace():
            return
        if self._editor is not None:
            self._editor.add_history(text)
        remember(self._history, text)


def remembered(path: Path) -> list[str]:
    """What was typed before; a line that cannot be read is passed over."""
    found: list[str] = []
    with suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines()[-KEPT:]:
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line, type=str))
    return found


def remember(path: Path, text: str) -> None:
    """Append one message, for its owner's eyes alone; now and then the oldest are let go."""
    make_private(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "ab") as file:
        file.write(msgspec.json.encode(text) + b"\n")
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) > 2 * KEPT:
        new = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(new, flags | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(lines[-KEPT:])
        new.replace(path)


def _more_is_there() -> bool:
    return bool(select.select([sys.stdin], [], [], PASTE)[0])


def _editor() -> ModuleType | None:
    """Line editing, where this Python has it."""
    try:
        import readline
    except ImportError:
        return None
    readline.set_auto_history(False)
    # A paste comes as one text, whatever lines it has.
    readline.parse_and_bind("set enable-bracketed-paste on")
    return readline
