"""Adapters between the API and this machine: devices, audit, tools, skills, stops, canvases."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.trust.pairing import Device, Devices


@dataclass(frozen=True, slots=True)
class DevicesAdapter:
    """The edges that joined, for the API."""

    devices: Devices
    env: Mapping[str, str]

    def all(self) -> Sequence[Device]:
        """Every known edge."""
        return self.devices.all()

    def get(self, agent_id: str) -> Device | None:
        """One edge; None if it is unknown."""
        return self.devices.get(agent_id)

    async def approve(self, agent_id: str, seen: str = "") -> Device:
        """Approve the pending tools of an edge; an error if they differ from those `seen`."""
        return await self.devices.approve(agent_id, time.time(), seen=seen)

    async def revoke(self, agent_id: str) -> None:
        """Revoke an edge: remove its broker account and the approval of its tools."""
        from evoclaw.wiring.pairing import revoke_edge

        await revoke_edge(agent_id, self.env, self.devices)

    def invite(self, agent_id: str, seconds: float) -> tuple[str, str]:
        """Invite an edge; returns the broker's address, and a token that works once."""
        from evoclaw.wiring.pairing import invite_edge

        invited = invite_edge(agent_id, seconds, self.env)
        return invited.url, invited.token
