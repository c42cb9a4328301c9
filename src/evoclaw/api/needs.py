"""What the routes need built: the composition root's side of the HTTP service."""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

from evoclaw.api.errors import NotGiven
from evoclaw.api.settings import ServerSettings
from evoclaw.core.ledgers import Ledger
from evoclaw.core.messages import JSON
from evoclaw.core.pipeline import DeclaredStep
from evoclaw.core.tools import Tool, UnavailableTool
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.orchestrator.overview.metrics import MetricsReader
from evoclaw.orchestrator.people.access import Access
from evoclaw.orchestrator.people.approvals import Approvals
from evoclaw.orchestrator.receipts.archive import ReceiptArchive
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.workflows.workflows import Workflows

T = TypeVar("T")


class Refusal(Struct, frozen=True):
    """Somebody was not let in, or asked for what is not theirs."""

    status: int
    method: str
    path: str
    address: str
    tenant: str = ""
    user: str = ""
    token: str = ""
    """Its id."""
    why: str = ""


class Device(Protocol):
    """An edge that joined."""

    @property
    def agent_id(self) -> str:
        """Its name."""
        ...

    @property
    def state(self) -> str:
        """Whether it may be used."""
        ...

    @property
    def approved(self) -> Mapping[str, str]:
        """The tools that may be used, each with the hash it was approved with."""
        ...

    @property
    def waiting(self) -> Mapping[str, str]:
        """The tools that wait for a person."""
        ...

    @property
    def surface(self) -> str:
        """A hash of all that is approved or waits: what a person looks at before approving."""
        ...


class Devices(Protocol):
    """The edges that joined, and who may still."""

    def all(self) -> Sequence[Device]:
        """All of them."""
        ...

    def get(self, agent_id: str) -> Device | None:
        """One of them."""
        ...

    async def approve(self, agent_id: str, seen: str = "") -> Device:
        """Let the tools be used that wait; an error if they are not those that were `seen`."""
        ...

    async def revoke(self, agent_id: str) -> None:
        """Shut an edge out."""
        ...

    def invite(self, agent_id: str, seconds: float) -> tuple[str, str]:
        """Let a new edge in: the broker's address, and a token that works once."""
        ...


class AuditBook(Protocol):
    """Who did what."""

    async def search(self, tenant: str, query: Mapping[str, JSON]) -> Sequence[dict[str, JSON]]:
        """The newest records of a tenant that fit, the oldest of them first."""
        ...

    async def verify(self) -> Mapping[str, JSON]:
        """Whether all of it is as it was written: `ok`, `findings`, and how much there is."""
        ...


class Tools(Protocol):
    """The tools of this machine."""

    def offered(self) -> Sequence[Tool]:
        """Those that can be used."""
        ...

    def absent(self) -> Sequence[UnavailableTool]:
        """Those that cannot."""
        ...


class SkillView(Struct, frozen=True, omit_defaults=True):
    """A skill: what it is for, and what it brings."""

    name: str
    version: str
    description: str
    digest: str
    approved: bool
    tools: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] | None = None
    """Those that it works with; None is all."""
    references: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    instructions: str = ""
    """Only when one skill is asked for."""


class SkillProblem(Struct, frozen=True):
    """A skill that cannot be used."""

    path: str
    reason: str
    refused: bool
    """False if it is only not for this machine."""


class Skills(Protocol):
    """The skills of this machine."""

    def all(self) -> Sequence[SkillView]:
        """Those that can be used."""
        ...

    def find(self, name: str) -> SkillView | None:
        """One of them, with its instructions."""
        ...

    def problems(self) -> Sequence[SkillProblem]:
        """Those that cannot."""
        ...


class StopView(Struct, frozen=True, omit_defaults=True):
    """Something that may not go on until a person says so."""

    kind: str
    """`all`, `agent`, `tool` or `network`."""
    name: str = ""
    """Of the agent, or the tool."""
    reason: str = ""
    by: str = ""
    at: float = 0.0


class Stops(Protocol):
    """The emergency stop."""

    def all(self) -> Sequence[StopView]:
        """What is stopped."""
        ...

    async def put(self, stop: StopView) -> None:
        """Stop something."""
        ...

    async def release(self, kind: str, name: str) -> StopView | None:
        """Let it go on; None if it was not stopped."""
        ...


class SheetView(Struct, frozen=True):
    """What a session shows on its canvas."""

    title: str
    format: Literal["html", "markdown"]
    content: str
    """Made by a model: show it where it can reach nothing."""
    at: float
    """When it was put there; Unix seconds."""


class Canvases(Protocol):
    """What sessions show."""

    async def shown(self, tenant: str, session_id: str) -> SheetView | None:
        """What a session shows now."""
        ...

    async def clear(self, tenant: str, session_id: str) -> None:
        """Show nothing any more."""
        ...


