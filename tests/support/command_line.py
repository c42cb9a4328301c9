"""The real command, as a process, against a model server of the test's own."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.llm_servers import Answer, serving, streamed
from tests.support.warm_processes import fork_server


def reply(text: str = "", *asked: tuple[str, dict[str, Any] | str]) -> Answer:
    """One OpenAI-style streamed reply."""
    calls = [
        {
            "index": index,
            "id": f"call_{name}_{index}",
            "function": {
                "name": name,
                "arguments": given if isinstance(given, str) else json.dumps(given),
            },
        }
        for index, (name, given) in enumerate(asked)
    ]
    delta: dict[str, Any] = {"content": text, "tool_calls": calls}
    finish = "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta}], "model": "m"},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage},
    ]
    return streamed([*(f"data: {json.dumps(c)}\n\n" for c in chunks), "data: [DONE]\n\n"])


KEPT = ("PATH", "LANG", "VIRTUAL_ENV", "SSL_CERT_FILE")
"""What a command is told of where the tests run."""


@dataclass
class Typed:
    """A command that ran."""

    code: int
    out: str
    err: str


@dataclass
class Shell:
    """Where commands are typed: a home, a workspace, a model."""

    home: Path
    workspace: Path
    env: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {**kept, "HOME": str(self.home), "PYTHONWARNINGS": "error", **self.env}

    async def start(
        self,
        *arguments: str,
        stdin: int = asyncio.subprocess.DEVNULL,
        stdout: int = asyncio.subprocess.PIPE,
        stderr: int = asyncio.subprocess.PIPE,
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "evoclaw",
            *arguments,
            cwd=self.workspace,
            env=self.environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    async def type(self, *arguments: str, stdin: bytes | None = None) -> Typed:
        """Type a command and see how it ends; `warm_processes` says which process that is."""
        env = self.environment
        python = {name: env[name] for name in env if name in KEPT or name.startswith("PYTHON")}
        code, out, err = await asyncio.to_thread(
            fork_server(tuple(sorted(python.items()))).run, arguments, self.workspace, env, stdin
        )
        return Typed(code, out.decode(), err.decode())

    async def at_terminal(self, *arguments: str, answers: Sequence[str]) -> Typed:
        """Type a command at a terminal and answer its questions as they come."""
        master, slave = pty.openpty()
        seen = bytearray()
        pending = list(answers)
        loop = asyncio.get_running_loop()

        def readable() -> None:
            seen.extend(os.read(master, 65_536))
            if pending and seen.count(b"say why not: ") == len(answers) - len(pending) + 1:
                os.write(master, pending.pop(0).encode() + b"\n")

        loop.add_reader(master, readable)
        try:
            async with asyncio.timeout(120):
                process = await self.start(*arguments, stdin=slave, stderr=slave)
                out, _ = await process.communicate()
        finally:
            loop.remove_reader(master)
            os.close(slave)
            os.close(master)
        return Typed(process.returncode or 0, out.decode(), seen.decode(errors="replace"))


@asynccontextmanager
async def shell(folder: Path, *answers: Answer) -> AsyncGenerator[Shell]:
    """A shell whose model gives these answers.

    It is said to run on one's own machine: it is free, and no command has to read the table of what
    models cost, which would take each of them longer than everything else that it does.
    """
    home, workspace = folder / "home", folder / "work"
    home.mkdir()
    workspace.mkdir()
    async with serving(*answers) as server:
        url = f"{server.url}/v1"
        yield Shell(
            home,
            workspace,
            {"VLLM_BASE_URL": url, "OPENAI_BASE_URL": url, "EVOCLAW_MODEL": "vllm/qwen3-test"},
        )
