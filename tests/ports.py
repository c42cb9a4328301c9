"""Ports for servers that are told where to listen, or come back to where they listened."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import cycle
from random import SystemRandom

PORTS = range(10_000, 20_000)
"""Below those that systems give to whoever asks for any, and below those of our own broker: what
is free now is free in a moment too, also while its server is down."""
SHARE = 500
"""Each process of the tests has so many for itself."""


def _own() -> Iterator[int]:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = PORTS.start + number * SHARE % len(PORTS)
    mine = list(range(first, first + SHARE))
    # Somebody else may run them too.
    begin = SystemRandom().randrange(SHARE)
    return cycle(mine[begin:] + mine[:begin])


_OWN = _own()


def free_port() -> int:
    """A port that nobody has, and that nobody else is given soon."""
    for _ in range(SHARE):
        port = next(_OWN)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("there is no free port")
