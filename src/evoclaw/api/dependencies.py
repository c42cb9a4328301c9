"""The dependencies of the HTTP routes, which the composition root builds."""

from __future__ import annotations

from asyncio import Lock, Semaphore
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec import Struct

from evoclaw.api.settings import ServerSettings
from evoclaw.core.canvases import Canvases
from evoclaw.core.ledgers import Ledger
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Tool, UnavailableTool
from evoclaw.evolution.campaign_status import Campaigns
from evoclaw.evolution.cases import CaseFolder
from evoclaw.evolution.evaluation_service import EvaluationService
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_audit import LineageAudit
from evoclaw.governance.shared_stops import StopRegistry
from evoclaw.observe.audit.service import AuditService, RefusedRequest
from evoclaw.orchestrator.agents.definition_file import AgentDefinitionFile
from evoclaw.orchestrator.agents.memory import Memory
from evoclaw.orchestrator.agents.policy_explainer import PolicyExplainer
from evoclaw.orchestrator.fleet.genome_rollout import GenomeRollouts
from evoclaw.orchestrator.fleet.pairing import EdgePairing
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.orchestrator.overview.damage import DamageReports
from evoclaw.orchestrator.overview.metrics import MetricsReader
from evoclaw.orchestrator.overview.model_checks import ModelChecks
from evoclaw.orchestrator.overview.readiness import ReadinessCheck
from evoclaw.orchestrator.people.access import AccessControl
from evoclaw.orchestrator.people.approvals import CallApprovals
from evoclaw.orchestrator.people.ratings import RunRatings
from evoclaw.orchestrator.receipts.archive import ReceiptArchive
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.skills.registry import SkillRegistry
from evoclaw.trust.pairing import Devices
from evoclaw.workflows.workflows import Workflows

EditToml: TypeAlias = Callable[[str, Mapping[tuple[str, ...], JSON]], str]


def ignore_refusal(refusal: RefusedRequest) -> None:
    """The default of `on_refused`: only the counters and the log have it."""


def ignore_request(method: str, route: str, status: int, seconds: float) -> None:
    """The default of `on_response`: records nothing."""


def no_image_problem(agent: str, model: str) -> str:
    """The default of `image_problem`: every model sees images."""
    return ""


class ReloadResult(Struct, frozen=True):
    """What changed when the settings file was read again."""

    changed: tuple[str, ...]
    """Tables that new runs use from now on."""
    needs_restart: tuple[str, ...]
    """Tables that take effect when `evoclaw up` is started again."""
    kept_by_edge: tuple[str, ...]
    """Changed tables that the edge of `evoclaw up` uses as they were until then."""


@dataclass(frozen=True, kw_only=True)
class ApiDependencies:
    """The dependencies of the routes. A route whose dependency is None answers 503."""

    access: AccessControl
    """Authenticates tokens."""
    settings: ServerSettings = ServerSettings()
    runs: Runs | None = None
    conversations: Conversations | None = None
    """Sessions, questions and agents of one tenant; `of` gives those of another."""
    approvals: CallApprovals | None = None
    orchestrator: Orchestrator | None = None
    """The fleet."""
    devices: Devices | None = None
    """The paired edges."""
    pairing: EdgePairing | None = None
    """Invites and revokes edges."""
    ledger: Ledger | None = None
    audit: AuditService | None = None
    tools: Callable[[], Sequence[Tool]] | None = None
    """The available tools of this orchestrator."""
    operator_tools: Callable[[], Collection[str]] = tuple
    """The names of those that only runs of the operator's tenant are offered."""
    unavailable_tools: Callable[[], Sequence[UnavailableTool]] = tuple
    """The unavailable built-in tools of this orchestrator, each with the reason."""
    tool_problems: Callable[[], Mapping[str, str]] = dict
    """The skills, own tools and MCP servers that cannot be used, and why."""
    image_problem: Callable[[str, str], str] = no_image_problem
    """Why an agent, with a model that replaces its own, cannot see images; empty if it can."""
    skills: SkillRegistry | None = None
    stops: StopRegistry | None = None
    reload: Callable[[], ReloadResult] | None = None
    """Reads the settings file again."""
    agent_definitions: AgentDefinitionFile | None = None
    """The agents of the settings file, as text."""
    edit_toml: EditToml | None = None
    """Sets values in a TOML text by their paths, and keeps its comments; None removes one."""
    model_checks: ModelChecks | None = None
    embed: Callable[[Mapping[str, JSON]], Awaitable[bytes]] | None = None
    """Answers a request for embeddings; None if no model is configured for them."""
    canvases: Canvases | None = None
    ratings: RunRatings | None = None
    policies: PolicyExplainer | None = None
    receipts: ReceiptArchive | None = None
    """The signed receipts of devices."""
    replay_slots: Semaphore = field(default_factory=lambda: Semaphore(2))
    """Limits concurrent replays, forks and comparisons: each takes a processor."""
    memory: Memory | None = None
    """The memory of one user; `of` gives that of another."""
    workflows: Workflows | None = None
    genomes: GenomeLineage | None = None
    """The genomes of the agents, with their lineages."""
    lineage_audit: LineageAudit | None = None
    """Records the entries of the lineages."""
    genome_rollouts: GenomeRollouts | None = None
    """The roll-outs of genomes to edges."""
    campaigns: Campaigns | None = None
    """What the campaigns of the agents do next."""
    edge_genome_locks: dict[str, Lock] = field(default_factory=lambda: defaultdict[str, Lock](Lock))
    """By edge: one change of its genome at a time, so that each is recorded as it was made."""
    cases: CaseFolder | None = None
    """The cases for evaluations."""
    evaluations: EvaluationService | None = None
    """Runs evaluations in the background."""
    metrics: Callable[[], str | bytes | Awaitable[bytes]] | None = None
    """Renders all metrics in the Prometheus format."""
    on_response: Callable[[str, str, int, float], None] = ignore_request
    """Called for each response: method, route, status, and the seconds until it started."""
    damage: DamageReports | None = None
    """What was found damaged."""
    metrics_reader: MetricsReader | None = None
    """Reads metrics from stored records."""
    checks: Mapping[str, ReadinessCheck] = field(default_factory=dict[str, ReadinessCheck])
    """The readiness checks by name: store, broker, provider."""
    on_refused: Callable[[RefusedRequest], None] = ignore_refusal
    """Called for each refused request, for the audit log."""
    operator_tenant: str = "local"
    """The tenant that owns this machine: only it may see the fleet, the policies and the stops."""
    extra_routes: Sequence[Any] = ()
    """Further routes, such as those of channels and the dashboard."""
