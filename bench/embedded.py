"""Measure the embedded server: start, memory, speed, and what a second turn has to read.

`make embeddedbench` prints a table and ends with one JSON object. It takes the packaged model and
the model files in `EVOCLAW_TEST_WEIGHTS` (or `.venv/weights`), each with 1 and 2 threads;
`ARGS=NAME` names one of them. Next to each time stands the processor time, which other programs
change little.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
from tests.support.weights import MODELS, find_model

from evoclaw.providers.embedded_server import EmbeddedServer
from evoclaw.providers.embedded_settings import EmbeddedSettings
from evoclaw.providers.local_model import LocalModel
from evoclaw.providers.request_encoding import function_tool
from evoclaw.tools.catalogue import load

THREADS = (1, 2)
REPLY_TOKENS = 64
TOOLS = ("read", "bash", "grep")
SYSTEM = "You are a careful assistant on this machine. Use a tool if it helps.\n" * 2
QUESTION = "What does note.txt say?"
FOLLOW_UP = "And in one word?"


@dataclass
class Figures:
    """What was measured of one model with so many threads."""

    model: str
    threads: int
    start_s: float
    start_cpu_s: float
    idle_mb: float
    """Memory after the start: the file's pages count, and other processes can share them."""
    peak_mb: float
    prompt_tokens: int
    prompt_tokens_per_s: float
    prompt_cpu_ms_per_token: float
    reply_tokens: int
    reply_tokens_per_s: float
    reply_cpu_ms_per_token: float
    second_prompt_tokens: int
    second_cached_tokens: int
    second_first_token_s: float


class Process:
    """What the kernel says about the server's process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def cpu_s(self) -> float:
        """The processor time so far."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self, key: str) -> float:
        """Resident memory: `VmRSS` now, `VmHWM` at its peak."""
        lines = (self._folder / "status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith(f"{key}:"))
        return int(line.split()[1]) / 1024


async def reply(
    session: aiohttp.ClientSession, url: str, messages: Sequence[dict[str, Any]], tokens: int
) -> dict[str, Any]:
    """One reply, not streamed, with the server's own timings."""
    tools = [function_tool(bound.tool) for bound in load(TOOLS)]
    body = {"messages": messages, "tools": tools, "max_tokens": tokens, "temperature": 0}
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        return await answer.json()


async def measure(model: LocalModel, threads: int) -> Figures:
    """Start the server, and have a conversation of two turns."""
    server = EmbeddedServer(model, EmbeddedSettings(threads=threads, slots=1))
    async with aclosing(server):
        started = time.monotonic()
        url = await server.start()
        start_s = time.monotonic() - started
        assert server.pid is not None
        process = Process(server.pid)
        start_cpu_s, idle_mb = process.cpu_s(), process.memory_mb("VmRSS")
        # It closes the connection after a reply, despite its keep-alive header.
        headers = {"Authorization": f"Bearer {server.key}", "Connection": "close"}
        async with aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=None)
        ) as session:
            messages = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": QUESTION},
            ]
            before = process.cpu_s()
            read = await reply(session, url, messages, 1)
            prompt_cpu = process.cpu_s() - before
            before = process.cpu_s()
            first = await reply(session, url, messages, REPLY_TOKENS)
            reply_cpu = process.cpu_s() - before
            text = first["choices"][0]["message"].get("content") or "I read it."
            more = [{"role": "assistant", "content": text}, {"role": "user", "content": FOLLOW_UP}]
            started = time.monotonic()
            second = await reply(session, url, [*messages, *more], 1)
            second_s = time.monotonic() - started
        return Figures(
            model=model.name,
            threads=threads,
            start_s=round(start_s, 2),
            start_cpu_s=round(start_cpu_s, 2),
            idle_mb=round(idle_mb),
            peak_mb=round(process.memory_mb("VmHWM")),
            prompt_tokens=read["timings"]["prompt_n"],
            prompt_tokens_per_s=round(read["timings"]["prompt_per_second"], 1),
            prompt_cpu_ms_per_token=round(1000 * prompt_cpu / read["timings"]["prompt_n"], 2),
            reply_tokens=first["timings"]["predicted_n"],
            reply_tokens_per_s=round(first["timings"]["predicted_per_second"], 1),
            reply_cpu_ms_per_token=round(1000 * reply_cpu / first["timings"]["predicted_n"], 2),
            second_prompt_tokens=second["usage"]["prompt_tokens"],
            second_cached_tokens=second["timings"]["cache_n"],
            second_first_token_s=round(second_s, 2),
        )


def table(rows: Sequence[Figures]) -> str:
    """The figures, a column for each model and number of threads."""
    values = [asdict(row) for row in rows]
    lines = [[key, *(str(value[key]) for value in values)] for key in values[0]]
    return "\n".join("".join(cell.ljust(26) for cell in line) for line in lines)


async def main(names: Sequence[str]) -> None:
    """Measure these models, or every model that is here."""
    models = [model for name in names or MODELS if (model := find_model(name)) is not None]
    if not models:
        sys.exit("no model is here; run: make .venv/.local-model")
    rows = [await measure(model, threads) for model in models for threads in THREADS]
    print(table(rows))
    print(json.dumps({"embedded": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
