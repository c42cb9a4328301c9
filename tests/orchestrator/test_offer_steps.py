"""An agent is offered what it may use, and no call waits longer than it should."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from evoclaw.core.agent import Agent
from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.calls import prepare
from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolCall
from evoclaw.core.pipeline import Pipeline, Step
from evoclaw.core.tools import Call
from evoclaw.core.toolset import Toolset
from evoclaw.executors.call_steps import DefaultTimeout
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import PermittedTools
from evoclaw.orchestrator.agents.offer_steps import AgentSkills, AgentTools
from evoclaw.skills.registry import SkillRegistry
from evoclaw.tools.catalogue import load
from evoclaw.tools.define import tool
from evoclaw.tools.fake import FakeOps
from evoclaw.wiring.model_tools import model_steps
from tests.support.skills import guide, write_skill


@tool("file_read", timeout=5, max_timeout=30)
async def look() -> str:
    """Look."""
    return "looked"


@tool("file_read", timeout=5, max_timeout=600)
async def stare() -> str:
    """Stare."""
    return "stared"


@tool("shell")
async def act() -> str:
    """Act."""
    return "acted"


@tool("interact", timeout=300, max_timeout=300)
async def ask() -> str:
    """Ask."""
    return "asked"


ALL = LocalExecutor((look, stare, act, ask))


def offered(agent: Agent, *more: Step) -> Pipeline:
    steps: list[Step] = [PermittedTools(agent.capabilities), *more]
    if agent.tools is not None:
        steps.append(AgentTools(agent.tools))
    return Pipeline([ALL], steps)


def names(agent: Agent) -> list[str]:
    return [one.name for one in offered(agent).tools()]


def test_offered_tools_are_limited_by_capabilities_and_the_tool_list() -> None:
    reads = frozenset({"file_read"})
    assert names(Agent("a", "", capabilities=reads)) == ["look", "stare"]
    assert names(Agent("a", "", capabilities=reads, tools=frozenset({"look", "act"}))) == ["look"]
    assert names(Agent("a", "", capabilities=frozenset({"*"}), tools=frozenset())) == []
    assert names(Agent("a", "")) == []


def test_a_small_model_is_offered_few_built_in_tools_and_all_others() -> None:
    def offered_to(model: str, tools: Sequence[BoundTool], named: frozenset[str] | None) -> str:
        routes = [LocalExecutor(tools, files=FakeOps(), exec=FakeOps())]
        return " ".join(t.name for t in Pipeline(routes, model_steps(model, named)).tools())

    built_in = load(["read", "write", "grep", "bash"])
    assert offered_to("ollama/qwen2.5-coder:1.5b", (*built_in, look), None) == "read bash look"
    assert offered_to("embedded/smollm2-135m", (*built_in, look), None) == "read look"
    everything = "read write grep bash look"
    assert offered_to("openai/gpt-5", (*built_in, look), None) == everything
    named = frozenset({"write"})
    assert offered_to("ollama/qwen2.5-coder:1.5b", (*built_in, look), named) == everything
    reads = load(["read", "grep"])
    assert offered_to("ollama/qwen2.5-coder:1.5b", reads, None) == "read grep", "without its shell"


async def test_a_tool_that_is_not_offered_cannot_be_executed() -> None:
    agent = Agent("a", "", capabilities=frozenset({"*"}), tools=frozenset({"look"}))
    executor = offered(agent)
    every = Toolset.of(ALL.tools())

    def called(name: str) -> Call:
        call = prepare(ToolCall("1", name), every, request_id="r.1.0.1")
        assert isinstance(call, Call)
        return call

    assert (await executor.execute(called("look"), print)).text == "looked"
    with pytest.raises(ToolFailure) as refused:
        await executor.execute(called("act"), print)
    assert refused.value.kind is ErrorKind.NOT_FOUND


def test_the_default_timeout_is_capped_per_tool_and_skips_user_questions() -> None:
    executor = offered(Agent("a", "", capabilities=frozenset({"*"})), DefaultTimeout(60))
    times = {one.name: one.timeout for one in executor.tools()}
    assert times == {"look": 30, "stare": 60, "act": 60, "ask": 300}
    with pytest.raises(ConfigError):
        DefaultTimeout(0)


def test_the_offered_tools_are_cached_while_nothing_changes() -> None:
    executor = offered(Agent("a", "", capabilities=frozenset({"*"})), DefaultTimeout(60))
    assert executor.tools() is executor.tools()


def test_active_skills_limit_the_offered_tools(tmp_path: Path) -> None:
    write_skill(tmp_path, "seeing", SKILL_md=guide("seeing", allowed_tools="look"))
    (skill,) = SkillRegistry([tmp_path]).skills()
    agent = Agent("a", "", capabilities=frozenset({"*"}))
    assert [one.name for one in offered(agent, AgentSkills((skill,))).tools()] == ["look"]
