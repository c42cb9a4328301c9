"""The devices of several orchestrators that share a store: known to all when one has changed them.

Each has all of them in memory, as of its last look. What is changed is changed in the store, from
what is there, so that a word of one is never overwritten by another who did not know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from evoclaw.core.errors import ConfigError
from evoclaw.trust.pairing import DEVICES, Device, DeviceState

TAKEN_IN = ".taken-in"
"""After the name of a file whose devices are in the store."""
_DEVICE = msgspec.json.Decoder(Device)


class Rows(Protocol):
    """A store of devices."""

    async def since(self, revision: int) -> tuple[int, Mapping[str, bytes]]:
        """The last revision, and by name what changed after another one."""
        ...

    async def change(self, agent_id: str, work: Callable[[bytes | None], bytes | None]) -> None:
        """Have one as `work` makes it of what it is; None leaves it."""
        ...


class SharedBook:
    """Devices in a store."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._revision = rows, 0
        self._known: Mapping[str, Device] = {}

    def read(self) -> Mapping[str, Device]:
        """All of them by name, as last seen."""
        return self._known

    async def look(self) -> None:
        """See what others changed."""
        revision, rows = await self._rows.since(self._revision)
        if revision > self._revision:
            new = {name: _DEVICE.decode(data) for name, data in rows.items()}
            self._revision, self._known = revision, {**self._known, **new}

    async def change(self, agent_id: str, work: Callable[[Device | None], Device | None]) -> None:
        """Have one device as `work` makes it of what it is; None leaves it."""

        def on(data: bytes | None) -> bytes | None:
            after = work(None if data is None else _DEVICE.decode(data))
            return None if after is None else msgspec.json.encode(after)

        await self._rows.change(agent_id, on)
        await self.look()

    async def take_in(self, folder: Path) -> None:
        """Move the devices of a folder here, once; who was revoked anywhere is revoked."""
        file = folder / DEVICES
        try:
            content = file.read_bytes()
            found = msgspec.json.decode(content, type=dict[str, Device])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as problem:
            raise ConfigError(f"{file} cannot be read ({problem}); put a copy back") from None
        for device in found.values():
            await self.change(device.agent_id, lambda there, own=device: _stricter(there, own))
        file.replace(file.with_name(file.name + TAKEN_IN))


def _stricter(there: Device | None, own: Device) -> Device | None:
    """What a device is to be that was known here and perhaps there; None as it is there."""
    if there is None:
        return own
    both = (there.state, own.state)
    revoked = both[0] is not DeviceState.REVOKED and both[1] is DeviceState.REVOKED
    return own if revoked else None
