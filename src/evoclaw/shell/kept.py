"""Commands that were read before: their text, the folder and the home decide, and nothing else."""

from __future__ import annotations

from functools import lru_cache

from evoclaw.shell.shapes import Effects
from evoclaw.shell.shell import read_command

MOST_KEPT, LONGEST_KEPT = 256, 1_024
"""Commands that are not read again, and the longest of them."""

_read_again = lru_cache(MOST_KEPT)(read_command)


def read_kept(text: str, cwd: str, home: str) -> Effects:
    """What a command would do when bash runs it in a folder; where its paths lead is not in it."""
    read = _read_again if len(text) <= LONGEST_KEPT else read_command
    return read(text, cwd, home)


def forget_commands() -> None:
    """Read every command anew from now on; what comes out is the same."""
    _read_again.cache_clear()
