"""The devices of orchestrators that share a store: a change by one reaches all of them.

Each orchestrator has all devices in memory, as of its last refresh. A change is applied in the
store, to the stored device, so that orchestrators do not overwrite each other's changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from evoclaw.core.errors import ConfigError
from evoclaw.store.governance.devices import DeviceStore
from evoclaw.trust.pairing import DEVICES_FILE_NAME, Device, DeviceState

IMPORTED_SUFFIX = ".taken-in"
"""Appended to the name of a file whose devices were imported into the store."""
_DEVICE = msgspec.json.Decoder(Device)


class SharedDeviceRepository:
    """Devices in a shared store, with a copy in memory."""

    def __init__(self, rows: DeviceStore) -> None:
        self._rows, self._revision = rows, 0
        self._known: Mapping[str, Device] = {}

    def read(self) -> Mapping[str, Device]:
        """All devices by name, as of the last refresh."""
        return self._known

    async def refresh(self) -> None:
        """Read what other orchestrators changed."""
        revision, rows = await self._rows.since(self._revision)
        if revision > self._revision:
            new = {name: _DEVICE.decode(data) for name, data in rows.items()}
            self._revision, self._known = revision, {**self._known, **new}

    async def change(self, agent_id: str, work: Callable[[Device | None], Device | None]) -> None:
        """Replace a device with what `work` returns for it; None leaves it unchanged."""

        def encoded(data: bytes | None) -> bytes | None:
            after = work(None if data is None else _DEVICE.decode(data))
            return None if after is None else msgspec.json.encode(after)

        await self._rows.change(agent_id, encoded)
        await self.refresh()

    async def import_folder(self, folder: Path) -> None:
        """Import the devices of a folder, once; a device revoked on either side stays revoked."""
        file = folder / DEVICES_FILE_NAME
        try:
            content = file.read_bytes()
            found = msgspec.json.decode(content, type=dict[str, Device])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as problem:
            raise ConfigError(
                f"{file} cannot be read ({problem}); restore it from a backup"
            ) from None
        for device in found.values():
            await self.change(device.agent_id, lambda stored, own=device: _stricter(stored, own))
        file.replace(file.with_name(file.name + IMPORTED_SUFFIX))


def _stricter(stored: Device | None, own: Device) -> Device | None:
    """The device to store: the imported one if it is new or revoked; None keeps the stored one."""
    if stored is None:
        return own
    both = (stored.state, own.state)
    revoked = both[0] is not DeviceState.REVOKED and both[1] is DeviceState.REVOKED
    return own if revoked else None
