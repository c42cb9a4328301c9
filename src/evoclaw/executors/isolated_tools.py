"""`IsolatedTools`: describes and runs the functions of a Python source in a sandboxed worker."""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec.structs import replace

from evoclaw.core.bound_tools import BoundTool, ToolEnvironment
from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ops import CompletedProcess, ExecOps
from evoclaw.core.tools import Call
from evoclaw.executors.own_tool_worker import WorkerAnswer, WorkerCall, WorkerJob
from evoclaw.executors.processes import NO_ISOLATION, PID_NAMESPACE, LocalProcesses

WORKER_COMMAND = (sys.executable, "-I", "-m", "evoclaw.executors.own_tool_worker")
DESCRIBE_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 16 << 20
MAX_STDERR_CHARS = 8_000


def is_isolated(source: str) -> bool:
    """Whether the tools of a source are declared with `isolated=True`.

    It is read without running the source. `ConfigError` if only some of them are.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False  # the error is reported where the file is loaded
    decorators = [
        decorator
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
    ]
    marks = [mark for mark in map(_mark, decorators) if mark is not None]
    if any(marks) and not all(marks):
        raise ConfigError(
            "only some of its tools have isolated=True; put the others into a file of their own"
        )
    return any(marks)


def _mark(decorator: ast.Call) -> bool | None:
    """Whether a decorator makes an isolated tool; None if it makes no tool."""
    for keyword in decorator.keywords:
        if keyword.arg == "isolated":
            value = keyword.value
            if isinstance(value, ast.Constant) and isinstance(value.value, bool):
                return value.value
            raise ConfigError("write isolated=True literally: it is read before the file is run")
    return False if _name(decorator.func) == "tool" else None


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


@dataclass(frozen=True, slots=True)
class IsolatedTools:
    """Runs the source of a file in a sandbox, never in this process."""

    exec_for: Callable[[Call | None], ExecOps]
    """Where a call runs programs; None: where a source is described."""

    async def describe(self, file: str, source: str) -> tuple[BoundTool, ...]:
        """The tools of a source; `ConfigError` if it cannot be used."""
        try:
            async with asyncio.timeout(DESCRIBE_TIMEOUT_S):
                answer, _ = await self._ask(None, WorkerJob(file, source))
        except TimeoutError:
            raise ConfigError(f"it was not loaded within {DESCRIBE_TIMEOUT_S:g} s") from None
        except ToolFailure as failure:
            raise ConfigError(failure.message) from None
        if answer.problem or not answer.tools:
            raise ConfigError(answer.problem or "it has no function with @tool")
        if streaming := [tool.name for tool in answer.tools if tool.streams]:
            raise ConfigError(f"tool {streaming[0]!r} has streams=True; an isolated tool cannot")
        return tuple(
            BoundTool(replace(tool, isolated=True), partial(self._run, file, source))
            for tool in answer.tools
        )

    async def _run(
        self, file: str, source: str, call: Call, machine: ToolEnvironment
    ) -> ToolResult:
        asked = WorkerCall(call.id, call.name, call.arguments, call.request_id, call.timeout)
        answer, done = await self._ask(call, WorkerJob(file, source, asked))
        details = {"isolation": done.isolation}
        if stderr := done.stderr.decode(errors="replace").strip():
            details["stderr"] = stderr[-MAX_STDERR_CHARS:]
        if answer.result is None:
            text = f"Tool '{call.name}' could not be loaded: {answer.problem}. Tell the user."
            raise ToolFailure(ErrorKind.INTERNAL, text, **details)
        return replace(answer.result, details={**answer.result.details, **details})

    async def _ask(
        self, call: Call | None, job: WorkerJob
    ) -> tuple[WorkerAnswer, CompletedProcess]:
        ops = self.exec_for(call)
        if isinstance(ops, LocalProcesses) and await ops.isolation() in (
            NO_ISOLATION,
            PID_NAMESPACE,
        ):
            raise ToolFailure(
                ErrorKind.SANDBOX_UNAVAILABLE,
                f"{job.file} has isolated=True, but commands run without a sandbox here. Set "
                "[sandbox] engine to one that `evoclaw doctor` lists, or remove isolated=True",
            )
        done = await ops.run(
            WORKER_COMMAND, stdin=msgspec.json.encode(job), max_output=MAX_ANSWER_BYTES
        )
        try:
            return msgspec.json.decode(done.stdout, type=WorkerAnswer), done
        except msgspec.DecodeError:
            said = done.stderr.decode(errors="replace").strip()[-MAX_STDERR_CHARS:]
            raise ToolFailure(
                ErrorKind.EXECUTION_FAILED,
                f"The sandboxed worker of {job.file} gave no answer (exit code {done.exit_code})"
                f"{': ' + said if said else ''}",
                isolation=done.isolation,
            ) from None
