"""The tool `bash`: runs a shell command."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, TextBlock
from evoclaw.core.ops import CompletedProcess, ExecOps
from evoclaw.core.ports import Progress
from evoclaw.core.tools import ANY_RESOURCE
from evoclaw.core.truncate import REPLACED_BYTES_NOTICE, to_text
from evoclaw.tools.define import tool

MAX_STREAM_BYTES = 64 << 10
"""Of stdout and of stderr; longer output keeps its beginning and its end."""
MAX_STDERR_BYTES = 8 << 10
"""Of stderr that is shown: its end."""
SIGKILL_EXIT_CODES = (-9, 137)


@tool(
    "shell",
    timeout=30,
    max_timeout=300,
    effect="write",
    resources=(ANY_RESOURCE,),
    streams=True,
    aliases=("shell",),
)
async def bash(
    ops: ExecOps,
    progress: Progress,
    command: str,
    workdir: str = ".",
    timeout_ms: Annotated[int, Meta(ge=1)] = 30_000,
) -> ToolOutput:
    """Run a command with bash. It gets no input and no terminal; leftover processes are killed.

    Args:
        ops: The machine's processes.
        progress: Told the output as it comes.
        command: The command line, as you would type it.
        workdir: The folder to run it in, relative to the workspace.
        timeout_ms: How many milliseconds it may take, 300000 at most.
    """
    # The loop enforces `timeout_ms` by cancelling this call.
    done = await ops.run(
        ("bash", "-c", command), cwd=workdir, on_output=progress, max_output=MAX_STREAM_BYTES
    )
    text = _output_text(done)
    details: dict[str, JSON] = {
        "exit_code": done.exit_code,
        "isolation": done.isolation,
        "stdout_bytes": done.stdout_bytes,
        "stderr_bytes": done.stderr_bytes,
    }
    if done.stderr:
        details["stderr"] = to_text(done.stderr[-MAX_STDERR_BYTES:])[0]
    if done.exit_code != 0:
        message = f"{_exit_message(done.exit_code)}\n{text}"
        raise ToolFailure(ErrorKind.EXECUTION_FAILED, message, **details)
    return ToolOutput((TextBlock(text),), details)


def _exit_message(code: int) -> str:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    why = " (killed, often for using too much memory)" if code in SIGKILL_EXIT_CODES else ""
    return f"The command {how}{why}."


def _output_text(done: CompletedProcess) -> str:
    stdout, stdout_replaced = to_text(done.stdout)
    stderr, stderr_replaced = to_text(done.stderr[-MAX_STDERR_BYTES:])
    parts = [stdout.rstrip("\n")] if stdout.strip() else []
    if stderr.strip():
        cut = " (its end)" if done.stderr_bytes > MAX_STDERR_BYTES else ""
        parts.append(f"[stderr{cut}]\n{stderr.rstrip()}")
    if stdout_replaced or stderr_replaced:
        parts.append(REPLACED_BYTES_NOTICE)
    return "\n".join(parts) or "(no output)"
