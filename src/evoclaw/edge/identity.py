"""Who a device is, and how much it takes on."""

from __future__ import annotations

import secrets

from msgspec import Struct, field


class Identity(Struct, frozen=True):
    """Who speaks. The boot id tells this process from the ones before it."""

    agent_id: str
    agent_type: str = ""
    summary: str = ""
    """The one line it says of itself."""
    client_id: str = ""
    """Its name at the broker, if that is not its id."""
    boot_id: str = field(default_factory=lambda: secrets.token_hex(8))


class Limits(Struct, frozen=True):
    """How much at once, and for how long."""

    concurrency: int = 4
    queue: int = 100
    """Calls that may wait beside those that run; the next one is refused at once."""
    heartbeat: float = 30.0
    """Seconds between two signs of life."""
    output_bytes: int = 64 * 1024
    """What a report holds of one result; more stays on the device."""
    dedupe_seconds: float = 86_400.0
    dedupe_most: int = 100_000
