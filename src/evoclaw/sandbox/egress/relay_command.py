"""How a command inside a cage gets at the egress proxy."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path


def relayed(argv: Sequence[str], socket: str, *, python: str = "") -> tuple[str, ...]:
    """The command line that runs `argv` with a way to the proxy; for inside of the cage.

    Args:
        argv: What to run.
        socket: The proxy's socket, as it is called inside.
        python: A Python 3.11 that is there inside; if not given, the one that runs us, by its
            real path.
    """
    return (python or os.path.realpath(sys.executable), "-I", "-S", "-c", _source(), socket, *argv)


@cache
def _source() -> str:
    # Handed over as text: our files are not there inside.
    return Path(__file__).with_name("relay_program.py").read_text()
