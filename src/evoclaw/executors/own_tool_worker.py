"""Runs in a sandbox: describes the tools of a Python source, or runs one call of one of them.

The job comes on standard input, the answer goes to standard output, both as JSON. What the source
prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback

import msgspec
from msgspec import Struct

from evoclaw.core.bound_tools import BoundTool, ToolEnvironment
from evoclaw.core.errors import ConfigError, SchemaError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.tools import Call, Tool

ALLOWED_DEPENDENCIES = frozenset({FileOps, ExecOps})
"""What a function can have injected in here: everything else is outside of the sandbox."""


class WorkerCall(Struct, frozen=True):
    """The call to run."""

    id: str
    name: str
    arguments: dict[str, JSON]
    request_id: str
    timeout: float


class WorkerJob(Struct, frozen=True):
    """What the worker shall do."""

    file: str
    """The name of the file, for tracebacks."""
    source: str
    call: WorkerCall | None = None
    """The call to run; None: describe the tools."""


class WorkerAnswer(Struct, frozen=True, omit_defaults=True):
    """What came of it."""

    tools: tuple[Tool, ...] = ()
    result: ToolResult | None = None
    problem: str = ""
    """Why the source cannot be used."""


def main() -> int:
    """Do the job on standard input."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerJob)
    out = os.dup(1)
    os.dup2(2, 1)  # prints of the source must not mix with the answer
    answer = msgspec.json.encode(_answer(job))
    with os.fdopen(out, "wb") as file:
        file.write(answer)
    return 0


def _answer(job: WorkerJob) -> WorkerAnswer:
    try:
        tools = _load(job)
    except (ConfigError, SchemaError) as problem:
        return WorkerAnswer(problem=str(problem))
    except Exception as problem:
        traceback.print_exc()
        return WorkerAnswer(problem=f"{type(problem).__name__}: {problem}")
    if job.call is None:
        return WorkerAnswer(tuple(bound.tool for bound in tools.values()))
    return WorkerAnswer(result=asyncio.run(_run(tools[job.call.name], job.call)))


def _load(job: WorkerJob) -> dict[str, BoundTool]:
    names: dict[str, object] = {"__name__": "evoclaw_own_tool", "__file__": job.file}
    exec(compile(job.source, job.file, "exec"), names)
    found = {value.name: value for value in names.values() if isinstance(value, BoundTool)}
    for bound in found.values():
        if extra := bound.dependencies - ALLOWED_DEPENDENCIES:
            kinds = ", ".join(sorted(kind.__name__ for kind in extra))
            raise ConfigError(
                f"tool {bound.name!r} needs {kinds}; an isolated tool can use FileOps and ExecOps"
            )
    return found


async def _run(bound: BoundTool, asked: WorkerCall) -> ToolResult:
    from evoclaw.executors.files import LocalFiles
    from evoclaw.executors.processes import LocalProcesses

    given: dict[type, object] = {
        FileOps: LocalFiles("."),
        ExecOps: LocalProcesses(".", isolation="none"),
    }
    call = Call(asked.id, bound.tool, asked.arguments, asked.request_id, asked.timeout)
    try:
        return await bound.run(call, ToolEnvironment(given, _report))
    except ToolFailure as failure:
        return call.failed(failure.kind, failure.message, **failure.details)
    except Exception as problem:
        traceback.print_exc()
        text = (
            f"Tool '{bound.name}' failed with {type(problem).__name__}: {problem}. "
            "Do not repeat the call; explain this to the user."
        )
        return call.failed(ErrorKind.INTERNAL, text)


def _report(text: str) -> None:
    sys.stderr.write(text)


if __name__ == "__main__":
    sys.exit(main())
