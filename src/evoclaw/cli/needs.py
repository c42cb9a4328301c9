"""What the commands need built: the composition root's side of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from evoclaw.core.events import Record
from evoclaw.core.state import RunState

if TYPE_CHECKING:
    from evoclaw.core.agent import LoopSettings
    from evoclaw.core.bound import BoundTool
    from evoclaw.core.ledgers import Ledger
    from evoclaw.core.ports import Approver, Policy, Ports
    from evoclaw.core.tools import Tool
    from evoclaw.edge.edge import Edge
    from evoclaw.governance.approvals import ApprovalSettings
    from evoclaw.governance.autonomy import Level
    from evoclaw.governance.shared_stops import StopBoard
    from evoclaw.governance.stops import StopFile
    from evoclaw.observe.audit.settings import AuditSettings
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.orchestrator.overview.metrics import MetricsReader
    from evoclaw.orchestrator.people.access import Access
    from evoclaw.orchestrator.people.approvals import Approvals
    from evoclaw.orchestrator.receipts.archive import ReceiptArchive
    from evoclaw.orchestrator.sessions.sessions import Conversations
    from evoclaw.skills.approvals import ApprovalFile
    from evoclaw.store.databases.moving import Manifest
    from evoclaw.tools.question import Person
    from evoclaw.trust.pairing import Devices


class Begun(Struct, frozen=True):
    """A run that is about to begin, or to go on."""

    state: RunState
    records: Sequence[Record] = ()
    """What happened before, if it goes on."""
    attended: bool = False
    """Whether a person can be asked, now or later."""
    quarantine: bool = False
    """Whether what outsiders wrote is kept behind handles."""


class ChannelFacts(Struct, frozen=True):
    """What is known of a channel."""

    name: str
    kind: str
    agent: str
    senders: tuple[str, ...]


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
        run: Begun,
        given: Mapping[type, object] | None = None,
    ) -> AbstractAsyncContextManager[Ports]:
        """What a run on this machine is given."""
        ...

    def open_conversations(
        self,
        *,
        model: str | None,
        workspace: Path,
        level: Level,
        tools: Sequence[str] | None,
        approver: Callable[[str], Approver],
        person: Person | None,
        settings: LoopSettings,
        session: str,
        attended: bool,
        env: Mapping[str, str],
    ) -> AbstractAsyncContextManager[Conversations]:
        """The sessions of this machine."""
        ...

    def open_approvals(
        self,
        env: Mapping[str, str],
        *,
        settings: ApprovalSettings | None = None,
        face: Approver | None = None,
        absent: str = ...,
    ) -> AbstractAsyncContextManager[Approvals]:
        """The approvals of this machine, with whoever is there now."""
        ...

    def open_ledger(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[Ledger]:
        """What was spent on this machine, by whom."""
        ...

    def open_receipts(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[ReceiptArchive]:
        """What devices signed."""
        ...

    def open_access(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[Access]:
        """The tokens of this machine, whether the service is up or not."""
        ...

    def open_figures(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[MetricsReader]:
        """What the stored records tell of, whether the service is up or not."""
        ...

    def channels(self, env: Mapping[str, str]) -> Sequence[ChannelFacts]:
        """The channels that are configured."""
        ...

    def add_user(self, name: str, env: Mapping[str, str]) -> str:
        """Make a person's account at our broker: its password."""
        ...

    def remove_user(self, name: str, env: Mapping[str, str]) -> bool:
        """Take a person's account away."""
        ...

    def open_moving(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[Moving]:
        """The store of this machine, to be taken elsewhere or brought here."""
        ...

    def settings_text(self, env: Mapping[str, str]) -> str:
        """Every setting of `evoclaw.toml` with its default, explained and commented out."""
        ...

    def audit_place(self, env: Mapping[str, str]) -> tuple[Path, AuditSettings]:
        """The data folder, and what was chosen about the audit."""
        ...

    def loop_settings(self, env: Mapping[str, str]) -> LoopSettings:
        """What bounds a run of whoever says nothing else."""
        ...

    def judges(self, workspace: Path, env: Mapping[str, str]) -> Judges:
        """What calls are judged by here."""
        ...

    def stop_files(self, env: Mapping[str, str]) -> Sequence[StopFile]:
        """The stops that runs here obey."""
        ...

    def open_stops(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[StopBoard]:
        """Where people stop things."""
        ...

    def stop_file(self, env: Mapping[str, str]) -> StopFile:
        """The stops of this machine."""
        ...

    async def model_at_hand(self, env: Mapping[str, str]) -> tuple[str, str]:
        """The model that a run would get, or how to get one."""
        ...

    def open_toolbox(
        self, workspace: Path, env: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Toolbox]:
        """The tools of this machine."""
        ...

    def skill_places(self, env: Mapping[str, str]) -> tuple[Path, ApprovalFile, dict[str, str]]:
        """Where the skills are, what was approved, and names that they may not use."""
        ...

    def fleet_ports(
        self,
        *,
        model: str | None,
        on: str,
        level: Level,
        approver: Approver,
        env: Mapping[str, str],
        run: Begun,
        wait: float,
    ) -> AbstractAsyncContextManager[Ports]:
        """What a run is given whose calls go to edges."""
        ...

    def ssh_ports(
        self,
        *,
        model: str | None,
        url: str,
        level: Level,
        approver: Approver,
        env: Mapping[str, str],
        run: Begun,
    ) -> AbstractAsyncContextManager[Ports]:
        """What a run is given whose calls go to another machine over SSH."""
        ...

    def skill_catalogue(self, env: Mapping[str, str]) -> str:
        """The skills there are, one line each, for a model."""
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
        api: Mapping[str, object] | None,
        env: Mapping[str, str],
    ) -> AbstractAsyncContextManager[House]:
        """Broker, orchestrator, service and edge on this machine."""
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

    def open_devices(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[Devices]:
        """The edges that joined."""
        ...

    def public_key(self, env: Mapping[str, str], file: str | None = None) -> str:
        """What edges know this orchestrator by, or whoever has the secret key in a file."""
        ...

    async def revoke(self, agent_id: str, env: Mapping[str, str], devices: Devices) -> None:
        """Shut an edge out."""
        ...


class Judges(Protocol):
    """What calls are judged by on this machine."""

    @property
    def policies(self) -> Sequence[Policy]:
        """In the order in which they are asked."""
        ...

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools there are."""
        ...

    @property
    def rules(self) -> Path | None:
        """The configured file of rules; None for those that are shipped."""
        ...

    @property
    def workspace(self) -> Path:
        """The folder that relative paths mean."""
        ...

    @property
    def home(self) -> Path:
        """The user's own folder."""
        ...

    @property
    def runs(self) -> Path:
        """Where runs are recorded."""
        ...


class Moving(Protocol):
    """What is kept, on its way out or in."""

    async def write(self, file: Path, *, tenant: str = "") -> Manifest:
        """Everything, or all of one tenant, into a new file."""
        ...

    async def read(self, file: Path, *, existing: Literal["refuse", "keep"] = ...) -> Manifest:
        """Everything from such a file: all of it, or nothing."""
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

    @property
    def api(self) -> str:
        """Where the service is; empty if there is none."""
        ...

    @property
    def live(self) -> int:
        """How many runs go on."""
        ...

    async def drain(self) -> None:
        """Begin no more runs, and let those that go on end, for a while."""
        ...

    def reload(self) -> str:
        """Read the settings again, and say what became of that."""
        ...


class Absent(Protocol):
    """A tool that is not offered."""

    @property
    def name(self) -> str:
        """The tool's name."""
        ...

    @property
    def why(self) -> str:
        """Why, and what to do about it."""
        ...


class Toolbox(Protocol):
    """The tools of a machine."""

    @property
    def tools(self) -> Sequence[BoundTool]:
        """Those that can be used."""
        ...

    @property
    def absent(self) -> Sequence[Absent]:
        """Those that cannot."""
        ...

    def others(self) -> Sequence[Tool]:
        """The tools of skills, of the owner's own files, and of MCP servers."""
        ...

    async def sandbox(self) -> Sequence[tuple[str, bool, str]]:
        """The sandbox engines: name, whether it can be relied on, and what there is to say."""
        ...

    def problems(self) -> Mapping[str, str]:
        """What of these cannot be used, and why."""
        ...
