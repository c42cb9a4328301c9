"""The steps of the call pipeline that belong to one run of a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from evoclaw.core.chain import Chain
from evoclaw.core.labels import join_labels
from evoclaw.core.messages import (
    ToolResult,
    label_of,
    labelled,
)
from evoclaw.core.pipeline import (
    Execution,
    ExtraPolicy,
    OfferStep,
    Pipeline,
    ResultStep,
    kind_of,
)
from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.governance.forwarded_calls import (
    ForwardedBudget,
    ForwardedCalls,
    ForwardedCallsOf,
)
from evoclaw.governance.permissions import Permissions
from evoclaw.governance.rate_limits import RateLimits
from evoclaw.orchestrator.agents.offer_steps import AgentSkills, AgentTools
from evoclaw.orchestrator.fleet.forwarded_calls import forwarded_tool
from evoclaw.orchestrator.people.questions import PendingQuestions
from evoclaw.skills.active import SKILL_TOOL, ActiveSkillTools
from evoclaw.store.sessions.sessions import SessionStore


class RunTools(OfferStep):
    """Offers a run only the tools that its parent run has, and of them those its session names."""

    def __init__(
        self,
        parent: Pipeline | None,
        names: frozenset[str] | None,
        excluded: frozenset[str] = frozenset(),
    ) -> None:
        """`excluded` are never offered: a run at the deepest level starts no sub-runs."""
        self._parent, self._names, self._excluded = parent, names, excluded

    def version(self) -> object:
        """Changes with the tools of the parent run."""
        return None if self._parent is None else self._parent.tools()

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Return the tools that this run may use."""
        parent_tools = (
            None if self._parent is None else {tool.name for tool in self._parent.tools()}
        )
        return [tool for tool in tools if self._is_offered(tool.name, parent_tools)]

    def _is_offered(self, name: str, held: set[str] | None) -> bool:
        named = self._names is None or name in self._names
        return named and name not in self._excluded and (held is None or name in held)


class SessionLabels(ResultStep):
    """Labels a result about another session with the labels of all its messages."""

    def __init__(self, store: SessionStore, names: frozenset[str]) -> None:
        """`names` are the tools whose results name the session in their details."""
        self._store, self._names = store, names

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """Join the labels of that session's messages."""
        if execution.call.name not in self._names:
            return result
        session_id = result.details.get("session_id")
        if not isinstance(session_id, str):
            return result
        messages = await self._store.messages(session_id)
        label = join_labels(label_of(message) for _, message in messages)
        return replace(result, blocks=labelled(result.blocks, label))


@dataclass(frozen=True, slots=True)
class ForwardedTools(Policy):
    """Denies `edge_call` and `nodes` a tool that the agent's tool list does not name."""

    lists: tuple[OfferStep, ...]
    forwarded: ForwardedCallsOf

    async def judge(self, call: Call) -> Verdict:
        """Deny a call whose tool on the edge is not listed; a name that no edge has, by its name.

        The call of an edge's own model is judged as the tool that it forwards to.
        """
        tools = [inner.tool for inner in self.forwarded(call)]
        if not tools:
            name, _ = forwarded_tool(call)
            tools = [replace(call.tool, name=name, aliases=()) if name else call.tool]
        for tool in tools:
            # A skill's list alone never leaves out the tool that reads skills.
            if tool.name != SKILL_TOOL and not all(step.offer([tool]) for step in self.lists):
                reason = (
                    f"the tool {tool.name!r} is not in the tool list of this agent, or a skill "
                    "does not allow it; this applies to tools of edges too. Continue without it, "
                    "or explain to the user"
                )
                return Deny("tool_list", reason, f"{tool.name} is not in the tool list")
        return ALLOW


@dataclass(frozen=True, slots=True)
class ParentRules(Policy):
    """Denies a sub-run what the rules of its parent runs deny."""

    chain: Chain

    async def judge(self, call: Call) -> Verdict:
        """Judge by the rules of the parent run that are not this run's own already."""
        return await self.chain.judge(call)

    async def admit(self, turn: int) -> Verdict:
        """Judge another turn the same way."""
        return await self.chain.admit(turn)


def count_forwarded_calls(pipeline: Pipeline, budget: RunBudget) -> Policy:
    """The budget of a run; it counts the calls that the run forwards to edges as their own."""
    calls = pipeline.step_of(ForwardedCalls)
    return budget if calls is None else ForwardedBudget(budget, calls.forwarded)


def forwarded_tools(
    pipeline: Pipeline, parent: Pipeline | None, names: frozenset[str] | None
) -> tuple[Policy, ...]:
    """What limits the tools behind `edge_call`.

    The lists of the agent, of its skills and of its session, and those of the parent run.
    """
    calls = pipeline.step_of(ForwardedCalls)
    if calls is None:
        return ()
    found = [pipeline.step_of(kind) for kind in (AgentTools, AgentSkills, ActiveSkillTools)]
    above = None if parent is None else parent.step_of(ForwardedTools)
    lists: tuple[OfferStep, ...] = (
        RunTools(None, names),
        *(step for step in found if step is not None),
        *(() if above is None else above.lists),
    )
    return (ForwardedTools(lists, calls.forwarded),)


def inherited_policies(parent: Pipeline, own: Pipeline) -> tuple[Policy, ...]:
    """The policies of the parent runs that this run does not have already, each once.

    Permissions and tool lists are narrowed from run to run; questions, budgets and the caller's
    tools belong to each run itself; rates count each call once.
    """
    found: list[Policy] = []
    own_kinds = Permissions | ForwardedTools | PendingQuestions | RunBudget | RateLimits
    for policy in parent.before:
        if isinstance(policy, ParentRules):
            found += policy.chain.policies
        elif not issubclass(kind_of(policy), own_kinds):
            found.append(policy.policy if isinstance(policy, ExtraPolicy) else policy)
    present = [rule.policy if isinstance(rule, ExtraPolicy) else rule for rule in own.before]
    return tuple(rule for rule in found if not any(rule is other for other in present))