class RuleView(Struct, frozen=True):
    """One rule about what calls do."""

    name: str
    verdict: str
    """`allow`, `ask` or `deny`."""
    summary: str
    source: str
    """`shipped`, or the owner's file."""


class PolicyView(Struct, frozen=True):
    """What calls are judged by here."""

    level: str
    """How much the default agent may do by itself."""
    presets: tuple[str, ...]
    """The rules about information flow that there are; `settings` says which one holds."""
    rules: tuple[RuleView, ...]
    settings: dict[str, JSON]
    pipelines: dict[str, tuple[DeclaredStep, ...]] = {}
    """The steps that a call passes through, in order: on the orchestrator, and on an edge."""


class PolicyQuestion(Struct, frozen=True):
    """A call that somebody wants to know about; nothing is run, counted or put on record."""

    tool: str
    arguments: dict[str, JSON]
    agent: str = ""
    """Whose; the default agent's if empty."""
    level: str = ""
    """Instead of the agent's."""


class StepView(Struct, frozen=True):
    """What one policy says."""

    policy: str
    verdict: str
    code: str = ""
    reason: str = ""


class PolicyAnswer(Struct, frozen=True):
    """How a call would be judged, and by whom."""

    verdict: Literal["allow", "deny", "ask"]
    code: str
    reason: str
    """For people."""
    reason_for_model: str
    by: str
    """The policy that decides; empty if nothing speaks against the call."""
    steps: tuple[StepView, ...]
    """What each one says, in the order in which they are asked."""
    effects: dict[str, JSON]
    """What the call would do, as far as that can be told."""


class Policies(Protocol):
    """What calls are judged by."""

    async def shown(self) -> PolicyView:
        """The rules and settings that hold now."""
        ...

    async def explain(self, question: PolicyQuestion) -> PolicyAnswer | None:
        """Judge a call without running it; None if there is no such tool."""
        ...


class Remembers(Protocol):
    """What was remembered for one user."""

    async def search(
        self,
        query: str,
        level: Any = ...,
        top_k: int = ...,
        *,
        agent: str = ...,
        session_id: str = ...,
    ) -> Sequence[Any]:
        """What fits a query best, the best first; each a Struct."""
        ...

    async def forget(self, session_id: str) -> int:
        """Forget what was noted of a session; how many notes."""
        ...


Check = Callable[[], Awaitable[str]]
"""What is wrong with a part; empty when it works."""


def forget(refusal: Refusal) -> None:
    """Note a refusal nowhere but in the counts and the log."""


def uncounted(method: str, route: str, status: int, seconds: float) -> None:
    """Count a request nowhere."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What this process was built from. The routes of what is None answer 503."""

    access: Access
    """Who may come in."""
    settings: ServerSettings = ServerSettings()
    runs: Runs | None = None
    talks: Conversations | None = None
    """Sessions, questions and agents; of one tenant, and by `of` of any."""
    approvals: Approvals | None = None
    orchestrator: Orchestrator | None = None
    """The fleet."""
    devices: Devices | None = None
    ledger: Ledger | None = None
    audit: AuditBook | None = None
    tools: Tools | None = None
    skills: Skills | None = None
    stops: Stops | None = None
    canvases: Canvases | None = None
    policies: Policies | None = None
    receipts: ReceiptArchive | None = None
    """What devices signed."""
    replaying: Semaphore = field(default_factory=lambda: Semaphore(2))
    """How many runs are played again, forked or compared at once: it takes a processor."""
    memory: Callable[[str, str], Remembers] | None = None
    """What was remembered for a user of a tenant."""
    workflows: Workflows | None = None
    metrics: Callable[[], str | bytes | Awaitable[bytes]] | None = None
    """All figures, as Prometheus reads them."""
    counted: Callable[[str, str, int, float], None] = uncounted
    """Told of each answer: method, route, status, and the seconds until it began."""
    figures: MetricsReader | None = None
    """Those that stored records tell of."""
    checks: Mapping[str, Check] = field(default_factory=dict[str, Check])
    """By name, the parts without which nothing can be done: store, broker, provider."""
    refused: Callable[[Refusal], None] = forget
    """Told who was not let in, for the audit."""
    operator: str = "local"
    """The tenant of whoever has the machine: fleet, skills, stops are that one's to change."""
    routes: Sequence[Any] = ()
    """Further routes, as those of channels."""
    more: Mapping[type, object] = field(default_factory=dict[type, object])
    """What further routes need, by type."""

    def get(self, kind: type[T]) -> T:
        """What a further route needs; `NotGiven` if this process does not have it."""
        found = self.more.get(kind)
        if not isinstance(found, kind):
            raise NotGiven(f"{kind.__name__} is not available in this process")
        return found
