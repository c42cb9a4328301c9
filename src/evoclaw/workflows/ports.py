"""What workflows ask of others: agents' runs, and calls of tools. `wiring` joins them."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from msgspec import Struct

from evoclaw.core.labels import CLEAN, Label, Principal
from evoclaw.core.messages import JSON, ToolResult


class AgentCall(Struct, frozen=True, kw_only=True):
    """What an agent is asked."""

    run_id: str
    """Of its run: the same for the same asking, also after a restart."""
    agent: str
    message: str
    iterative: bool = True
    """With its tools, in the loop; false is one reply without any."""
    title: str = ""
    label: Label = CLEAN
    """Of what the message was made from."""


class AgentAnswer(Struct, frozen=True, kw_only=True):
    """How an agent's run ended."""

    ok: bool
    """Whether it completed."""
    output: dict[str, JSON] = {}
    text: str = ""
    reason: str = ""
    """Why it did not complete."""
    harmless: bool = False
    """Whether asking all over again does no harm, as when nothing was done yet."""
    label: Label = CLEAN
    """Of everything it saw."""


class Waiting(Struct, frozen=True):
    """It waits for a person, or for something else that takes its time."""

    reason: str
    again_s: float = 300.0
    """Seconds until it is asked for again, unless `Workflows.wake` is told before."""


class ToolAsked(Struct, frozen=True, kw_only=True):
    """One call of a tool."""

    request_id: str
    """The same for the same attempt, also after a restart."""
    tool: str
    arguments: dict[str, JSON]
    timeout_s: float | None = None
    """None is the tool's own."""
    resumed: bool = False
    """It was begun before a crash: whoever runs it may remember the request id."""
    label: Label = CLEAN
    """Of what the arguments were made from."""


class Nature(Struct, frozen=True):
    """Whether a tool may be asked again when nobody knows what became of a call."""

    harmless: bool = False
    """It only reads, or is idempotent: running it twice does no more than running it once."""
    remembered: bool = False
    """Whoever runs it remembers the request id, and answers instead of running it again."""


Ended: TypeAlias = AgentAnswer | Waiting
Done: TypeAlias = ToolResult | Waiting


class AgentRuns(Protocol):
    """Runs of agents, each known by its id; the orchestrator has them."""

    async def begin(self, who: Principal, call: AgentCall) -> Waiting | None:
        """Start a run; durable when it returns, and the same run when it is begun again.

        `Waiting` if it cannot be begun just now; an `EvoClawError` if it never can.
        """
        ...

    async def result(self, tenant: str, run_id: str) -> Ended:
        """Await a run's end; `Waiting` as soon as it waits for a person."""
        ...

    async def cancel(self, tenant: str, run_id: str) -> None:
        """Have a run end; nothing happens if there is none, or it has ended."""
        ...


class ToolCalls(Protocol):
    """Calls of tools, judged, limited and recorded as those of an agent are."""

    def nature(self, who: Principal, tool: str) -> Nature:
        """What may be done again; nothing may with a tool that is not known."""
        ...

    async def execute(self, who: Principal, asked: ToolAsked) -> Done:
        """Judge and run one call; `Waiting` if a person must be asked first and nothing was run.

        When its task is cancelled, nothing of the call may go on here, unless it is remembered:
        then it may, and whoever goes on asks for it again with the same request id.
        """
        ...

    async def cancel(self, tenant: str, request_id: str) -> None:
        """Have a call end that goes on elsewhere; nothing happens if there is none."""
        ...
