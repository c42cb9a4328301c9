"""BFCL: single requests with functions, judged by the exact checker of `bfcl-eval`.

The data and the checker are theirs; the request, the native calls and the calls that are recovered
from text are ours: each entry goes through the provider that `evoclaw run` uses.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.suite.subjects import environment
from bench.tasks.models import MeasuredModel
from bench.tasks.results import Results, Row

from evoclaw.core.errors import ProviderError
from evoclaw.core.events import Replied
from evoclaw.core.history import History
from evoclaw.core.messages import Reply, SystemMessage, user
from evoclaw.core.ports import Provider, Request
from evoclaw.core.tools import Tool
from evoclaw.providers.registry import open_provider

SEED, COUNT = 20, 200
MAX_TOKENS = 256
PACKAGES = ["--no-deps", "bfcl-eval==2026.3.23"]
SCRIPT = Path(__file__).with_name("bfcl_judge.py")
INSTRUCTIONS = (
    "Call the functions that the user's request needs, several at once if it asks for several "
    "things. If no function fits, say so and call none."
)
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


class BfclJudge:
    """The process with their checker."""

    def __init__(self, python: Path, count: int) -> None:
        """Read the sample, and start the checker."""
        listed = subprocess.run(
            [str(python), "-P", str(SCRIPT), "entries", str(SEED), str(count)],
            capture_output=True,
            text=True,
            check=True,
        )
        self.entries: list[dict[str, Any]] = [
            json.loads(line) for line in listed.stdout.splitlines()
        ]
        self._process = subprocess.Popen(
            [str(python), "-P", str(SCRIPT), "judge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def judge(self, entry: dict[str, Any], calls: list[dict[str, Any]]) -> tuple[bool, str]:
        """Whether the calls are right, and why not."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        asked = {"id": entry["id"], "category": entry["category"], "calls": calls}
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        answer = json.loads(stdout.readline())
        return answer["right"], answer["why"]

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(10)


@asynccontextmanager
async def open_judge(count: int) -> AsyncGenerator[BfclJudge]:
    """Their checker in an environment of its own; `CannotMeasure` if it cannot be installed."""
    judge = BfclJudge(environment("bfcl", PACKAGES), count)
    try:
        yield judge
    finally:
        judge.close()


def tool_name(name: str) -> str:
    """A name that every API accepts."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


def json_schema(value: Any) -> Any:
    """Their types in the words of JSON Schema."""
    if isinstance(value, list):
        return [json_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: json_schema(item) for key, item in value.items() if key != "optional"}
    if isinstance(kind := value.get("type"), str):
        if kind == "any":
            del found["type"]
        else:
            found["type"] = _TYPES.get(kind.lower(), kind.lower())
    return found


def tools_of(entry: dict[str, Any]) -> dict[str, Tool]:
    """The functions of an entry by their original names."""
    return {
        function["name"]: Tool(
            tool_name(function["name"]),
            function["description"],
            json_schema(function["parameters"]),
        )
        for function in entry["function"]
    }


def decoded(reply: Reply, tools: dict[str, Tool]) -> list[dict[str, Any]]:
    """The calls of a reply, as the checker wants them."""
    names = {tool.name: name for name, tool in tools.items()}
    found: list[dict[str, Any]] = []
    for call in reply.calls:
        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError:
            arguments = {}
        found.append({names.get(call.name, call.name): arguments})
    return found


async def ask(provider: Provider, entry: dict[str, Any], tools: dict[str, Tool]) -> Reply:
    """One request, as the loop makes it."""
    messages = entry["question"][0]
    text = "\n".join(message["content"] for message in messages)
    history = History([SystemMessage(INSTRUCTIONS), user(text)])
    request = Request(history, list(tools.values()), max_tokens=MAX_TOKENS)
    async for piece in provider.stream(request):
        if isinstance(piece, Replied):
            return piece.reply
    raise AssertionError("a provider ends with a reply")


async def measure_bfcl(
    model: MeasuredModel, results: Results, count: int, tell: Callable[[str, Row], None]
) -> None:
    """Every entry of the sample that is not stored yet."""
    rows = results.model(model.name, "bfcl")
    env = {**os.environ, **model.env}
    async with open_judge(count) as judge, open_provider(model.spec, env) as provider:
        for entry in judge.entries:
            if results.is_known(rows, entry["id"], f"{SEED}"):
                continue
            started = time.monotonic()
            tools = tools_of(entry)
            try:
                reply = await ask(provider, entry, tools)
                right, why = judge.judge(entry, decoded(reply, tools))
                usage, from_text = reply.usage, reply.recovered
            except ProviderError as problem:
                right, why, usage, from_text = False, f"no reply: {problem}"[:200], None, False
            row: Row = {
                "digest": f"{SEED}",
                "category": entry["category"],
                "right": right,
                "why": why,
                "from_text": from_text,
                "tokens": usage.input + usage.output if usage else 0,
                "seconds": round(time.monotonic() - started, 1),
            }
            results.store(rows, entry["id"], row)
            tell(entry["id"], row)
