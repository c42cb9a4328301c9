"""The command line that runs a command behind the egress relay, inside a sandbox."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path


def relay_command(argv: Sequence[str], socket: str, *, python: str = "") -> tuple[str, ...]:
    """The command line that runs `argv` with a port that leads to the proxy, inside the sandbox.

    Args:
        argv: The command to run.
        socket: The path of the proxy's socket inside.
        python: A Python 3.11 that is visible inside [default: the interpreter of this process,
            by its real path].
    """
    return (python or os.path.realpath(sys.executable), "-I", "-S", "-c", _source(), socket, *argv)


@cache
def _source() -> str:
    # Passed as text: EvoClaw's files are not visible inside.
    return Path(__file__).with_name("relay_program.py").read_text()
