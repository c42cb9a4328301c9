"""A whole service over real stores and a scripted model, reached over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import ClientSession
from litestar import Litestar

from evoclaw.api.app import create_app
from evoclaw.api.dependencies import ApiDependencies, ReloadResult
from evoclaw.api.server import serving
from evoclaw.api.settings import ServerSettings
from evoclaw.config.toml_edit import update_values
from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON, user
from evoclaw.core.ports import Policy, Ports, Provider
from evoclaw.core.state import new_run
from evoclaw.evolution.campaign_status import Campaigns
from evoclaw.evolution.cases import CaseFile, CaseFolder
from evoclaw.evolution.evaluation import CaseRun, OpenRun
from evoclaw.evolution.evaluation_service import EvaluationService
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_audit import LineageAudit
from evoclaw.evolution.recorded_results import RecordedResults
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.approvals import ApprovalSettings
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.shared_stops import StopRegistry
from evoclaw.governance.stops import StopFile, Stops
from evoclaw.observe.audit.service import AuditService, RefusedRequest
from evoclaw.observe.audit.writer import open_audit
from evoclaw.orchestrator.agents.memory import Memory
from evoclaw.orchestrator.fleet.genome_rollout import GenomeRollouts
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.orchestrator.overview.metrics import MetricsReader
from evoclaw.orchestrator.overview.model_checks import ModelChecks
from evoclaw.orchestrator.people.access import AccessControl, TokenVerifier
from evoclaw.orchestrator.people.approvals import CallApprovals
from evoclaw.orchestrator.people.questions import Questions
from evoclaw.orchestrator.people.ratings import RunRatings
from evoclaw.orchestrator.receipts.archive import ReceiptArchive
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.providers.scripted import Scripted, says
from evoclaw.skills.registry import SkillRegistry
from evoclaw.store import evaluations as evaluation_store
from evoclaw.store import genome_rollouts as rollout_store
from evoclaw.store import genomes as genome_store
from evoclaw.store import memory as memory_store
from evoclaw.store import notifications as notification_store
from evoclaw.store.calls import receipts as receipt_store
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.calls.receipts import ReceiptStore
from evoclaw.store.databases.database import Database
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.governance import approvals as approval_store
from evoclaw.store.governance import ledger as ledger_store
from evoclaw.store.governance import tokens as token_store
from evoclaw.store.governance.approvals import ApprovalStore
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.store.governance.tokens import TokenStore
from evoclaw.store.memory import MemoryStore
from evoclaw.store.metrics import tables as metrics_tables
from evoclaw.store.metrics.store import MetricsStore
from evoclaw.store.runs import queue as queue_store
from evoclaw.store.sessions import canvases as canvas_store
from evoclaw.store.sessions import ratings as rating_store
from evoclaw.store.sessions import tables as session_store
from evoclaw.store.sessions.canvases import StoredCanvases
from evoclaw.store.sessions.ratings import RatingStore
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.store.workflows import tables as workflow_store
from evoclaw.store.workflows.workflows import WorkflowStore
from evoclaw.tools.define import tool
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.question import question
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.trust.pairing import Devices
from evoclaw.trust.receipts import DeviceKey
from evoclaw.wiring.pairing import edge_pairing
from evoclaw.wiring.settings_file import agent_definition_file
from evoclaw.workflows.catalogue import Catalogue
from evoclaw.workflows.definition import AgentStep, ApprovalStep, Workflow
from evoclaw.workflows.scripted import ScriptedAgents, ScriptedTools
from evoclaw.workflows.workflows import Workflows
from tests.support.service_policy import machine_policies

ALL = frozenset({"*"})
AGENT = Agent("helper", "scripted/model", "You help.", ALL)
LIMIT = 20.0
SCHEMAS = (
    session_store.SCHEMA,
    approval_store.SCHEMA,
    queue_store.SCHEMA,
    receipt_store.SCHEMA,
    ledger_store.SCHEMA,
    token_store.SCHEMA,
    memory_store.SCHEMA,
    workflow_store.SCHEMA,
    metrics_tables.SCHEMA,
    canvas_store.SCHEMA,
    notification_store.SCHEMA,
    rating_store.SCHEMA,
    genome_store.SCHEMA,
    evaluation_store.SCHEMA,
    rollout_store.SCHEMA,
)
WORKFLOW = Workflow(
    "greet",
    (
        ApprovalStep("ask", message="May I greet?"),
        AgentStep("hello", agent="greeter", message="Say hello."),
    ),
    description="Greets, if it may.",
)


class Answer:
    """What came back over the wire."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> JSON:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Client:
    """Asks as the bearer of one token."""

    def __init__(self, http: ClientSession, url: str, token: str) -> None:
        self.http, self.url, self.token = http, url, token

    def headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        shown = {"authorization": f"Bearer {self.token}"} if self.token else {}
        return {**shown, **(more or {})}

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(
            method, self.url + path, json=body, headers=self.headers(more)
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, **headers)

    async def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return await self.ask("POST", path, {} if body is None else body, **headers)

    async def until(self, path: str, key: str, value: str) -> JSON:
        """Look again and again until a field says something."""
        async with asyncio.timeout(LIMIT):
            while True:
                found = (await self.get(path)).json
                if found.get(key) == value:
                    return found
                await asyncio.sleep(0.02)


