"""Shows the policies of a service, and explains their verdicts on calls that are not run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec
from msgspec import Struct

from evoclaw.core.agent import Agent
from evoclaw.core.errors import AgentNotFound
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON
from evoclaw.core.pipeline import DeclaredStep, PipelineSpec
from evoclaw.core.ports import Policy
from evoclaw.core.tools import Call, Context, Tool
from evoclaw.governance.autonomy import Level
from evoclaw.governance.explanations import explain
from evoclaw.governance.flow.policy import Flow
from evoclaw.governance.flow.settings import FlowSettings, Preset
from evoclaw.governance.forwarded_calls import ForwardedCallsOf
from evoclaw.governance.network import NetworkSettings
from evoclaw.governance.rate_limits import RateLimits, RateSettings
from evoclaw.governance.rules.command_rules import (
    REMOTE_WORKSPACE,
    CommandRules,
    PolicySettings,
    PreApproval,
)
from evoclaw.governance.rules.document import Rule, RuleDocument, shipped_rules
from evoclaw.governance.rules.policy import describe_effects
from evoclaw.orchestrator.agents.definitions import level_of
from evoclaw.sandbox.engines.registry import SandboxSettings
from evoclaw.shell.calls import read_call
from evoclaw.tools.sets import everything

SHIPPED_RULES = "shipped"


class RuleView(Struct, frozen=True):
    """One rule of the command policy."""

    name: str
    """The name of the rule."""
    verdict: str
    """`allow`, `ask` or `deny`."""
    summary: str
    """What the rule matches."""
    source: str
    """`shipped`, or the path of the owner's rule file."""


class PolicyView(Struct, frozen=True):
    """The policies and settings that judge tool calls."""

    level: str
    """The autonomy level of the default agent."""
    presets: tuple[str, ...]
    """The information-flow presets; `settings` says which one is in force."""
    rules: tuple[RuleView, ...]
    """The rules for commands, paths and hosts."""
    settings: dict[str, JSON]
    """The policy settings in force."""
    pipelines: dict[str, tuple[DeclaredStep, ...]] = {}
    """The steps that a call passes through, in order: on the orchestrator, and on an edge."""


class PolicyQuestion(Struct, frozen=True):
    """A tool call to explain; it is not run, counted or recorded."""

    tool: str
    arguments: dict[str, JSON]
    agent: str = ""
    """The calling agent; empty: the default agent."""
    level: str = ""
    """Overrides the agent's autonomy level."""


class PolicyStepView(Struct, frozen=True):
    """The verdict of one policy."""

    policy: str
    """The name of the policy."""
    verdict: str
    """`allow`, `deny` or `ask`."""
    code: str = ""
    """Why, as a short code."""
    reason: str = ""
    """For people."""


class PolicyAnswer(Struct, frozen=True):
    """The verdict on a tool call, and the policy that decided it."""

    verdict: Literal["allow", "deny", "ask"]
    """`allow`, `deny` or `ask`."""
    code: str
    """Why, as a short code."""
    reason: str
    """For people."""
    reason_for_model: str
    """For the model: why, and what to do instead."""
    by: str
    """The policy that decided; empty if no policy objects."""
    steps: tuple[PolicyStepView, ...]
    """The verdict of each policy, in order."""
    effects: dict[str, JSON]
    """The effects of the call, as far as they are known."""


class GovernanceSettings(Struct, frozen=True):
    """The tables of `evoclaw.toml` that the policies are built from."""

    policy: PolicySettings
    flow: FlowSettings
    network: NetworkSettings
    rates: RateSettings
    sandbox: SandboxSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyExplainer:
    """Shows and explains the policies that runs have, without those that count calls."""

    agents: Mapping[str, Agent]
    """By name; the first one is the default agent."""
    tools: Callable[[Agent], Sequence[Tool]]
    """Returns the tools that a run of an agent would be offered now."""
    policies: Callable[[Agent, Level | None], Sequence[Policy]]
    """Returns the policies of an agent's runs, in order; a level overrides the agent's own."""
    settings: Callable[[], GovernanceSettings]
    """Returns the settings in use, which a reload replaces."""
    pipelines: Sequence[PipelineSpec]
    """Those that a call passes through: on the orchestrator, and on an edge."""
    forwarded: ForwardedCallsOf | None = None
    """Finds the calls that a call forwards to edges; None where no call forwards."""

    async def describe(self) -> PolicyView:
        """The rules and settings that are in force now."""
        settings, agent = self.settings(), self._agent("")
        document, source = await asyncio.to_thread(self._rules, agent)
        facts: dict[str, JSON] = {
            "rules": {name: str(getattr(document, name)) for name in _DEFAULTS},
            "levels": {known.name: str(level_of(known)) for known in self.agents.values()},
            "off": dict(settings.policy.off),
            "network": msgspec.to_builtins(settings.network),
            # The encoder omits defaults, but the preset must be shown.
            "flow": {"preset": str(settings.flow.preset), **msgspec.to_builtins(settings.flow)},
            "rates": msgspec.to_builtins(settings.rates),
            "sandbox": settings.sandbox.engine,
        }
        return PolicyView(
            str(level_of(agent)),
            tuple(Preset),
            tuple(
                RuleView(rule.name, str(rule.then), _summary(rule), source)
                for rule in document.rules
            ),
            facts,
            {spec.name: spec.describe() for spec in self.pipelines},
        )

    async def explain(self, question: PolicyQuestion) -> PolicyAnswer | None:
        """Judge a call by the policies of an agent; None if there is no such tool."""
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
        built_in = (bound.tool for bound in everything())
        for tool in (*self.tools(agent), *built_in):
            if name in (tool.name, *tool.aliases):
                return tool
        return None

    def _policies(self, agent: Agent, level: str) -> list[Policy]:
        """In the order of the pipeline, without policies that count calls."""
        flow, tools = self.settings().flow, partial(self.tools, agent)
        # The flow policy remembers the tools that it saw, so runs must not share this one.
        return [
            Flow(flow, tools) if isinstance(policy, Flow) else policy
            for policy in self.policies(agent, Level(level) if level else None)
            if not isinstance(policy, RateLimits)
        ]

    def _rules(self, agent: Agent) -> tuple[RuleDocument, str]:
        """The rule document in use, and where it is from."""
        for policy in self.policies(agent, None):
            inner = policy.rule if isinstance(policy, PreApproval) else policy
            if isinstance(inner, CommandRules) and inner.file is not None:
                return inner.load().document, self.settings().policy.rules or SHIPPED_RULES
        return shipped_rules(), SHIPPED_RULES

    def _effects(self, call: Call) -> dict[str, JSON]:
        inner = () if self.forwarded is None else self.forwarded(call)
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
