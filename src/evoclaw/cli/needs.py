"""What the commands need built: the composition root's side of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from evoclaw.core.ports import Approver, Ports
    from evoclaw.edge.edge import Edge
    from evoclaw.governance.autonomy import Level
    from evoclaw.governance.pairing import Devices
    from evoclaw.orchestrator.orchestrator import Orchestrator


class Wiring(Protocol):
    """Who can build it; imports go down only, so it is handed in."""

    def local_ports(
        self,
        *,
        model: str | None,
        workspace: Path,
        level: Level,
        tools: Sequence[str] | None,
        approver: Approver,
        env: Mapping[str, str],
    ) -> AbstractAsyncContextManager[Ports]:
        """What a run on this machine is given."""
        ...

    def fleet_ports(
        self,
        *,
        model: str | None,
        on: str,
        level: Level,
        approver: Approver,
        env: Mapping[str, str],
        wait: float,
    ) -> AbstractAsyncContextManager[Ports]:
        """What a run is given whose calls go to edges."""
        ...

    def open_fleet(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[Orchestrator]:
        """An orchestrator, connected."""
        ...

    def open_edge(
        self, path: Path | None, env: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Edge]:
        """The edge that a file and the environment describe."""
        ...

    def bring_up(
        self,
        *,
        host: str,
        port: int,
        engine: str,
        agent_id: str | None,
        workspace: Path,
        model: str,
        tls: tuple[Path, Path, Path] | None,
        env: Mapping[str, str],
    ) -> AbstractAsyncContextManager[House]:
        """Broker, orchestrator and edge on this machine."""
        ...

    def invite(self, agent_id: str, seconds: float, env: Mapping[str, str]) -> Invited:
        """Make an invitation."""
        ...

    async def join(
        self,
        url: str,
        token: str,
        path: Path,
        capabilities: list[str],
        env: Mapping[str, str],
        *,
        ca_file: Path | None = None,
    ) -> str:
        """Join a fleet."""
        ...

    def devices(self, env: Mapping[str, str]) -> Devices:
        """The edges that joined."""
        ...

    def revoke(self, agent_id: str, env: Mapping[str, str]) -> None:
        """Shut an edge out."""
        ...


class Invited(Protocol):
    """What the owner of a new edge needs."""

    @property
    def url(self) -> str:
        """The broker's address."""
        ...

    @property
    def token(self) -> str:
        """Works once."""
        ...


class House(Protocol):
    """What `bring_up` brought up."""

    @property
    def url(self) -> str:
        """Where the broker is."""
        ...

    @property
    def orchestrator(self) -> Orchestrator:
        """The orchestrator."""
        ...