class ServiceHarness:
    """What a test's service is made of."""

    def __init__(self, database: Database, folder: Path, provider: Provider, rules: Policy) -> None:
        self.database, self.folder = database, folder
        self.provider, self.rules = provider, rules
        self.ran: list[str] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.refusals: list[RefusedRequest] = []
        store = SessionStore(database)
        approvals = ApprovalStore(database)
        self.approvals = CallApprovals(approvals, ApprovalSettings(nobody="wait"))
        self.ledger = StoredLedger(database)
        key = DeviceKey(bytes(32))
        self.genomes = GenomeLineage(
            genome_store.GenomeStore(database), key.public_key, key.sign_genome
        )
        self.evaluations = EvaluationService(
            evaluation_store.EvaluationStore(database),
            self.genomes,
            CaseFolder(folder / "cases"),
            self._open_case_runs,
            stopped=self._stopped,
        )
        self.talks = Conversations(
            store,
            {AGENT.name: AGENT},
            self._equip,
            questions=Questions(store.questions, suspends_runs=True),
            approvals=approvals,
            ledger=self.ledger,
            attended=True,
            genomes=self.genomes,
        )
        self.runs = Runs(self.talks, agent=AGENT.name)
        self.tokens = TokenStore(database)
        self.memory = Memory(MemoryStore(database))
        self.workflows = Workflows(
            WorkflowStore(database),
            Catalogue(folder / "workflows", workflows=[WORKFLOW]),
            ScriptedAgents({"greeter": "hello"}),
            ScriptedTools({}),
            approved_by=self.approvals.step_approver,
        )
        self.audit = open_audit(folder)
        self.canvases = StoredCanvases(database, "the dashboard")
        self.ratings = RunRatings(RatingStore(database))
        self.receipts = ReceiptStore(database)
        self.judged = machine_policies(folder, self.ledger, self.audit)

    def _equip(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        executor = LocalExecutor((self._work(), question), given=given)
        approver = self.approvals.approver(session.id)
        return Ports(self.provider, executor, self.rules, approver)

    @asynccontextmanager
    async def _open_case_runs(self, agent: str, genome: Genome) -> AsyncGenerator[OpenRun]:
        """Runs of cases: the model says the prompt of the genome, once it may go on."""

        @asynccontextmanager
        async def open_run(case: CaseFile, workspace: Path) -> AsyncGenerator[CaseRun]:
            await self.may_go_on.wait()
            recorded = RecordedResults(case)
            ports = Ports(Scripted(says(genome.prompt or "nothing")), recorded, self.rules)
            state = new_run([user(case.case.message)])
            yield CaseRun(state, ports, LoopSettings(), FakeOps(), recorded)

        yield open_run

    def _stopped(self, agent: str) -> str:
        stop = Stops(StopFile(self.folder / "stops.json"), agent=agent).cancelling_stop()
        return "" if stop is None else stop.description

    def _work(self) -> BoundTool:
        @tool("shell", resources=(), timeout=60, idempotent=True)
        async def work(what: str = "") -> str:
            """Work."""
            await self.may_go_on.wait()
            self.ran.append(what)
            return f"worked on {what}"

        return work

    async def token(self, *scopes: str, tenant: str = "local", user: str = "ann") -> str:
        _, whole = await AccessControl(self.tokens).create("test", tenant, user, scopes or ("*",))
        return whole

    def parts(
        self,
        settings: ServerSettings,
        orchestrator: Orchestrator | None = None,
        others: TokenVerifier | None = None,
    ) -> ApiDependencies:
        rollouts = None
        if orchestrator is not None:
            store = rollout_store.RolloutStore(self.database)
            rollouts = GenomeRollouts(store, orchestrator)
        return ApiDependencies(
            access=AccessControl(self.tokens, external=others),
            settings=settings,
            runs=self.runs,
            conversations=self.talks,
            approvals=self.approvals,
            orchestrator=orchestrator,
            ledger=self.ledger,
            devices=Devices(self.folder),
            pairing=edge_pairing({"EVOCLAW_HOME": str(self.folder)}),
            audit=AuditService(self.audit, self.folder, {}),
            tools=lambda: [question.tool],
            skills=SkillRegistry([self.folder / "skills"]),
            stops=StopRegistry(StopFile(self.folder / "stops.json")),
            canvases=self.canvases,
            ratings=self.ratings,
            reload=lambda: ReloadResult((), (), ()),
            agent_definitions=agent_definition_file({"EVOCLAW_HOME": str(self.folder)}),
            edit_toml=update_values,
            model_checks=ModelChecks(lambda _: self.provider, lambda _: ""),
            policies=self.judged.explainer({AGENT.name: AGENT}),
            receipts=ReceiptArchive(self.receipts),
            memory=self.memory,
            workflows=self.workflows,
            genomes=self.genomes,
            lineage_audit=LineageAudit(genome_store.GenomeStore(self.database), self.audit),
            genome_rollouts=rollouts,
            campaigns=Campaigns(
                self.genomes,
                CaseFolder(self.folder / "cases"),
                lambda name: self.talks.agents[name].evolution,
                stopped=self._stopped,
                has_sessions=lambda tenant: self.talks.store.of(tenant).is_used(),
            ),
            cases=CaseFolder(self.folder / "cases"),
            evaluations=self.evaluations,
            metrics=lambda: "evoclaw_test 1\n",
            metrics_reader=MetricsReader(MetricsStore(self.database)),
            checks={"store": self._check},
            on_refused=self.refusals.append,
        )

    async def _check(self) -> str:
        await self.database.read(lambda c: c.execute("SELECT 1").fetchone())
        return ""


@asynccontextmanager
async def database(folder: Path) -> AsyncGenerator[Database]:
    """One database with everything of a service."""
    opened = await open_database(folder / "evoclaw.db", SCHEMAS, durable=False)
    try:
        yield opened
    finally:
        await opened.close()


class RunningService:
    """A service that is up."""

    def __init__(self, house: ServiceHarness, app: Litestar, url: str, http: ClientSession) -> None:
        self.house, self.app, self.url, self._http = house, app, url, http

    def client(self, token: str) -> Client:
        return Client(self._http, self.url, token)

    async def client_with(self, *scopes: str, tenant: str = "local", user: str = "ann") -> Client:
        return self.client(await self.house.token(*scopes, tenant=tenant, user=user))


@asynccontextmanager
async def build_service(
    folder: Path,
    provider: Provider | None = None,
    *,
    settings: ServerSettings | None = None,
    rules: Policy | None = None,
    others: TokenVerifier | None = None,
    fleet: Orchestrator | None = None,
) -> AsyncGenerator[tuple[ServiceHarness, Litestar]]:
    """The house and its application, without a socket; by default its fleet has no edges."""
    chosen = settings or ServerSettings(port=0)
    async with database(folder) as opened:
        house = ServiceHarness(
            opened, folder, provider or Scripted(says("done")), rules or Autonomy(Level.FULL)
        )
        async with await CommandStore.open(folder / "commands.db") as commands:
            orchestrator = fleet or Orchestrator(MemoryLink(MemoryBroker()), commands)
            try:
                yield house, create_app(house.parts(chosen, orchestrator, others))
            finally:
                house.audit.close()


@asynccontextmanager
async def running_service(
    folder: Path,
    provider: Provider | None = None,
    *,
    settings: ServerSettings | None = None,
    rules: Policy | None = None,
    others: TokenVerifier | None = None,
    fleet: Orchestrator | None = None,
    limit: float | None = LIMIT * 3,
) -> AsyncGenerator[RunningService]:
    """The house on a real socket; for so many seconds at most."""
    chosen = settings or ServerSettings(port=0, stop_within_s=1)
    async with (
        asyncio.timeout(limit),
        build_service(
            folder, provider, settings=chosen, rules=rules, others=others, fleet=fleet
        ) as (house, app),
        house.runs.serving(),
        house.workflows.serving(),
        house.evaluations.serving(alone=True),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LIMIT)) as http,
        serving(app, chosen) as url,
    ):
        yield RunningService(house, app, url, http)
