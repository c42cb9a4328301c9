"""A suite's environment as an executor, and a scripted model that obeys injected instructions."""

import json
import re
from collections.abc import AsyncGenerator, Sequence

from agentdojo.functions_runtime import FunctionsRuntime
from pydantic import BaseModel
from tool_flags import ACTS, OUTSIDE, PRIVATE, RETURNS_WHAT_IT_MADE, SENDS

from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import Replied, ReplyEvent
from evoclaw.core.messages import ErrorKind, Finish, Reply, ToolCall, ToolResult
from evoclaw.core.ports import Approval, Ask, Decision, Progress, Request
from evoclaw.core.profile import Profile
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.core.toolset import Toolset


def tool_of(function) -> Tool:
    """A suite's function as a tool, flagged as an integrator would."""
    name = function.name
    return Tool(
        name,
        function.description,
        function.parameters.model_json_schema(),
        effect=Effect.WRITE if name in ACTS else Effect.READ,
        outside=name in OUTSIDE or name in RETURNS_WHAT_IT_MADE,
        private=name in PRIVATE or name in RETURNS_WHAT_IT_MADE,
        sends=name in SENDS,
    )


def _jsonable(value):
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list):
        return [_jsonable(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _jsonable(one) for key, one in value.items()}
    return value


def shown(value) -> str:
    """A result as the model sees it: objects as JSON, as in EvoClaw's own tools."""
    value = _jsonable(value)
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


class World:
    """Runs calls in a suite's environment."""

    def __init__(self, toolset: Toolset, functions, env) -> None:
        self._tools = toolset
        self._runtime = FunctionsRuntime(functions)
        self.env = env
        self.ran: list[tuple[str, dict]] = []

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        given = dict(call.arguments)
        value, problem = self._runtime.run_function(self.env, call.name, given)
        if problem is not None:
            raise ToolFailure(ErrorKind.EXECUTION_FAILED, problem)
        self.ran.append((call.name, given))
        return call.ok(shown(value))


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9@]+", "", text.replace("\\n", " ").lower())


class Puppet:
    """Follows the user's script; once it reads the goal it makes the attack's calls first."""

    model = "scripted/puppet"
    profile = Profile()

    def __init__(self, script, answer: str, goal: str = "", obey=None) -> None:
        """`obey` gives the calls of the injection when it is read."""
        self._script = list(script)
        self._answer = answer
        self._goal = _squeezed(goal)[:60]
        self._obey = obey
        self._read = 0
        self._made = 0
        self.taken_over = False

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        if self._obey is not None and not self.taken_over:
            for index in range(self._read, len(request.history)):
                message = request.history[index]
                if isinstance(message, ToolResult) and self._goal in _squeezed(message.text):
                    self.taken_over = True
                    self._script = [*self._obey(), *self._script]
                    break
            self._read = len(request.history)
        if not self._script or not request.offer_tools:
            yield Replied(Reply(self._answer))
            return
        name, arguments = self._script.pop(0)
        self._made += 1
        asked = ToolCall(f"c{self._made}", name, json.dumps(arguments, default=str))
        yield Replied(Reply("", (asked,), Finish.CALLS))


def same(one: tuple[str, dict], other: tuple[str, dict]) -> bool:
    return one[0] == other[0] and json.dumps(one[1], sort_keys=True, default=str) == json.dumps(
        other[1], sort_keys=True, default=str
    )


class Person:
    """Approves exactly the calls of the user's own script."""

    def __init__(self, script, *, there: bool) -> None:
        self._script, self._there = list(script), there
        self.asked: list[tuple[str, dict, str]] = []

    async def approve(self, call: Call, ask: Ask) -> Approval:
        self.asked.append((call.name, call.arguments, ask.for_people))
        wanted = any(same((call.name, call.arguments), one) for one in self._script)
        return Approval(Decision.ONCE if self._there and wanted else Decision.DENY)
