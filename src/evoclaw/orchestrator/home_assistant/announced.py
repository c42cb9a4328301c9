"""What this orchestrator announced to Home Assistant, so that it can be removed after a restart."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.home_assistant.payloads import agent_device, edge_device
from evoclaw.transport.private_files import write_private
from evoclaw.transport.topics import HomeAssistantTopic, discovery_topic, home_assistant_topic

ANNOUNCED_FILE = "home_assistant.json"
"""In the data folder."""


class Announced(Struct, frozen=True):
    """The devices that have retained messages on the broker."""

    prefix: str
    account: str = ""
    edges: dict[str, tuple[str, ...]] = {}
    """The edges, each with the names of the figures that it reports."""
    agents: tuple[str, ...] = ()

    def topics(self) -> list[str]:
        """The topics with a retained message."""
        devices = [*map(edge_device, self.edges), *map(agent_device, self.agents)]
        found = [discovery_topic(self.prefix, device) for device in devices]
        states = (HomeAssistantTopic.STATE, HomeAssistantTopic.RESULT)
        return found + [home_assistant_topic(edge, kind) for edge in self.edges for kind in states]


def read_announced(folder: Path) -> Announced | None:
    """What was announced before; None if nothing was."""
    path = folder / ANNOUNCED_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Announced)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as problem:
        raise ConfigError(
            f"cannot read {path}: {problem}; delete the file, and remove devices that stay in Home "
            "Assistant there"
        ) from None


def write_announced(folder: Path, announced: Announced | None) -> None:
    """Store what is announced; None deletes the file."""
    if announced is None:
        (folder / ANNOUNCED_FILE).unlink(missing_ok=True)
    else:
        write_private(folder / ANNOUNCED_FILE, msgspec.json.encode(announced))
