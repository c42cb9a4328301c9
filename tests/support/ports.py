"""Ports for servers that are told where to listen, or come back to where they listened."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

PORTS = range(10_000, 20_000)
"""Below those that systems give to whoever asks for any, and below those of our own broker: what
is free now is free in a moment too, also while its server is down."""


# A byte for each port: locked by the process that has it until that process is gone, so that tests
# which run at the same time have different ones.
_PATH = Path(tempfile.gettempdir(), f"evoclaw-test-ports-{os.geteuid()}")
_REGISTER = os.open(_PATH, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
_GIVEN: set[int] = set()
"""A process is not kept out by its own locks."""


def free_port() -> int:
    """A port that nobody has, and that no other test is given."""
    for _ in range(1_000):
        port = SystemRandom().choice(PORTS)
        if port in _GIVEN:
            continue
        with suppress(OSError), socket.socket() as probe:
            fcntl.lockf(_REGISTER, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            probe.bind(("127.0.0.1", port))
            _GIVEN.add(port)
            return port
    raise OSError("there is no free port")
