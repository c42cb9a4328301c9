"""The user's editor: a text is edited in the program that they chose."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
from pathlib import Path

from evoclaw.core.errors import ConfigError


async def edit_in_program(program: str, text: str, suffix: str) -> str:
    """Let a program edit a text in a file that only its owner may read; returns the new text.

    Args:
        program: The command, as in `EDITOR`.
        text: The text to start from.
        suffix: The ending of the file, by which the program may choose its colours.
    """
    path = await asyncio.to_thread(_write_draft, text, suffix)
    try:
        await _run(program, path)
        edited = await asyncio.to_thread(path.read_text, "utf-8", "replace")
    finally:
        await asyncio.to_thread(path.unlink, missing_ok=True)
    # Most editors end the last line of a file, which the text itself may not have.
    return edited if text.endswith("\n") else edited.removesuffix("\n")


def _write_draft(text: str, suffix: str) -> Path:
    descriptor, name = tempfile.mkstemp(prefix="evoclaw-", suffix=suffix)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)


async def _run(program: str, path: Path) -> None:
    try:
        editing = await asyncio.create_subprocess_exec(
            *shlex.split(program), str(path), stdout=sys.__stderr__, stderr=sys.__stderr__
        )
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"the editor {program!r} cannot be started: {problem}; set EDITOR to another one"
        ) from None
    if code := await editing.wait():
        raise ConfigError(f"the editor {program!r} ended with the code {code}; nothing changed")
