"""The steps of workflows as runs: each is kept, judged, recorded and resumed like any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.events import CallFinished, StopReason
from evoclaw.core.labels import Label, Principal, joined
from evoclaw.core.messages import Reply, TextBlock, ToolCall, ToolResult, UserMessage, label_of
from evoclaw.core.tools import Effect, Tool
from evoclaw.orchestrator.sessions.subruns import run_id_of
from evoclaw.providers.direct import NAME as DIRECT
from evoclaw.workflows.ports import AgentAnswer, Nature, Waiting

if TYPE_CHECKING:
    from evoclaw.core.result import RunResult
    from evoclaw.orchestrator.runs.runs import Errand, Runs
    from evoclaw.orchestrator.sessions.sessions import Conversations
    from evoclaw.workflows.ports import AgentCall, Done, Ended, ToolAsked

SOON = 5.0
"""Seconds until a step that found no room tries again."""
ONE_CALL = LoopSettings(max_turns=2, max_calls_per_turn=1)


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """Steps that ask an agent."""

    runs: Runs
    talks: Conversations

    async def begin(self, who: Principal, call: AgentCall) -> Waiting | None:
        """Start a run; the same one when it is begun again."""
        from evoclaw.orchestrator.agents.definitions import iterative
        from evoclaw.orchestrator.runs.runs import Draining, Errand, TooMany

        agent = self.talks.agents.get(call.agent)
        settings = iterative(agent) if agent is not None and call.iterative else None
        errand = Errand(
            call.message,
            agent=call.agent,
            title=call.title,
            settings=settings,
            single=not call.iterative,
            label=call.label,
        )
        try:
            await self.runs.start(who, errand, run_id=call.run_id)
        except (Draining, TooMany) as problem:
            return Waiting(str(problem), SOON)
        return None

    async def result(self, tenant: str, run_id: str) -> Ended:
        """Await a run's end; `Waiting` as soon as it waits for a person."""
        result = await self.runs.result(tenant, run_id_of(tenant, run_id))
        if result.stop is StopReason.WAITING:
            return Waiting(result.reason or result.text)
        done = result.stop is StopReason.COMPLETED
        return AgentAnswer(
            ok=done,
            output=result.output,
            text=result.text,
            reason="" if done else result.reason or str(result.stop),
            harmless=not result.calls,
            label=await self._label(tenant, result),
        )

    async def _label(self, tenant: str, result: RunResult) -> Label:
        """Of everything that was said in its session."""
        view = await self.runs.look(tenant, result.run_id)
        said = [] if view is None else await self.talks.store.of(tenant).messages(view.session_id)
        return joined(label_of(message) for _, message in said)

    async def cancel(self, tenant: str, run_id: str) -> None:
        """Have a run end."""
        await self.runs.cancel(tenant, run_id_of(tenant, run_id))


@dataclass(frozen=True, slots=True)
class ToolSteps:
    """Steps that are one call: a run without a model, under the rules of an agent."""

    runs: Runs
    agent: Callable[[], Agent]
    tools: Callable[[Agent], Sequence[Tool]]

    def nature(self, who: Principal, tool: str) -> Nature:
        """Its run is begun once, and remembers whether the call was; so nothing runs twice."""
        found = next((one for one in self.tools(self.agent()) if one.name == tool), None)
        if found is None:
            return Nature(remembered=True)
        harmless = found.effect is Effect.READ or found.idempotent
        return Nature(harmless=harmless, remembered=True)

    async def execute(self, who: Principal, asked: ToolAsked) -> Done:
        """Judge and run one call; its run goes on though nobody waits, and is found again."""
        from evoclaw.orchestrator.runs.runs import Draining, TooMany

        run_id = _run_of(who.tenant, asked.request_id)
        try:
            await self.runs.start(who, self._errand(asked), run_id=run_id)
        except (Draining, TooMany) as problem:
            return Waiting(str(problem), SOON)
        result = await self.runs.result(who.tenant, run_id)
        if result.stop is StopReason.WAITING:
            return Waiting(result.reason or result.text)
        return await self._outcome(who.tenant, result)

    async def cancel(self, tenant: str, request_id: str) -> None:
        """Have the run of a call end."""
        await self.runs.cancel(tenant, _run_of(tenant, request_id))

    def _errand(self, asked: ToolAsked) -> Errand:
        from evoclaw.orchestrator.runs.runs import Errand

        said = UserMessage((TextBlock(f"A step of a workflow: {asked.tool}", asked.label),))
        call = ToolCall("step", asked.tool, msgspec.json.encode(asked.arguments).decode())
        settings = ONE_CALL
        if asked.timeout_s is not None:
            settings = msgspec.structs.replace(ONE_CALL, max_seconds=asked.timeout_s)
        return Errand(
            messages=(said, Reply(calls=(call,))),
            agent=self.agent().name,
            title=f"step: {asked.tool}",
            model=DIRECT,
            settings=settings,
        )

    async def _outcome(self, tenant: str, result: RunResult) -> ToolResult:
        from evoclaw.core.messages import ErrorKind
        from evoclaw.core.tools import failure

        found: ToolResult | None = None
        async for record in self.runs.watch(tenant, result.run_id):
            if isinstance(record.event, CallFinished):
                found = record.event.result
        if found is not None:
            return found
        return failure("step", "", ErrorKind.INTERNAL, result.reason or result.text)


def _run_of(tenant: str, request_id: str) -> str:
    """The run of a step's call, the same for the same asking.

    It names its workflow, as the run of an agent's step does: whoever answers for it can wake that.
    """
    return run_id_of(tenant, "tool-" + request_id.replace(".", "-"))
