"""The stages of the gate over a real lineage, real runs of sessions, and a model with rules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from evoclaw.core.agent import Agent
from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.core.genome import CONFIGURED, Genome
from evoclaw.core.messages import Reply, SystemMessage, is_object, user
from evoclaw.core.ports import Ports, Request
from evoclaw.core.state import new_run
from evoclaw.evolution.approval import reject
from evoclaw.evolution.campaign import Propose, next_steps, spent_today
from evoclaw.evolution.candidates import (
    Candidate,
    CandidateState,
    Stage,
    StageResult,
    fold_candidates,
)
from evoclaw.evolution.cases import CaseFile
from evoclaw.evolution.engine import EvolutionEngine
from evoclaw.evolution.evaluation import CaseRun, OpenRun
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import ignore_entry
from evoclaw.evolution.proposals import (
    CampaignBudgetSpent,
    Proposal,
    Proposer,
    ProposerContext,
    SearchEnded,
)
from evoclaw.evolution.proposer_context import ProposerContexts
from evoclaw.evolution.proposers.reflection import ask_model
from evoclaw.evolution.real_runs import OPERATOR, RealRuns, RunComment
from evoclaw.evolution.recorded_results import RecordedResults
from evoclaw.evolution.stages import GateStages
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.orchestrator.agents.tuning import tune
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.providers.scripted import calls, says
from evoclaw.store.genomes import GenomeStore
from evoclaw.store.metrics.store import MetricsStore, MetricsWindow
from evoclaw.store.sessions.sessions import SessionStore
from evoclaw.tools.define import tool
from evoclaw.tools.fake import FakeOps
from evoclaw.wiring.store import all_schemas
from tests.support.campaigns import RuleModel, case_of, prompt_of
from tests.support.databases import Place
from tests.support.evolution_engines import AGENT, BETTER, KEY, ON
from tests.support.waiting import TIMEOUT_S

BRIEF: dict[str, Any] = {"prompt": "Say yes."}
executed: list[str] = []


@tool("file_read", effect="read")
async def look(what: str) -> str:
    """Look at something."""
    executed.append(what)
    return f"{what} is red"


def rule(request: Request) -> Reply:
    """Says yes if its instructions say so, and looks before if the user wants it."""
    said = [m.text for m in request.history if not isinstance(m, SystemMessage)]
    if "break" in prompt_of(request):
        return calls(("look", {"what": "again"}))  # without end
    if "look" in said[0] and len(said) == 1:
        return calls(("look", {"what": "the door"}))
    if "forecast" in said[0] and len(said) == 1:
        return calls(("weather", {"city": "Rome"}))
    return says("yes" if "Say yes" in prompt_of(request) else "perhaps")


def cases(count: int = 16) -> list[CaseFile]:
    return [case_of(f"v{n}", split="validation") for n in range(count)]


def has_an_idea(request: Request) -> Reply:
    return says("an idea")


async def at_once() -> None:
    """Before a run that waits for nothing."""


@dataclass
class Bench:
    """An agent with a lineage, sessions, and the stages over them."""

    lineage: GenomeLineage
    conversations: Conversations
    metrics: MetricsStore
    real_runs: RealRuns
    settings: AgentEvolution = ON
    cases: Sequence[CaseFile] = field(default_factory=cases)
    ratings: dict[str, RunComment] = field(default_factory=dict[str, RunComment])
    asked: list[str] = field(default_factory=list[str])
    answer: Callable[[Request], Reply] = has_an_idea
    """Of the reflecting model."""
    before_run: Callable[[], Awaitable[None]] = at_once
    """Awaited by each run of a case."""

    @property
    def stages(self) -> GateStages:
        return GateStages(
            AGENT, self.lineage, lambda: self.settings, static=self._static,
            open_runner=self.open_runner, cases=lambda: self.cases, real_runs=self.real_runs,
            clock=time.time,
        )  # fmt: skip

    @property
    def contexts(self) -> ProposerContexts:
        def provider(model: str) -> RuleModel:
            self.asked.append(model)
            return RuleModel(self.answer)

        return ProposerContexts(
            Agent(AGENT, "m"), self.lineage, lambda: self.settings, provider=provider,
            tools=lambda: [look.tool], tool_prompt=lambda: "{tools}", cases=lambda: self.cases,
            open_runner=self.open_runner, real_runs=self.real_runs, on_entry=ignore_entry,
            clock=time.time,
        )  # fmt: skip

    def engine(self, *proposers: Proposer) -> EvolutionEngine:
        stages = self.stages
        return EvolutionEngine(
            AGENT, self.lineage, lambda: self.settings, proposers=proposers,
            open_context=self.contexts.open, checks=stages.checks(), watch=stages.watch,
        )  # fmt: skip

    @asynccontextmanager
    async def open_runner(self, genome: Genome) -> AsyncGenerator[OpenRun]:
        @asynccontextmanager
        async def opened(case: CaseFile, workspace: Path) -> AsyncGenerator[CaseRun]:
            await self.before_run()
            agent, recorded = tune(Agent(AGENT, ""), genome), RecordedResults(case)
            ports = Ports(RuleModel(rule), recorded, Autonomy(Level.FULL))
            state = new_run([SystemMessage(agent.prompt), user(case.case.message)])
            yield CaseRun(state, ports, agent.settings, FakeOps(), recorded)

        yield opened

    async def run(self, message: str = "Is it?", session: str = "", tenant: str = OPERATOR) -> str:
        """One run of a real session; its id."""
        conversations = self.conversations.of(tenant)
        opened = await conversations.open(AGENT, session_id=session)
        records = [record async for record in conversations.send(opened.id, message)]
        return records[0].run_id

    async def propose(self, **patch: Any) -> None:
        await self.lineage.propose(AGENT, patch or BRIEF, by="numbers")

    async def candidate(self) -> Candidate:
        return list(fold_candidates(await self.lineage.history(AGENT)).values())[-1]

    async def judge(self, stage: Stage) -> StageResult:
        return await self.stages.checks()[stage](await self.candidate())

    async def decide(self, stage: Stage) -> StageResult:
        """Judge, and record the verdict as the engine does, until the stage is over."""
        for _ in range(30):
            result = await self.judge(stage)
            entries = await self.lineage.history(AGENT)
            await self.lineage.add_verdict(
                AGENT, (await self.candidate()).proposal, stage, passed=result.passed,
                after=len(entries), by="evoclaw", reason=result.reason, evidence=result.evidence,
            )  # fmt: skip
            if result.passed is not None:
                return result
        raise AssertionError("it never ends")

    async def pass_until(self, stage: Stage) -> None:
        for before in list(Stage)[: list(Stage).index(stage)]:
            entries = await self.lineage.history(AGENT)
            await self.lineage.add_verdict(
                AGENT, (await self.candidate()).proposal, before, passed=True,
                after=len(entries), by="x", evidence={"approval": "person"},
            )  # fmt: skip

    def _static(self, candidate: Candidate, old: Genome, new: Genome) -> StageResult:
        return StageResult(passed=old == CONFIGURED and bool(new.digest))


@asynccontextmanager
async def bench(place: Place, **settings: Any) -> AsyncGenerator[Bench]:
    async with AsyncExitStack() as stack:
        database = await place.open(*all_schemas())
        stack.push_async_callback(database.close)
        store = SessionStore(database)
        lineage = GenomeLineage(GenomeStore(database), KEY.public_key, KEY.sign_genome)
        metrics = MetricsStore(database)

        def make_ports(agent: Agent, *_: object) -> Ports:
            executor = LocalExecutor([look])
            return Ports(RuleModel(rule), executor, Autonomy(Level.FULL))

        chosen = replace(ON, **settings)
        agent = Agent(AGENT, "m", capabilities=frozenset({"*"}), evolution=chosen)
        conversations = Conversations(
            store, {AGENT: agent}, make_ports, genomes=lineage, prompt=lambda agent: agent.prompt
        )

        async def ratings_of(tenant: str, runs: Sequence[str]) -> Mapping[str, RunComment]:
            return {run: made.ratings[run] for run in runs if run in made.ratings}

        made = Bench(
            lineage, conversations, metrics,
            RealRuns(
                AGENT, metrics, store, ratings_of, tenants=lambda: made.settings.tenants
            ),
            chosen,
        )  # fmt: skip
        yield made


async def test_a_better_candidate_passes_validation_in_batches_that_are_counted(
    place: Place,
) -> None:
    async with bench(place, repeats=1) as made:
        await made.propose()
        await made.pass_until(Stage.VALIDATION)
        first = await made.judge(Stage.VALIDATION)
        assert (first.passed, first.evidence["index"]) == (None, 1), "before any run"
        done = await made.decide(Stage.VALIDATION)
        assert done.passed, done.reason
        verdicts = [e for e in await made.lineage.history(AGENT) if e.stage == "validation"]
        spent = [e.scores["spent"] for e in verdicts if "spent" in e.scores]
        assert sum(each["runs"] for each in spent) == 32, "16 cases with two genomes"
        assert len(verdicts) >= 3, "each batch is an entry"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"min_cases": 17}, "there are 16 validation cases; the gate needs at least 17"),
        ({"error_rate": 0.000001}, "cannot"),
    ],
)
async def test_the_thresholds_of_validation_are_those_of_the_settings(
    place: Place, settings: dict[str, Any], why: str
) -> None:
    async with bench(place, repeats=1, **settings) as made:
        await made.propose()
        await made.pass_until(Stage.VALIDATION)
        done = await made.decide(Stage.VALIDATION)
        assert done.passed is False
        assert why in done.reason or why == "cannot", done.reason


async def test_a_case_may_get_worse_only_if_a_person_allowed_it(place: Place) -> None:
    worse = case_of("worse", split="validation", checks=[{"kind": "answer", "equals": "perhaps"}])
    async with bench(place, repeats=1) as made:
        made.cases = [*cases(30), worse]
        await made.propose()
        await made.pass_until(Stage.VALIDATION)
        refused = await made.decide(Stage.VALIDATION)
        assert "worse" in refused.reason
    async with bench(place, repeats=1, allowed_regressions=("worse",)) as made:
        made.cases = [*cases(30), worse]
        await made.propose(prompt="Say yes.", notes=["always"])
        await made.pass_until(Stage.VALIDATION)
        assert (await made.decide(Stage.VALIDATION)).passed


async def test_a_validation_runs_as_many_cases_as_the_budget_of_the_day_allows(
    place: Place,
) -> None:
    async with bench(place, repeats=3, max_runs_per_day=20) as made:
        await made.propose()
        await made.pass_until(Stage.VALIDATION)
        engine = made.engine()
        why = "6 runs are needed, and 2 of the 20 runs of today are left"
        assert await engine.run() == why
        judged = (await made.candidate()).results[Stage.VALIDATION]
        assert (judged.passed, judged.evidence["cases"], judged.evidence["of"]) == (None, 3, 16)
        made.settings = replace(made.settings, max_runs_per_day=45)
        await engine.run()
        judged = (await made.candidate()).results[Stage.VALIDATION]
        assert judged.evidence["cases"] == 7, "it continues where it was"
        again = await made.judge(Stage.VALIDATION)
        assert again == judged, "the next case is not in the budget"


async def test_records_that_answer_too_little_do_not_count(place: Place) -> None:
    async with bench(place, repeats=1, min_coverage=1.0) as made:
        asking = {"message": "the forecast", "split": "validation"}
        made.cases = [case_of(f"v{n}", **asking) for n in range(16)]
        await made.propose()
        await made.pass_until(Stage.VALIDATION)
        done = await made.decide(Stage.VALIDATION)
        assert done.passed is False, done


async def test_a_safety_stage_counts_each_run_once_over_its_batches(place: Place) -> None:
    async with bench(place) as made:
        await made.propose()
        await made.pass_until(Stage.SAFETY)
        done = await made.decide(Stage.SAFETY)
        assert (done.passed, done.evidence["cases"], done.evidence["fallen"]) == (True, 16, [])
        verdicts = [e for e in await made.lineage.history(AGENT) if e.stage == "safety"]
        assert [entry.passed for entry in verdicts] == [None, None, None, True]
        assert spent_today(verdicts, time.time()).runs == 64, "16 cases twice with two genomes"


async def test_the_runs_of_a_safety_stage_that_was_killed_are_counted_and_not_repeated(
    place: Place,
) -> None:
    async with bench(place) as made:
        await made.propose()
        await made.pass_until(Stage.SAFETY)
        started, is_in_second_batch = 0, asyncio.Event()

        async def never_after_17() -> None:
            nonlocal started
            started += 1
            if started > 17:
                is_in_second_batch.set()
                await asyncio.Event().wait()

        made.before_run = never_after_17
        killed = asyncio.create_task(made.engine().run())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await is_in_second_batch.wait()
        finally:
            killed.cancel()
            await asyncio.wait([killed])
        made.before_run = at_once
        assert spent_today(await made.lineage.history(AGENT), time.time()).runs == 16
        made.settings = replace(ON, max_runs_per_day=16)
        assert await made.engine().run() == "the 16 runs of today are spent"
        made.settings = ON
        await made.engine().run()
        assert (await made.candidate()).stage is Stage.APPROVAL
        assert spent_today(await made.lineage.history(AGENT), time.time()).runs == 64


async def test_a_shadow_repeats_real_runs_and_executes_nothing(place: Place) -> None:
    async with bench(place, shadow_runs=3) as made:
        await made.propose()
        await made.pass_until(Stage.SHADOW)
        waiting = await made.judge(Stage.SHADOW)
        assert (waiting.passed, waiting.evidence) == (None, {"waits_for_runs": 3})
        for _ in range(3):
            await made.run("look at it")
        executed.clear()
        done = await made.judge(Stage.SHADOW)
        assert done.passed, done.reason
        assert executed == [], "the record answered"
        assert done.evidence["coverage"] == 1.0
        assert done.evidence["spent"] == {"runs": 3, "cost": 0.0}
        made.settings = replace(made.settings, shadow_runs=0)
        assert (await made.judge(Stage.SHADOW)).passed


async def test_a_shadow_that_fails_more_often_rejects_the_candidate(place: Place) -> None:
    async with bench(place, shadow_runs=2, max_failure_increase=0.1) as made:
        for _ in range(2):
            await made.run("look at it")
        await made.propose(prompt="break")
        await made.pass_until(Stage.SHADOW)
        done = await made.judge(Stage.SHADOW)
        assert (done.passed, done.reason) == (False, "2 of 2 runs failed, 0 of 2 before")


async def test_a_canary_is_used_by_a_share_of_sessions_and_passes(place: Place) -> None:
    async with bench(place, canary_share=0.5, canary_runs=4) as made:
        await made.propose()
        await made.pass_until(Stage.CANARY)
        started = await made.judge(Stage.CANARY)
        assert (started.passed, started.evidence["share"]) == (None, 0.5)
        candidate = await made.candidate()
        await made.lineage.add_verdict(
            AGENT, candidate.proposal, "canary", passed=None, after=6, by="x",
            evidence=started.evidence,
        )  # fmt: skip
        assert await made.judge(Stage.CANARY) == started, "no run yet"
        for number in range(30):
            await made.run(session=f"s{number}")
        done = await made.judge(Stage.CANARY)
        assert done.passed
        used, others = (done.evidence[name] for name in ("candidate", "before"))
        assert is_object(used) and is_object(others)
        assert used["runs"] == 4
        assert 5 < int(str(others["runs"])) < 25
        made.settings = replace(made.settings, canary_runs=0)
        assert (await made.judge(Stage.CANARY)).passed


async def test_bad_ratings_reject_a_canary(place: Place) -> None:
    async with bench(place, canary_share=1.0, canary_runs=10, max_bad_ratings=0.1) as made:
        await made.propose()
        await made.pass_until(Stage.CANARY)
        candidate = await made.candidate()
        started = await made.judge(Stage.CANARY)
        await made.lineage.add_verdict(
            AGENT, candidate.proposal, "canary", passed=None, after=6, by="x",
            evidence=started.evidence,
        )  # fmt: skip
        for _ in range(2):
            made.ratings[await made.run()] = RunComment("bad", "rude")
        done = await made.judge(Stage.CANARY)
        assert (done.passed, done.reason) == (False, "people rated 2 of 2 runs bad")


async def test_a_promotion_whose_runs_fail_is_taken_back(place: Place) -> None:
    settings: dict[str, Any] = {"canary_runs": 0, "shadow_runs": 0, "watch_runs": 10}
    async with bench(place, **settings) as made:
        for _ in range(3):
            await made.run()
        await made.propose(prompt="break")
        await made.pass_until(Stage.CANARY)
        engine = made.engine()
        await engine.run()
        assert (await made.lineage.version(AGENT)).prompt == "break"
        await made.run()
        await engine.run()
        assert (await made.lineage.version(AGENT)).prompt == "break", "one of ten may fail"
        await made.run()
        await engine.run()
        assert (await made.lineage.version(AGENT)).prompt == ""
        last = (await made.lineage.history(AGENT))[-1]
        rollbacks = [e for e in await made.lineage.history(AGENT) if e.kind == "rollback"]
        assert [e.reason for e in rollbacks] == ["2 of 2 runs failed, 0 of 3 before"], last
        first = await made.candidate()
        assert first.state is CandidateState.ROLLED_BACK
        assert await made.stages.watch(first, 0.0), "it is what it is"
        made.settings = replace(made.settings, watch_runs=0)
        assert await made.stages.watch(first, 0.0) == ""


async def test_a_candidate_is_tried_by_the_tenants_of_the_settings_only(place: Place) -> None:
    tenants = ("local", "acme")
    async with bench(place, canary_share=1.0, canary_runs=10, tenants=tenants) as made:
        await made.propose()
        await made.pass_until(Stage.CANARY)
        candidate = await made.candidate()
        started = await made.judge(Stage.CANARY)
        await made.lineage.add_verdict(
            AGENT, candidate.proposal, "canary", passed=None, after=6, by="x",
            evidence=started.evidence,
        )  # fmt: skip
        for tenant in (*tenants, "other"):
            sessions = made.conversations.of(tenant)
            opened = await sessions.open(AGENT)
            is_tried = opened.genome == candidate.proposal.digest
            assert is_tried == (tenant in tenants), tenant
        for tenant in (*tenants, *tenants, "other"):
            run = await made.run(tenant=tenant)
            made.ratings[run] = RunComment("bad" if tenant == "acme" else "good")
        done = await made.judge(Stage.CANARY)
        used = done.evidence["candidate"]
        assert is_object(used) and (used["runs"], used["bad"]) == (4, 2)


async def test_a_promotion_is_taken_back_for_runs_of_another_tenant(place: Place) -> None:
    settings: dict[str, Any] = {"canary_runs": 0, "shadow_runs": 0, "watch_runs": 10}
    async with bench(place, **settings, tenants=("acme",)) as made:
        await made.propose(prompt="break")
        await made.pass_until(Stage.CANARY)
        engine = made.engine()
        await engine.run()
        for tenant in ("local", "local", "local"):
            await made.run(tenant=tenant)
        await engine.run()
        assert (await made.lineage.version(AGENT)).prompt == "break", "they do not count"
        for tenant in ("acme", "acme"):
            await made.run(tenant=tenant)
        await engine.run()
        assert (await made.lineage.version(AGENT)).prompt == ""


async def test_runs_are_found_by_their_genome_with_an_index(place: Place) -> None:
    async with bench(place) as made:
        await made.run()
        genome = await made.lineage.change(AGENT, BRIEF, by="ann")
        tuned = await made.run()
        window = MetricsWindow("local", 0.0, time.time() + 60, agent=AGENT)
        found = await made.metrics.runs_with(window, genome.digest, 10)
        assert [(row.run_id, row.genome, denied) for row, denied in found] == [
            (tuned, genome.digest, 0)
        ]
        assert len(await made.metrics.runs_with(window, "", 10)) == 1
        if place.is_file:
            plan = await made.conversations.store.database.read(
                lambda c: c.execute(
                    "EXPLAIN QUERY PLAN SELECT run_id FROM figures_runs WHERE tenant = ? "
                    "AND agent = ? AND genome = ? AND at >= ? AND at < ? ORDER BY at LIMIT 5",
                    ("local", AGENT, genome.digest, 0.0, 1.0),
                ).fetchall()
            )
            assert "figures_runs_with (tenant=? AND agent=? AND genome=?" in str(plan), plan


async def test_a_proposer_asks_the_configured_model_within_the_budget(place: Place) -> None:
    async with bench(place, model="ollama/thinker", max_runs_per_day=3) as made:
        made.cases = [case_of("t1"), case_of("t2"), case_of("hidden", split="validation")]
        await made.run("look at it")
        context, meter = await made.contexts.open("gepa", CONFIGURED)
        assert [case.name for case in context.cases] == ["t1", "t2"]
        assert context.tool_prompt == "{tools}"
        assert [trace.outcome.stop for trace in context.traces] == ["completed"]
        assert await context.ask("What helps?") == "an idea"
        assert made.asked == ["ollama/thinker"]
        done = await context.evaluate(Genome(prompt="Say yes."), ())
        assert (done.total.passed, done.total.attempts) == (2, 2)
        (entry,) = await made.lineage.history(AGENT)
        assert (entry.kind, entry.by) == ("evaluation", "gepa")
        assert entry.scores["spent"] == {"runs": 2, "cost": 0.0}
        with pytest.raises(
            CampaignBudgetSpent, match="2 runs are needed, and 1 of the 3 runs of today"
        ):
            await context.evaluate(CONFIGURED, ())
        assert len((await context.evaluate(CONFIGURED, ("t1",))).attempts) == 1
        assert meter.spent.runs == 0, "all of it is recorded"
        made.settings = replace(made.settings, max_cost_per_day=0.5, max_runs_per_day=100)
        assert await context.ask("More?") == "an idea", "the model is free"


class OneTry:
    """Proposes one change, and tries to run the train cases with it first."""

    name = "numbers"

    async def propose(self, context: ProposerContext) -> AsyncGenerator[Proposal]:
        """As the shipped proposers do: the end of the budget does not lose what was found."""
        for genome in (CONFIGURED, Genome(prompt="Say yes.")):
            try:
                await context.evaluate(genome, ())
            except SearchEnded:
                break
        yield BETTER


async def test_a_round_that_the_budget_ended_says_so_and_continues_when_there_is_more(
    place: Place,
) -> None:
    async with bench(place, max_runs_per_day=3) as made:
        made.cases = [case_of("t1"), case_of("t2")]
        engine = made.engine(OneTry())
        await engine.step()
        *_, proposal, campaign = await made.lineage.history(AGENT)
        why = "2 runs are needed, and 1 of the 3 runs of today are left"
        assert campaign.reason == f"numbers: {why}"
        assert (proposal.kind, proposal.reason) == ("proposal", BETTER.reason), "it is not lost"
        await reject(made.lineage, AGENT, proposal.number, by="ann", reason="no")
        assert await engine.run() == f"the proposers ended early today: numbers: {why}"
        made.settings = replace(made.settings, max_runs_per_day=4)
        assert (await engine.plan())[-1] == Propose()


class Asks:
    """Asks until the search is ended, and uses no answer."""

    name = "gepa"

    def __init__(self) -> None:
        self.questions = 0

    async def propose(self, context: ProposerContext) -> AsyncGenerator[Proposal]:
        """Nothing, after at most ten questions."""
        with suppress(SearchEnded):
            for _ in range(10):
                self.questions += 1
                await ask_model(context, "What helps?")
        for nothing in ():
            yield nothing


def unreachable(request: Request) -> Reply:
    raise ProviderError(ProviderErrorKind.SERVER_ERROR, "connection refused")


async def test_a_reflecting_model_that_does_not_answer_ends_the_search_with_its_problem(
    place: Place,
) -> None:
    async with bench(place, model="ollama/thinker") as made:
        made.answer, asks = unreachable, Asks()
        engine = made.engine(asks)
        why = "the reflecting model 'scripted/rules' did not answer: connection refused"
        assert await engine.run() == f"the proposers ended early today: gepa: {why}"
        assert asks.questions == 3
        (campaign,) = await made.lineage.history(AGENT)
        assert campaign.reason == f"gepa: {why}"
        other = replace(made.settings, model="ollama/other")
        assert next_steps([campaign], other, campaign.at) == [Propose()]
        made.answer, asks.questions = has_an_idea, 0
        assert await engine.run(again=True) == "the proposers have nothing more today"
        assert asks.questions == 10, "the model is back"


async def test_single_questions_without_an_answer_do_not_end_a_search(place: Place) -> None:
    failing = iter([True, True, False] * 4)

    def flaky(request: Request) -> Reply:
        return unreachable(request) if next(failing) else has_an_idea(request)

    async with bench(place) as made:
        made.answer, asks = flaky, Asks()
        await made.engine(asks).run()
        assert asks.questions == 10


def test_settings_have_bounds() -> None:
    for wrong in ({"canary_share": 0}, {"max_denied_increase": -1}, {"max_cost_increase": -0.1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, AgentEvolution)
