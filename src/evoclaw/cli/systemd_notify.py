"""Notifies systemd of the state of this process (sd_notify)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

READY, RELOADING, STOPPING = "READY=1", "RELOADING=1", "STOPPING=1"


def notify_systemd(*messages: str, env: Mapping[str, str] | None = None) -> bool:
    """Send messages such as `READY` to systemd; False if it does not listen.

    Errors of the socket are ignored: the process does not depend on systemd.
    """
    path = (os.environ if env is None else env).get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(1.0)
        try:
            sender.connect(address)
            sender.sendall("\n".join(messages).encode())
        except OSError:
            return False
    return True
