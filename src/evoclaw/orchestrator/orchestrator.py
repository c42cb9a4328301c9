"""The orchestrator's connection to its edges: presence, commands, jobs and remote tools."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from evoclaw.core.calls import prepare
from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import LOCAL_PRINCIPAL, Principal
from evoclaw.core.messages import JSON, ToolCall, ToolResult
from evoclaw.core.tools import Context, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.executors.edge import EdgeExecutor, Grants, ungranted
from evoclaw.orchestrator.fleet.artifacts import fetch_artifact
from evoclaw.orchestrator.fleet.command_cleanup import CommandCleanup
from evoclaw.orchestrator.fleet.edge_call import EdgeCall
from evoclaw.orchestrator.fleet.edge_probe import EdgeProbe
from evoclaw.orchestrator.fleet.fleet import Fleet, Permit, PresenceChange, permit_all
from evoclaw.orchestrator.fleet.fleet_executor import EdgeAffinities, FleetExecutor
from evoclaw.orchestrator.fleet.jobs import EdgeJob, FleetJobs, find_job
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.fleet.model_files import (
    CHUNK_TIMEOUT_S,
    PushedModel,
    fetch_model,
    push_model,
)
from evoclaw.orchestrator.fleet.nested_calls import NestedCallReceiver
from evoclaw.orchestrator.fleet.report_receiver import ReportReceiver
from evoclaw.orchestrator.sanitizing import one_line
from evoclaw.providers.models.download import Progress
from evoclaw.providers.models.partial_file import PartialFile
from evoclaw.store.calls.commands import CommandStore, QueueFull
from evoclaw.transport.edge_queues import PROGRESS_TIMEOUT_S, PUBLISH_RETRY_DELAYS_S
from evoclaw.transport.link import Link
from evoclaw.transport.requests import Requests
from evoclaw.transport.wire import DEFAULT_JOB_TIMEOUT_S, Command, Outcome

DISCOVERY_QUIET_S = 1.2
"""Seconds without a change after which all online edges are assumed to have sent their hello."""
GATHER_POLL_INTERVAL_S = 0.02
"""Seconds between two checks for missing edges: a large fleet changes much more often."""


class EdgeOffline(EvoClawError):
    """The requested edge is not online."""

    def __init__(self, agent_id: str, online: Sequence[str]) -> None:
        names = ", ".join(online) or "none"
        super().__init__(f"edge {agent_id!r} is not online; online: {names}")


class Orchestrator:
    """The fleet of edges, and how to run tools, commands and jobs on them."""

    def __init__(
        self,
        link: Link,
        store: CommandStore,
        *,
        grants: Grants = ungranted,
        heartbeat: float = 30.0,
        permit: Permit = permit_all,
        refusal: Callable[[str], str] = lambda _: "",
        retry_delays: Sequence[float] = PUBLISH_RETRY_DELAYS_S,
        progress_timeout: float = PROGRESS_TIMEOUT_S,
    ) -> None:
        """Choose the parts.

        Args:
            link: The connection to the broker.
            store: Stores the commands.
            grants: Signs the commands.
            heartbeat: Seconds between two heartbeats of an edge.
            permit: Which of an edge's tools may be used.
            refusal: Why an edge may take no part, such as that it was revoked; empty if it may.
            retry_delays: Seconds until a command that no edge accepted is published again.
            progress_timeout: Seconds without a report after which an accepted command counts as
                lost.
        """
        self.fleet = Fleet(
            heartbeat_s=heartbeat, on_presence_change=self._notify_listeners, permit=permit
        )
        self._grants, self._store = grants, store
        self.requests = Requests(
            link,
            store,
            reachable=self.fleet.is_online,
            full=QueueFull,
            sign=self._sign,
            refusal=refusal,
            recognizes_repeats=self.fleet.guarantees_delivery,
            retry_delays=retry_delays,
            progress_timeout=progress_timeout,
        )
        self.report_receiver = ReportReceiver(
            link, self.fleet, self.requests, store, refusal=refusal
        )
        self.nested_calls = NestedCallReceiver(self.requests)
        """Runs calls of the models of edges."""
        self.report_receiver.on_call = self.nested_calls.received
        self._command_cleanup = CommandCleanup(store, self.requests)
        self._edge_probe = EdgeProbe(self.fleet, self.requests)
        self._affinities = EdgeAffinities()
        self.default_edge = ""
        """The edge that sessions work on unless another is named: that of `evoclaw up`."""
        self._listeners: list[Callable[[PresenceChange], None]] = []

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Stay connected while the block runs; retry while the broker is unreachable."""
        serving = asyncio.create_task(self._serve())
        try:
            yield
        finally:
            await self.requests.close()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.report_receiver.run())
            group.create_task(self._command_cleanup.run())
            group.create_task(self._edge_probe.run())

    def on_presence(self, listener: Callable[[PresenceChange], None]) -> None:
        """Call a listener whenever an edge comes online or goes offline."""
        self._listeners.append(listener)

    async def wait_for(self, agent_id: str, seconds: float, *, tools: bool = True) -> Member:
        """Wait until an edge is online and its tools are known; `EdgeOffline` after the timeout."""

        def ready() -> bool:
            return self._is_ready(agent_id) if tools else self.fleet.is_online(agent_id)

        try:
            async with asyncio.timeout(seconds):
                while not ready():
                    await self.fleet.wait_for_change()
        except TimeoutError:
            names = [member.agent_id for member in self.fleet.online()]
            raise EdgeOffline(one_line(agent_id), names) from None
        return self.fleet.member(agent_id)

    async def wait_until_settled(self, seconds: float) -> None:
        """Wait until at least one edge is online and no more come, but at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.fleet.online():
                    await self.fleet.wait_for_change()
                while True:
                    async with asyncio.timeout(DISCOVERY_QUIET_S):
                        await self.fleet.wait_for_change()

    async def wait_for_all(self, agents: Collection[str], seconds: float) -> None:
        """Wait until all named edges are online with known tools, but at most so many seconds."""
        missing = set(agents)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while missing := {agent for agent in missing if not self._is_ready(agent)}:
                    await self.fleet.wait_for_change()
                    await asyncio.sleep(GATHER_POLL_INTERVAL_S)

    def _is_ready(self, agent_id: str) -> bool:
        member = self.fleet.find(agent_id)
        return member is not None and member.online and member.is_known

    def edge(self, agent_id: str, *, queue: float = 60.0) -> EdgeExecutor:
        """The executor that runs tools on one edge."""

        def tools() -> Sequence[Tool]:
            member = self.fleet.find(agent_id)
            return member.tools if member is not None else ()

        return EdgeExecutor(agent_id, tools, self.requests, grants=self._grants, queue=queue)

    def edge_call(self, held: frozenset[str], *, home: str = "") -> EdgeCall:
        """The tool that calls any edge on behalf of an agent with these capabilities."""
        return EdgeCall(
            self.fleet,
            self.requests,
            held=held,
            grants=self._grants,
            nested_calls=self.nested_calls,
            home=home,
        )

    def delegated(
        self, excluded: Collection[str] = (), *, session: str = "", home: str = ""
    ) -> FleetExecutor:
        """The tools of all edges except these names.

        A call runs on the edge `home`, or on another edge if that one lacks the tool. Without
        `home`, the runs of one session keep to the same edges.
        """
        affinity = self._affinities.of(session) if session else None
        return FleetExecutor(
            self.fleet,
            self.edge,
            self.requests.agent_of,
            excluded=excluded,
            affinity=affinity,
            home=home,
        )

    async def start_job(
        self,
        agent_id: str,
        tool: str,
        arguments: dict[str, JSON],
        *,
        seconds: float = DEFAULT_JOB_TIMEOUT_S,
        idle: float | None = None,
        principal: Principal = LOCAL_PRINCIPAL,
    ) -> ToolResult:
        """Start a job on an edge; the details of the result have its id.

        Args:
            agent_id: The edge.
            tool: One of its tools.
            arguments: The arguments of the tool.
            seconds: How long the job may take, a day at most.
            idle: How long the job may go without output.
            principal: On whose behalf; only its tenant can see the job.
        """
        edge = self.edge(agent_id)
        asked = ToolCall("job", tool, msgspec.json.encode(arguments).decode())
        request_id = f"{secrets.token_hex(16)}.1.0.1"
        context = Context(principal=principal)
        tools = Toolset.of(edge.tools())
        call = prepare(asked, tools, request_id=request_id, context=context)
        if isinstance(call, ToolResult):
            return call
        return await edge.start(call, seconds=seconds, idle=idle)

    async def job(
        self, agent_id: str, job_id: str, *, tenant: str = LOCAL_PRINCIPAL.tenant
    ) -> EdgeJob:
        """The status of a job: its result if it has ended, else what its edge reports."""
        return await find_job(self._store.of(tenant), self.requests, agent_id, job_id)

    def jobs(self) -> FleetJobs:
        """The jobs of the fleet, as the tool `jobs` sees them."""
        return FleetJobs(self._store.of, self.requests)

    async def fetch(self, agent_id: str, handle: str, path: Path) -> int:
        """Copy a big output from an edge to a file; returns its size in bytes."""
        return await fetch_artifact(self.edge(agent_id), handle, path, self.requests.max_payload)

    async def fetch_model(
        self, agent_id: str, part: PartialFile, digest: str, *, size_bytes: int, progress: Progress
    ) -> None:
        """Copy an installed model file of an edge into a partial file; see `fetch_model`."""

        async def query(payload: dict[str, JSON]) -> Outcome:
            return await self.query(agent_id, "model_chunk", payload, CHUNK_TIMEOUT_S)

        await fetch_model(
            query,
            part,
            digest,
            size_bytes=size_bytes,
            max_message_bytes=self.requests.max_payload,
            progress=progress,
        )

    async def push_model(
        self,
        agent_id: str,
        path: Path,
        digest: str,
        *,
        name: str,
        progress: Progress,
        note: Callable[[str], None],
    ) -> PushedModel:
        """Copy a model file to an edge, which installs it; see `push_model`."""

        async def query(payload: dict[str, JSON]) -> Outcome:
            return await self.query(agent_id, "model_push", payload, CHUNK_TIMEOUT_S)

        return await push_model(
            query,
            path,
            digest,
            name=name,
            max_message_bytes=self.requests.max_payload,
            progress=progress,
            note=note,
        )

    async def query(
        self, agent_id: str, name: str, payload: dict[str, JSON] | None = None, seconds: float = 10
    ) -> Outcome:
        """Send an idempotent command and wait for its answer."""
        command = Command(name, payload or {}, f"{name}-{secrets.token_hex(8)}")
        return await self.requests.query(agent_id, command, seconds)

    def _sign(self, agent_id: str, command: Command) -> Command:
        return replace(command, grant=self._grants(agent_id, command, None))

    def _notify_listeners(self, change: PresenceChange) -> None:
        self.requests.on_presence(change.agent_id, online=change.online)
        for listener in self._listeners:
            listener(change)
