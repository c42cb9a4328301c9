"""Tells systemd how we are, when it is systemd that started us."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

READY, RELOADING, STOPPING = "READY=1", "RELOADING=1", "STOPPING=1"


def notify(*said: str, env: Mapping[str, str] | None = None) -> bool:
    """Say something in systemd's words, such as `READY`; False if nobody listens.

    A listener that is gone is no trouble of ours: what we do does not depend on it.
    """
    place = (os.environ if env is None else env).get("NOTIFY_SOCKET", "")
    if not place.startswith(("/", "@")):
        return False
    address = f"\0{place[1:]}" if place.startswith("@") else place
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(1.0)
        try:
            sender.connect(address)
            sender.sendall("\n".join(said).encode())
        except OSError:
            return False
    return True
