"""Shows and explains the policies of `evoclaw up` to the API, without running a call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from evoclaw.api.dependencies import PolicyAnswer, PolicyQuestion, PolicyView, RuleView
from evoclaw.core.errors import AgentNotFound
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Policy
from evoclaw.core.tools import Call, Context, Tool

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent
    from evoclaw.governance.rules.document import Rule, RuleDocument
    from evoclaw.wiring.governance import Governance

SHIPPED_RULES = "shipped"


class PolicySource(Protocol):
    """The part of the run factory that decides about calls."""

    @property
    def governance(self) -> Governance:
        """The governance in use; replaced when the settings are reloaded."""
        ...

    def tools(self, agent: Agent) -> Sequence[Tool]:
        """The tools that a run of an agent would be offered now."""
        ...

    def policies(self, agent: Agent) -> tuple[Policy, ...]:
        """The policies of the runs of an agent."""
        ...


@dataclass(frozen=True, slots=True)
class PoliciesAdapter:
    """The policies that runs have, without those that count calls."""

    run_factory: PolicySource
    agents: Mapping[str, Agent]

    async def describe(self) -> PolicyView:
        """The rules and settings in use."""
        from evoclaw.governance.flow.settings import Preset
        from evoclaw.orchestrator.agents.definitions import level_of
        from evoclaw.wiring.pipelines import edge_pipeline, service_pipeline

        settings = self.run_factory.governance.settings
        agent = self._agent("")
        document, source = await asyncio.to_thread(self._rules, agent)
        facts: dict[str, JSON] = {
            "rules": {name: str(getattr(document, name)) for name in _DEFAULTS},
            "levels": {known.name: str(level_of(known)) for known in self.agents.values()},
            "off": dict(settings.policy.off),
            "network": msgspec.to_builtins(settings.network),
            # The encoder omits defaults, but the preset must be shown.
            "flow": {"preset": str(settings.flow.preset), **msgspec.to_builtins(settings.flow)},
            "rates": msgspec.to_builtins(settings.rates),
            "sandbox": settings.sandbox_settings.engine,
        }
        return PolicyView(
            str(level_of(agent)),
            tuple(Preset),
            tuple(
                RuleView(rule.name, str(rule.then), _summary(rule), source)
                for rule in document.rules
            ),
            facts,
            {spec.name: spec.describe() for spec in (service_pipeline(), edge_pipeline())},
        )

    async def explain(self, question: PolicyQuestion) -> PolicyAnswer | None:
        """Judge a call by the policies of an agent; None if there is no such tool."""
        from evoclaw.governance.explanations import explain

        agent = self._agent(question.agent)
        tool = self._tool(agent, question.tool)
        if tool is None:
            return None
        context = Context(principal=Principal(agent=agent.name))
        call = Call("explained", tool, question.arguments, "explained.1.0.1", 1.0, context=context)
        explained = await explain(self._policies(agent, question.level), call)
        answer: dict[str, JSON] = {**msgspec.to_builtins(explained), "effects": self._effects(call)}
        return msgspec.convert(answer, PolicyAnswer)

    def _agent(self, name: str) -> Agent:
        if not name:
            return next(iter(self.agents.values()))
        if name not in self.agents:
            raise AgentNotFound(name, tuple(self.agents))
        return self.agents[name]

    def _tool(self, agent: Agent, name: str) -> Tool | None:
        """A tool that the agent is offered, or a built-in one that edges may have."""
        from evoclaw.tools.sets import everything

        built_in = (bound.tool for bound in everything())
        for tool in (*self.run_factory.tools(agent), *built_in):
            if name in (tool.name, *tool.aliases):
                return tool
        return None

    def _policies(self, agent: Agent, level: str) -> list[Policy]:
        """In the order of the pipeline, without policies that count calls."""
        from evoclaw.governance.autonomy import Level
        from evoclaw.governance.flow.policy import Flow
        from evoclaw.governance.rate_limits import RateLimits

        governance, tools = self.run_factory.governance, partial(self.run_factory.tools, agent)
        if level:
            rules = governance.rules(Level(level), agent.capabilities, None, tools)
        else:
            rules = self.run_factory.policies(agent)
        # The flow policy remembers the tools that it saw, so runs must not share this one.
        return [
            Flow(governance.settings.flow, tools) if isinstance(rule, Flow) else rule
            for rule in rules
            if not isinstance(rule, RateLimits)
        ]

    def _rules(self, agent: Agent) -> tuple[RuleDocument, str]:
        """The rule document in use, and where it is from."""
        from evoclaw.governance.rules.command_rules import CommandRules, PreApproval
        from evoclaw.governance.rules.document import shipped_rules

        for policy in self.run_factory.policies(agent):
            inner = policy.rule if isinstance(policy, PreApproval) else policy
            if isinstance(inner, CommandRules) and inner.file is not None:
                configured = self.run_factory.governance.settings.policy.rules
                return inner.load().document, configured or SHIPPED_RULES
        return shipped_rules(), SHIPPED_RULES

    def _effects(self, call: Call) -> dict[str, JSON]:
        from evoclaw.governance.rules.command_rules import REMOTE_WORKSPACE
        from evoclaw.governance.rules.policy import describe_effects
        from evoclaw.shell.calls import read_call

        forwarded = self.run_factory.governance.forwarded
        inner = () if forwarded is None else forwarded(call)
        home = os.environ.get("HOME", "/")
        return describe_effects(read_call(inner[0] if inner else call, REMOTE_WORKSPACE, home))


_DEFAULTS = ("default", "other_tools", "unreadable", "code", "environment")
"""The settings for calls that match no rule."""


def _summary(rule: Rule) -> str:
    """One line about a rule: its text for people, or its conditions."""
    if text := rule.for_people or rule.reason:
        return text
    conditions = {
        "tools": rule.tools, "programs": rule.programs, "arguments": rule.arguments,
        "paths": rule.paths, "domains": rule.domains, "env": rule.env,
    }  # fmt: skip
    return "; ".join(
        f"{kind}: {', '.join(values)}" for kind, values in conditions.items() if values
    )
