"""The checks of a case: programs that decide whether a run did what it should have done."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.errors import SchemaError, ToolFailure
from evoclaw.core.messages import JSON, is_object
from evoclaw.core.ops import ExecOps
from evoclaw.core.schema import compile_schema, describe_problems
from evoclaw.core.tools import Tool

MAX_CHECKED_BYTES = 1 << 20
"""Of a file, or of the output of a command."""
_Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=20_000)]
_Path: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_000)]


class MadeCall(Struct, frozen=True):
    """A call that a run made."""

    tool: str
    arguments: dict[str, JSON]
    succeeded: bool


class RunToCheck(Struct, frozen=True):
    """What checks look at, once a run has ended."""

    answer: str
    calls: Sequence[MadeCall]
    cost: float | None
    workspace: Path
    exec: ExecOps
    """Runs commands in the sandbox of the run."""


class _Check(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class CommandCheck(_Check, frozen=True, kw_only=True, tag="command"):
    """A command that is run in the workspace, in the sandbox, when the run has ended."""

    command: _Text
    """For `sh -c`."""
    exit_code: int = 0
    contains: str = ""
    """Text in its standard output."""
    seconds: Annotated[float, Meta(gt=0, le=3_600)] = 60.0
    """How long it may take."""

    async def problem(self, run: RunToCheck) -> str:
        """Why the check failed; empty if it passed."""
        try:
            async with asyncio.timeout(self.seconds):
                done = await run.exec.run(["sh", "-c", self.command], max_output=MAX_CHECKED_BYTES)
        except TimeoutError:
            return f"{self.command!r} did not end within {self.seconds:g} seconds"
        except ToolFailure as refused:
            return f"{self.command!r} could not be run: {refused.message}"
        if done.exit_code != self.exit_code:
            return f"{self.command!r} exited with {done.exit_code}, not {self.exit_code}"
        if self.contains not in done.stdout.decode(errors="replace"):
            return f"{self.command!r} did not print {self.contains!r}"
        return ""


class FileCheck(_Check, frozen=True, kw_only=True, tag="file"):
    """A file of the workspace: that it exists, its text, or that it does not exist."""

    path: _Path
    equals: str | None = None
    contains: str = ""
    matches: str = ""
    """A regular expression, found anywhere."""
    absent: bool = False

    async def problem(self, run: RunToCheck) -> str:
        """Why the check failed; empty if it passed."""
        text = _read_inside(run.workspace, self.path)
        if self.absent:
            return "" if text is None else f"{self.path} exists"
        if text is None:
            return f"{self.path} does not exist"
        return text_problem(self.path, text, self.equals, self.contains, self.matches)


class AnswerCheck(_Check, frozen=True, kw_only=True, tag="answer"):
    """The text of the answer."""

    equals: str | None = None
    contains: str = ""
    matches: str = ""
    """A regular expression, found anywhere."""

    async def problem(self, run: RunToCheck) -> str:
        """Why the check failed; empty if it passed."""
        return text_problem("the answer", run.answer, self.equals, self.contains, self.matches)


class SchemaCheck(_Check, frozen=True, kw_only=True, tag="json_schema"):
    """A JSON Schema of an object that the answer, or a file of the workspace, must fit."""

    schema: dict[str, JSON]
    path: str = ""
    """A file; empty: the answer."""

    async def problem(self, run: RunToCheck) -> str:
        """Why the check failed; empty if it passed."""
        what = self.path or "the answer"
        text = _read_inside(run.workspace, self.path) if self.path else run.answer
        try:
            value: JSON = msgspec.json.decode(text or "")
        except (msgspec.DecodeError, UnicodeEncodeError):
            return f"{what} is not JSON"
        if not is_object(value):
            return f"{what} is not a JSON object"
        problems = describe_problems(compile_schema(self.as_tool()), value)
        return f"{what} does not fit the schema: {problems}" if problems else ""

    def as_tool(self) -> Tool:
        """A tool with this schema: what checks arguments checks answers, too."""
        return Tool("json_schema", "", self.schema)


class CalledCheck(_Check, frozen=True, kw_only=True, tag="called"):
    """A tool that must have been called, and have succeeded."""

    tool: _Text
    arguments: dict[str, JSON] = {}
    """Those that the call must have; it may have others."""
    times: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """At least so often."""

    async def problem(self, run: RunToCheck) -> str:
        """Why the check failed; empty if it passed."""
        found = sum(
            call.succeeded and _is_like(call, self.tool, self.arguments) for call in run.calls
        )
        if found >= self.times:
            return ""
        often = f"{found} of {self.times} times" if self.times > 1 else f"{found} times"
        wanted = f" with {msgspec.json.encode(self.arguments).decode()}" if self.arguments else ""
        return f"{self.tool} was called {often}{wanted}"


class NotCalledCheck(_Check, frozen=True, kw_only=True, tag="not_called"):
    """A tool that must not be called, also not in vain."""

    tool: _Text
    arguments: dict[str, JSON] = {}
    """Only calls that have these."""

    async def problem(self, run: RunToCheck) -> str:
        """Why the check failed; empty if it passed."""
        wrong = any(_is_like(call, self.tool, self.arguments) for call in run.calls)
        return f"{self.tool} was called" if wrong else ""


class CostCheck(_Check, frozen=True, kw_only=True, tag="max_cost"):
    """The most that the run may cost; an unknown price fails."""

    dollars: Annotated[float, Meta(ge=0)]

    async def problem(self, run: RunToCheck) -> str:
        """Why the check failed; empty if it passed."""
        if run.cost is None:
            return "the price of the model is unknown"
        return "" if run.cost <= self.dollars else f"it cost ${run.cost:.4f}"


Check: TypeAlias = (
    CommandCheck | FileCheck | AnswerCheck | SchemaCheck | CalledCheck | NotCalledCheck | CostCheck
)


def check_definition(check: Check) -> str:
    """What is wrong with the definition of a check; empty if nothing is."""
    if isinstance(check, FileCheck | AnswerCheck) and check.matches:
        try:
            re.compile(check.matches)
        except re.error as problem:
            return f"matches is not a regular expression: {problem}"
    if isinstance(check, SchemaCheck):
        try:
            compile_schema(check.as_tool())
        except SchemaError as problem:
            return problem.problem
    if (
        isinstance(check, AnswerCheck)
        and not (check.contains or check.matches)
        and (check.equals is None)
    ):
        return "an answer check needs equals, contains or matches"
    return ""


def text_problem(what: str, text: str, equals: str | None, contains: str, matches: str) -> str:
    """Why a text is not as it should be; empty if it is."""
    if equals is not None and text.strip() != equals.strip():
        return f"{what} is {text.strip()[:200]!r}, not {equals.strip()[:200]!r}"
    if contains not in text:
        return f"{what} does not contain {contains[:200]!r}"
    if matches and re.search(matches, text) is None:
        return f"{what} does not match {matches[:200]!r}"
    return ""


def _is_like(call: MadeCall, tool: str, arguments: dict[str, JSON]) -> bool:
    return call.tool == tool and _includes(call.arguments, arguments)


def _includes(found: JSON, wanted: JSON) -> bool:
    if is_object(found) and is_object(wanted):
        return all(key in found and _includes(found[key], value) for key, value in wanted.items())
    return found == wanted


def _read_inside(workspace: Path, path: str) -> str | None:
    """The text of a file; None if there is none. A link out of the workspace is no file of it."""
    root = workspace.resolve()
    file = (root / path).resolve()
    if not file.is_relative_to(root) or not file.is_file():
        return None
    with file.open("rb") as opened:
        return opened.read(MAX_CHECKED_BYTES).decode(errors="replace")
